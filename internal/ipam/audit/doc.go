// Package audit says what is wrong in a cluster's IPAM, and how full it is. It is pure: the state of one moment in, findings out.
//
// It checks what `calicoctl ipam check` checks and what that does not look at: claims, the counts of handles, ranges that overlap,
// addresses that two pods have, tunnel addresses of IPv6, blocks outside of all pools, claims and handles that a crash has left.
// What it finds may be on its way to be right: a pod that is being started has a handle before it has an address. Whoever acts on
// a finding looks twice (see Persisting), and guards each write by what was read.
package audit
