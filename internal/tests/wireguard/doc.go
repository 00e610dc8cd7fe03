// Package wireguard turns encryption on and off on two nodes with pods, by the agent's decisions and the kernel's devices, one node after the other and
// under traffic. It needs a kernel with WireGuard, or a virtual machine with one.
package wireguard
