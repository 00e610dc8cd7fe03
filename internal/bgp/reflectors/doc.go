// Package reflectors lets the nodes of a cluster agree on a few of them that reflect BGP routes for all, without a coordinator.
//
// It is pure: what the Nodes say and how this node's sessions are comes in as values, with the time; what this node is to be, and
// to say of itself, goes out. There are no messages but one word on each Node, which only that node's agent writes, and whose
// watch everybody has anyway.
//
// A node that takes part says "client". Once enough of them do, those that come first in an order that all compute alike say
// "reflector", and each node has a session with everyone who says so. Nobody is ever removed by another: where a reflector is
// missed, the next in that order announces itself beside it, and one that is superfluous steps down by itself when it sees that
// enough others stand. So a mistake of one node, a watch that lags or a network that is cut costs a session too much and no path.
package reflectors
