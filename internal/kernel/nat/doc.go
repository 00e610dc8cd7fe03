// Package nat hides pods' addresses from the world outside of the pools: a packet from a pool with natOutgoing to an
// address in no pool leaves with the node's own address. It also makes pods reachable by their floating addresses.
// It owns three chains and up to eight sets in the nftables table "inet tortie".
package nat
