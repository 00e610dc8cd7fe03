// Package policy decides what becomes of a path that a peer announces, or that is announced to a peer: Calico's BGPFilters,
// the communities of its prefixAdvertisements, and the rules that hold for every peer. It is pure: paths go in, outcomes come
// out, and package wire writes them.
package policy
