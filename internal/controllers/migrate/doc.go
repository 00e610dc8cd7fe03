// Package migrate is `kube-controllers migrate`: it moves Calico's objects between their two API groups while pods run,
// in a cluster without Calico's own programs.
//
// ClusterInformation default locks the source (datastoreReady false), the objects are copied, and the target is
// unlocked; then groups.Choose makes every program use the target. In the source only ClusterInformation changes, until
// the command finish deletes the other objects.
//
// Decisions (convert.go, plan.go, state.go) are pure. The next step follows from the objects in both groups, so a run
// that was killed anywhere can be resumed by another one. A Lease allows one run at a time.
package migrate
