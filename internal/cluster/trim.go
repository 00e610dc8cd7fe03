package cluster

import (
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/tortie-net/tortie/internal/api"
)

// trimNode keeps the parts of a Node in state.Cluster.
func trimNode(n *api.Node) {
	created := n.CreationTimestamp // of two Nodes with the same announcement the older may count
	trimMeta(&n.Meta, isNodeAnnotation)
	n.CreationTimestamp = created
	n.Spec, n.Status = api.NodeSpec{}, api.NodeStatus{}
}

// trimOwnNode keeps the parts of this Node in state.Cluster, and the annotations of Calico's that have no effect, for
// reports.
func trimOwnNode(n *api.Node) {
	trimMeta(&n.Meta, func(key string) bool { return isNodeAnnotation(key) || api.Unread("Node", key) })
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c api.NodeCondition) bool { return c.Type != api.NetworkUnavailable })
}

func isNodeAnnotation(key string) bool {
	switch key {
	case api.AnnotationIPv4Address, api.AnnotationIPv6Address, api.AnnotationASNumber, api.AnnotationIPv4TunnelAddr,
		api.AnnotationReflector, api.AnnotationLabels,
		api.AnnotationReflection, api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr, api.AnnotationVXLANMAC,
		api.AnnotationVXLANMACv6,
		api.AnnotationWireGuardKey, api.AnnotationWireGuardKeyV6, api.AnnotationIPv4WireGuard, api.AnnotationIPv6WireGuard,
		api.AnnotationWireGuardNextKey, api.AnnotationWireGuardNextKeyV6:
		return true
	}
	return false
}

// annotationPrefix is the prefix of the annotations by which namespaces steer the plugins.
const annotationPrefix = "cni.projectcalico.org/"

// trimNamespace keeps the parts of a Namespace in Assignment, and its annotations of Calico's that have no effect.
func trimNamespace(n *api.Namespace) {
	trimMeta(&n.Meta, func(key string) bool { return strings.HasPrefix(key, annotationPrefix) || api.Unread("Namespace", key) })
}

// trimMeta keeps names, labels and some annotations. Thousands of objects have the same labels: they share the strings.
func trimMeta(m *api.Meta, keep func(annotation string) bool) {
	annotations := map[string]string{}
	for key, value := range m.Annotations {
		if keep(key) {
			annotations[shared(key)] = value
		}
	}
	labels := make(map[string]string, len(m.Labels))
	for key, value := range m.Labels {
		labels[shared(key)] = shared(value)
	}
	*m = api.Meta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: labels, Annotations: annotations}
}

// trimAffinity keeps the fields of other nodes' affinities that routes depend on. This node's affinities are updated,
// so they stay whole.
func (w *Watch) trimAffinity(a *api.BlockAffinity) {
	s := &a.Spec
	s.Node, s.Type, s.State = shared(s.Node), shared(s.Type), api.AffinityState(shared(string(s.State)))
	if s.Node != w.self {
		a.Meta = api.Meta{Name: a.Name, ResourceVersion: a.ResourceVersion, CreationTimestamp: shared(a.CreationTimestamp)}
	}
}

// shared returns the shared copy of a string that many objects have.
func shared(text string) string { return unique.Make(text).Value() }

// sameNode compares the kept parts of Nodes: kubelets update their Nodes all the time. The times in a condition are no
// difference.
func sameNode(before, after *api.Node) bool {
	return sameMeta(&before.Meta, &after.Meta) && slices.Equal(before.Status.Addresses, after.Status.Addresses) &&
		slices.EqualFunc(before.Status.Conditions, after.Status.Conditions, func(a, b api.NodeCondition) bool {
			return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
		}) && slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) && slices.Equal(before.Spec.Taints, after.Spec.Taints) &&
		before.Spec.Unschedulable == after.Spec.Unschedulable
}

func sameNamespace(before, after *api.Namespace) bool { return sameMeta(&before.Meta, &after.Meta) }

func sameMeta(before, after *api.Meta) bool {
	return before.UID == after.UID && maps.Equal(before.Annotations, after.Annotations) && maps.Equal(before.Labels, after.Labels)
}
