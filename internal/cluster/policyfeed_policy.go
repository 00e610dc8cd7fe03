package cluster

import (
	"reflect"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

func trimNetworkPolicy(p *api.NetworkPolicy) { p.Meta = bareMeta(&p.Meta) }

func trimClusterNetworkPolicy(p *api.ClusterNetworkPolicy) {
	p.Meta, p.APIVersion = bareMeta(&p.Meta), shared(p.APIVersion)
}

// bareMeta returns the identity and revision of an object.
func bareMeta(m *api.Meta) api.Meta {
	return api.Meta{Namespace: shared(m.Namespace), Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
}

// sameNetworkPolicy ignores labels and annotations, which do not change the enforcement.
func sameNetworkPolicy(a, b *api.NetworkPolicy) bool {
	return a.UID == b.UID && reflect.DeepEqual(a.Spec, b.Spec)
}

// sameClusterNetworkPolicy also ignores the version in which a policy was read.
func sameClusterNetworkPolicy(a, b *api.ClusterNetworkPolicy) bool {
	return a.UID == b.UID && reflect.DeepEqual(a.Spec, b.Spec)
}

// trimToLabels keeps a Namespace's name and labels.
func trimToLabels(n *api.Namespace) { trimMeta(&n.Meta, func(string) bool { return false }) }

func namespaceLabels(namespaces []*api.Namespace) map[string]map[string]string {
	labels := make(map[string]map[string]string, len(namespaces))
	for _, n := range namespaces {
		labels[n.Name] = n.Labels
	}
	return labels
}

// selectsNodes reports whether a policy has a peer that selects nodes.
func selectsNodes(p *api.ClusterNetworkPolicy) bool {
	return slices.ContainsFunc(p.Spec.Egress, func(r api.ClusterNetworkPolicyEgressRule) bool {
		return slices.ContainsFunc(r.To, func(peer api.ClusterNetworkPolicyPeer) bool { return peer.Nodes != nil })
	})
}
