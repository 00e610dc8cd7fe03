// Package cluster is the agent's view of the cluster: client-go informers on one side, plain values on the other.
//
// It is the only importer of client-go besides the installer. It never writes: writes go through internal/datastore. Nodes
// are watched as metadata only and trimmed, since a Node's status changes every few seconds and nothing in it matters here.
package cluster
