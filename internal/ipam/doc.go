// Package ipam assigns and releases addresses in blocks that Calico's IPAM shares.
//
// Its core is pure: block.go, handle.go, pool.go and plan.go turn what was read into an ordered list of writes. client.go
// reads, plans, commits and, when somebody else was faster, reads and plans again: the only loop.
//
// The order of writes makes every crash repairable. To claim a block: affinity pending, block, affinity confirmed. To assign
// an address: handle, then block. To release one: block, then handle. So a crash leaves at worst a pending affinity or a
// handle that holds nothing, both of which the next assignment or release mends; the reverse order would leave an address
// that no release can find.
package ipam
