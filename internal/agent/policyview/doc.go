// Package policyview is the command `node policy`: it shows the policies of this node's pods and whether the kernel has
// them, explains the verdict on a connection, and lists the connections whose verdict a change of policies would
// change. It reads the API server and the kernel, and writes neither.
package policyview
