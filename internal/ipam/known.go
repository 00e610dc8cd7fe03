package ipam

import (
	"github.com/tortie-net/tortie/internal/api"
)

// Known is what somebody who follows the cluster, the node's agent, has seen of it. With it an operation asks the datastore
// only for what it is about to change. It may be a little old: every write is guarded, and no refusal rests on it.
type Known struct {
	Config       api.IPAMConfigSpec
	Pools        []api.IPPool
	Reservations []api.IPReservation
	// NodeLabels are those of the host.
	NodeLabels map[string]string
	// Claims are the host's, of both families, in any order.
	Claims []Claim
}

// Claim is a host's claim of a block.
type Claim struct {
	api.BlockAffinity
	// Free is how many addresses of the block are thought to be free; nil if nobody knows.
	Free *int
}
