// Package controllers is the cluster-wide side of IPAM: one process of several leads, collects what nobody uses any more, keeps the
// cluster's own objects in order and tells operators of pools before they are exhausted.
//
// Decisions are pure and lie in internal/ipam/gc, usage.go and pools.go; this package watches, paces and writes.
package controllers
