// Package migrate is `kube-controllers migrate`: it moves Calico's objects from one of their two API groups to the other
// while pods run, in a cluster without Calico's own programs.
//
// The source is locked by ClusterInformation default (datastoreReady false), its objects are copied, and the target is
// unlocked; groups.Choose then has every program use the target. Objects of the source are never changed, but for its
// ClusterInformation, until the command finish deletes them.
//
// Decisions (convert.go, plan.go, state.go) are pure. What is done next follows from the objects in both groups, so
// that a run that was killed anywhere is resumed by another one. One run at a time works, by a Lease.
package migrate
