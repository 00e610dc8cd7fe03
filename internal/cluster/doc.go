// Package cluster follows the objects of the API server: client-go's reflectors come in, plain values
// (internal/cluster/state) go out.
//
// The agent has a Watch, the controllers an Inventory and the Policies. Nothing here writes: objects, and Events too,
// are written through internal/datastore/kubernetes. Nodes are watched as metadata and trimmed: a Node's status changes
// every few seconds, and nothing in it matters here.
package cluster
