// Package peering decides which BGP sessions a node has, and by which rules. It is pure: what the cluster says and what
// was decided last come in as values, sessions go out as values.
//
// The rules are Calico's, so that a node decides what a Calico node in its place would, and what a Calico node at the
// other end expects: the mesh, BGPPeers of all nodes and of some, peers chosen by selectors, and the sessions back to
// the nodes that were given one. Where both ends are nodes they decide alike, as long as they have seen the same
// objects: each finds the session from both ends, by one function.
//
// A BGPPeer that names what is not there, or says what cannot be, keeps the form in which it could last be used: State
// carries these from one decision to the next.
package peering
