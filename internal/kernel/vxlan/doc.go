// Package vxlan keeps the node's VXLAN devices, vxlan.calico for IPv4 and vxlan-v6.calico for IPv6, in Calico's form:
// each has, for each other node, a neighbour and an entry of the forwarding database. It owns these two links of the
// node's namespace, their addresses and entries; it never touches another link, and no routes.
//
// Nothing is learned and nothing is flooded: a packet to an unknown node is dropped.
package vxlan
