// Package testkit has no code. Its folder holds the helpers that tests share: an API server and etcd from the lab,
// network namespaces, BGP peers, agents on separate nodes, clusters with policies and their meaning, and the
// conformance cases of a datastore.
//
// Only tests import it; hack/layers checks that.
package testkit
