// Package controllers is the cluster-wide side of IPAM. One of its processes leads: it frees unused addresses, keeps
// the cluster's own objects in order and warns before pools are exhausted.
//
// loop.go paces the passes. Each judges a View (package gc) and measures it (usage.go, forecast.go), which is pure; the
// leader then writes: the sweep (package gc), pools, conditions and labels (duties.go), Calico's Nodes on etcd
// (etcd.go), Events.
//
// Beside the passes the leader serves Services (balance.go) and route reflectors (reflect.go, by the pure plan of
// reflectors.go).
//
// elect.go replaces client-go's leader election. That depends on 392 packages of Kubernetes; the one binary of all
// programs links 94. It also releases the Lease before the leader's work has ended, and counts the deadline of a
// renewal from the response to the last one instead of its request, so that a slow response makes two leaders.
package controllers
