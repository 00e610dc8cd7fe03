// Package nodeaddr decides which of a host's addresses other nodes reach it by, in one address family, and says of each
// address why or why not.
//
// It is pure: links, addresses and what Kubernetes knows are its arguments, and it touches neither the kernel nor the
// API.
package nodeaddr
