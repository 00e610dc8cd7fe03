// Package wireguard turns encryption on and off on two nodes with pods, by the agent's decisions and the kernel's
// devices, one node after the other and under traffic; has nodes change their keys; and has one without a key, beside
// the tunnels of pools. It needs a kernel with WireGuard, or a virtual machine with one.
package wireguard
