// Package ipamtool is the command `kube-controllers ipam`: it checks the addresses of a cluster, shows their owners,
// and frees what is not in use.
//
// It works in a running cluster. It judges by internal/ipam/audit, as the controllers do; it writes through
// internal/ipam/gc and internal/ipam, which check again right before each write and guard it by what was read. Nothing
// is changed without -yes.
package ipamtool
