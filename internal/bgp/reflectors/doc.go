// Package reflectors lets the nodes of a cluster agree on a few of them that reflect BGP routes for all, without a
// coordinator.
//
// It is pure: its input is the annotations of Nodes, the states of this node's sessions and the time; its output is
// this node's role and annotation. There are no messages but this one annotation, which only the node's own agent
// writes, and which all agents watch anyway.
//
// A node that takes part announces "client". Once enough do, the first in an order that all compute alike announce
// "reflector", and each node has a session with each of them. No node removes another: where a reflector is missing,
// the next in that order announces itself beside it, and a superfluous one steps down by itself when it sees that
// enough others serve. So a mistake of one node, a watch that lags or a network that is cut costs a session too much
// and no path.
package reflectors
