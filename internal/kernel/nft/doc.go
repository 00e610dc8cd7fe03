// Package nft is the door to nftables. Owners describe all that they have in the one table, "inet tortie", as a value;
// the package reads what is there, and writes the difference in one transaction: no packet sees half of it. Sync
// changes neither another table nor another owner's part of this one. Table.Find, Remove and Chains look at the tables
// of other programs, and Remove removes from them what a Foreign describes. No program is run.
//
// It encodes expressions itself. The common library, github.com/google/nftables, reads back some expressions with less
// in them than the kernel has, such as a masquerade with both ports and flags, and drift in what it leaves out would go
// unseen.
package nft
