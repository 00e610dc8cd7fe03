// Package controllers is the cluster-wide side of IPAM: of several processes one leads, frees unused addresses, keeps
// the cluster's own objects in order and warns before pools are exhausted.
//
// loop.go paces the passes. Each judges a View (package gc) and measures it (usage.go, forecast.go), which is pure; the
// leader then writes: the sweep (package gc), pools, conditions and labels (duties.go), Calico's Nodes on etcd
// (etcd.go), Events.
//
// Beside the passes the leader looks after Services (balance.go) and route reflectors (reflect.go, by the pure plan of
// reflectors.go).
//
// elect.go is not client-go's leader election. That depends on 392 packages of Kubernetes, where the one binary of all
// programs links 94. It also releases the Lease before the leader's work has ended, and counts the deadline of a
// renewal from the answer to the last one instead of its request, so that a slow answer makes two leaders.
package controllers
