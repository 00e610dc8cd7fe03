// Package wireguard keeps the node's WireGuard devices, wireguard.cali for IPv4 and wg-v6.cali for IPv6, in Calico's
// form: device, peers, an ip rule, and a routing table for packets to other nodes' pods that takes precedence over the
// main table. It owns these two links, the second ones for a change of keys, their addresses and peers, the rules with
// WireGuard's mark, and its routes in the two tables; it never touches another link.
//
// Private keys are made here and stored in the kernel only: a key exists as long as a device that has it. It is read
// only to copy it to the other device of a family.
package wireguard
