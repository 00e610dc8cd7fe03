// Package audit judges IPAM: it finds what is wrong in a View of the cluster, and how full the pools are. It is pure.
//
// Candidates are the findings that the controllers repair: package gc frees them when they are older than their grace.
// Check returns all findings: the candidates and what needs a person, or the tool's -fix. It covers what `calicoctl
// ipam check` does, and affinities, the counts of handles, ranges that overlap, addresses that two pods have, tunnel
// addresses of IPv6 and blocks outside of all pools.
//
// A finding may be transient: a pod that is being started has a handle before it has an address. A caller that acts on
// a finding checks twice (see Persisting, and gc.Pass), and guards each write by what was read.
package audit
