// Package nat hides pods' addresses from the world outside of the pools: what is sent from a pool with natOutgoing to an
// address in no pool leaves with the node's own address. It owns one chain and four sets in the nftables table "inet tortie".
package nat
