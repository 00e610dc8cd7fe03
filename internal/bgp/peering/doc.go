// Package peering decides which BGP sessions a node has, and by which rules. It is pure: the cluster's objects and the
// last decision's State are its input, sessions its output.
//
// The rules are Calico's, so that a node decides as a Calico node in its place would, and as a Calico node at the other
// end expects: the mesh, BGPPeers of all nodes and of some, peers chosen by selectors, and the sessions back to the
// nodes that a BGPPeer gives a session. Where both ends are nodes they decide alike, as long as they have seen the same
// objects: each finds the session from both ends, by one function.
//
// A BGPPeer with a missing reference or an invalid value keeps the form in which it was last usable: State carries
// these forms from one decision to the next.
package peering
