// Package plugin implements the CNI verbs of the plugins calico and calico-ipam, one file each. In come the network
// configuration, CNI's environment and what the agent has left in facts; out go CNI's results and error codes, and for
// the agent the journal of releases that are still to be made.
//
// ADD reads top to bottom in add.go: plugin.go makes a call of what the runtime asks for, session.go opens the
// datastore, endpoint.go and request.go read the pod and what it asks for, addressing.go has addresses assigned by
// internal/ipam, and internal/kernel/podnet makes the link. endpoint.go and object.go write the pod's annotations or,
// on etcd, its WorkloadEndpoint. The package never changes the kernel itself.
package plugin
