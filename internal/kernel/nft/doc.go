// Package nft gives access to nftables. Owners describe their part of the one table, "inet tortie", as a value; the
// package reads the table, and writes the difference in one transaction: no packet passes half of it. Sync changes
// neither another table nor another owner's part of this one. Table.Find, Remove and Chains read the tables of other
// programs, and Remove removes from them what a Foreign describes. No program is run.
//
// It encodes expressions itself. The common library, github.com/google/nftables, omits parts of some expressions when
// it reads them back, such as of a masquerade with both ports and flags: drift in these parts would go unseen.
package nft
