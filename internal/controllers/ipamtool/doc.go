// Package ipamtool is the command `kube-controllers ipam`: it checks the addresses of a cluster, shows their owners,
// and frees unused addresses.
//
// It works in a running cluster. It judges by internal/ipam/audit, as the controllers do. It writes through
// internal/ipam/gc and internal/ipam, which check again right before each write and guard it by the revision that they
// have read. Without -yes it changes nothing.
package ipamtool
