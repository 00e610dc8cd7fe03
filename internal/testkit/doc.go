// Package testkit has no code: its folder holds what tests share: an API server and etcd from the lab, network namespaces, peers that
// speak BGP, agents on nodes of their own, the cases that every datastore must pass.
//
// Only tests import it; hack/layers checks that.
package testkit
