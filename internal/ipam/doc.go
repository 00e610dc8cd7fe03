// Package ipam assigns and releases addresses in blocks, in objects that Calico's IPAM shares.
//
// Its core is pure: block.go, affinity.go, handle.go and pool.go check and change objects in memory; choose.go and
// explicit.go select an address; plan.go turns what was read (state.go) into an ordered list of writes, or returns what
// else must be read. view.go reads that; attempt.go, release.go and collect.go commit, and plan again after a conflict.
//
// The order of writes makes every crash repairable. To claim a block: affinity pending, block, affinity confirmed. To
// assign an address: handle, then block. To release one: block, then handle. So a crash leaves at worst a pending
// affinity or a handle that holds nothing, both of which the next assignment or release repairs; the reverse order
// would leave an address that no release can find.
package ipam
