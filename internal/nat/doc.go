// Package nat hides pods' addresses from the world outside of the pools: what a pod of a pool with natOutgoing sends to an
// address in no pool leaves with the node's own address. It owns one chain and four sets in the nftables table "inet tortie"
// and removes the table if nothing else is in it; no other table is read or changed, and no program is run.
package nat
