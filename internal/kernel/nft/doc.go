// Package nft is the project's only door to nftables. Owners describe all that they have in the one table, "inet tortie", as a
// value; the package reads what is there, and writes the difference in one transaction: no packet sees half of it. It never
// lists or changes another table, nor another owner's part of this one, and runs no program.
//
// It speaks netlink itself. The common library would read back some expressions with less in them than the kernel has, such as
// a masquerade with both ports and flags, and drift in what it leaves out would go unseen.
package nft
