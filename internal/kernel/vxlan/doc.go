// Package vxlan keeps the node's VXLAN devices, vxlan.calico for IPv4 and vxlan-v6.calico for IPv6, in the form that
// Calico gives them: what is in them is the whole of what the kernel has to know of the other nodes, a neighbour and an
// entry of the forwarding database each. It owns these two links of the node's namespace, their addresses and entries;
// it never touches another link, and no routes.
//
// Nothing is learned and nothing is flooded: a packet to a node that is not known is dropped.
package vxlan
