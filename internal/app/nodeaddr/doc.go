// Package nodeaddr chooses the address of a host by which other nodes reach it, in one address family, and gives the
// reason for or against each address.
//
// It is pure: links, addresses and the Node's data are its arguments, and it uses neither the kernel nor the API.
package nodeaddr
