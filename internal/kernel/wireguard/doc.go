// Package wireguard keeps the node's WireGuard devices, wireguard.cali for IPv4 and wg-v6.cali for IPv6, in the form
// that Calico gives them: device, peers, the ip rule and the routing table by which packets to other nodes' pods take
// precedence over all that the main table says. It owns these two links, the second ones for a change of keys, their
// addresses and peers, the rules with WireGuard's mark, and its routes in the two tables; it never touches another
// link.
//
// Private keys are made here, given to the kernel and forgotten: a key lives as long as a device that has it. One is
// read to give it to the other device of a family, and kept nowhere.
package wireguard
