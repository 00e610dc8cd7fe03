// Package policyview implements the command `node policy`: it shows the policies of this node's pods and whether the
// kernel has them, explains the verdict on a connection, and lists the connections that get another verdict by a change
// of policies. It reads the API server and the kernel, and writes neither.
package policyview
