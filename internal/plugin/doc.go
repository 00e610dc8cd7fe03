// Package plugin implements the CNI verbs of the plugins calico and calico-ipam, one file each. Its input is the
// network configuration, CNI's environment and the agent's facts; its output is CNI's results and error codes, and for
// the agent the journal of postponed releases.
//
// ADD reads top to bottom in add.go: plugin.go makes a call from the runtime's input, session.go opens the datastore,
// endpoint.go and request.go read the pod and its annotations, addressing.go assigns addresses through internal/ipam,
// and internal/kernel/podnet makes the link. endpoint.go and object.go write the pod's annotations or, on etcd, its
// WorkloadEndpoint. The package never changes the kernel itself.
package plugin
