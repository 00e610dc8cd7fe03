// Package hairpin tries the way of pods' packets to another node and through it. A probe is sent to the node as a pod's
// packet is, in VXLAN, in IPIP or as it is, but its destination is an address of this node: the other node's kernel
// forwards it back. So it passes that node's prerouting, forward and postrouting hooks, which an echo that the node
// itself answers does not. Nothing has to run there: a node of Calico reflects it, too. The package sends and receives
// such packets. It changes nothing in the kernel.
package hairpin
