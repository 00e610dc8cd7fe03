package ipam

import (
	"github.com/tortie-net/tortie/internal/api"
)

// Known is the agent's cached view of the cluster. With it an operation reads only what it is about to change. It may
// be stale: every write is guarded, and no refusal is based on it.
type Known struct {
	Config       api.IPAMConfigSpec
	Pools        []api.IPPool
	Reservations []api.IPReservation
	// NodeLabels are the host's labels.
	NodeLabels map[string]string
	// Claims are the host's affinities, of both families, in any order.
	Claims []Claim
}

// Claim is an affinity of the host, with an estimate of the block's free addresses.
type Claim struct {
	api.BlockAffinity
	// Free is the estimated number of free addresses in the block; nil if unknown.
	Free *int
}
