// Package policy decides which packets the pods of a node may send and receive. In come the cluster's policies,
// namespaces and pods, out comes a Ruleset: for each local pod and direction a Program, which finds a packet's verdict
// by its port and then by its peer's address. It is pure; internal/kernel/netpol carries a Ruleset out. It never sees
// the kernel, the API server or the time.
package policy
