package groups

import (
	"encoding/json"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Lock is the state of the datastore in a group, by its ClusterInformation default.
type Lock int

// The states.
const (
	// Absent: there is no ClusterInformation, or no definition of it.
	Absent Lock = iota
	// Locked: datastoreReady is not true.
	Locked
	// Ready: objects may be written.
	Ready
)

// LockOf returns the lock of a ClusterInformation; nil is Absent.
func LockOf(info *api.ClusterInformation) Lock {
	switch {
	case info == nil:
		return Absent
	case info.Spec.DatastoreReady != nil && *info.Spec.DatastoreReady:
		return Ready
	}
	return Locked
}

// Choose returns the group that holds a cluster's Calico objects, by the ClusterInformation default of each; empty if
// neither has one, as in a new cluster.
//
// The groups that the API server serves do not decide it. projectcalico.org/v3 may be Calico's own API server, which
// shows the objects of v1, or definitions that were only installed early; and definitions of v1 stay after a migration
// to v3. The locks decide: a migration locks v1 for ever before v3 is ready. Calico's own API server shows the lock of
// v1 in v3 as well, so an unlocked v3 beside a locked v1 is a group of its own.
func Choose(v1, v3 Lock) Group {
	switch {
	case v1 == Ready:
		return V1
	case v3 == Ready:
		return V3
	case v1 == Locked:
		return V1 // a migration to v3 has not ended, or there is none
	case v3 == Locked:
		return V3
	}
	return ""
}

// Moving is the annotation of both ClusterInformation by which kube-controllers migrate notes a move: a Mark as JSON.
const Moving = "tortie.net/migrating"

// Mark identifies a move and its target.
type Mark struct {
	To Group  `json:"to"`
	ID string `json:"id"`
	// Switched: the copy is complete, and the target is in use or about to be. The source says so before the target has a
	// ClusterInformation: else a move whose target has lost it later would look like one that still copies.
	Switched bool `json:"switched,omitempty"`
	// Aborting: what was copied is being removed.
	Aborting bool `json:"aborting,omitempty"`
}

// MarkOf returns the mark among an object's annotations; empty if it has none.
func MarkOf(annotations map[string]string) (m Mark) {
	_ = json.Unmarshal([]byte(annotations[Moving]), &m) // invalid JSON is none
	return m
}

// ChooseNew returns the group for a new cluster, by the plurals that the API server serves in each: V1 if it serves
// both, empty if neither. It looks for blocks, which only definitions have: Calico's own API server has none.
func ChooseNew(v1, v3 []string) Group {
	for _, of := range []struct {
		Group
		served []string
	}{{V1, v1}, {V3, v3}} {
		if slices.Contains(of.served, blocks) {
			return of.Group
		}
	}
	return ""
}

const blocks = "ipamblocks"
