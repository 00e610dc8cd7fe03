// Package policy decides which packets the pods of a node may send and receive. Its input is the cluster's policies,
// namespaces and pods, its output a Ruleset: for each local pod and direction a Program, which finds a packet's verdict
// by its port and then by its peer's address. The package is pure: it does not read the kernel, the API server or the
// time. Package internal/kernel/netpol puts a Ruleset into force.
package policy
