// Package hairpin tests the path of pods' packets to another node and through it. A probe is sent to the node like a
// pod's packet, in VXLAN, in IPIP or without encapsulation, but its destination is an address of this node: the other
// node's kernel forwards it back. So it passes that node's prerouting, forward and postrouting hooks, unlike an ICMP
// echo to the node. No program has to run there: a node of Calico reflects it, too. The package sends and receives such
// packets. It changes nothing in the kernel.
package hairpin
