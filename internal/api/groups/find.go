package groups

import (
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Lock is what the ClusterInformation default of a group says about the datastore in it.
type Lock int

// The answers of a ClusterInformation.
const (
	// Absent: there is none, or no such definition.
	Absent Lock = iota
	// Locked: datastoreReady is not true.
	Locked
	// Ready: objects may be written.
	Ready
)

// LockOf returns what a ClusterInformation says; nil is none.
func LockOf(info *api.ClusterInformation) Lock {
	switch {
	case info == nil:
		return Absent
	case info.Spec.DatastoreReady != nil && *info.Spec.DatastoreReady:
		return Ready
	}
	return Locked
}

// Choose returns in which group a cluster keeps Calico's objects, by the ClusterInformation default of each; empty if
// neither has one, which is a new cluster.
//
// Which groups the API server has does not tell: projectcalico.org/v3 may be Calico's own API server, which shows the
// objects of v1, or definitions that were only installed early; and those of v1 stay after a migration to v3. What tells
// is that a migration locks v1 for ever before v3 is ready. Calico's own API server shows the lock of v1 as that of v3,
// so that an unlocked v3 beside a locked v1 is one of its own.
func Choose(v1, v3 Lock) Group {
	switch {
	case v1 == Ready:
		return V1
	case v3 == Ready:
		return V3
	case v1 == Locked:
		return V1 // a migration to v3 has not come to its end, or there is none
	case v3 == Locked:
		return V3
	}
	return ""
}

// ChooseNew returns which group a new cluster is set up in, by the plurals that the API server has in each: V1 if it has
// both; empty if it has neither. Only definitions have blocks: Calico's own API server has none.
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
