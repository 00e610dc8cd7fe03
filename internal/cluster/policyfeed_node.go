package cluster

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// policyNode is the part of a Node that policies depend on.
type policyNode struct {
	meta api.Meta // see named
	policy.Node
}

// GetMeta implements api.Resource.
func (n *policyNode) GetMeta() *api.Meta { return &n.meta }

// ResourceType implements api.Resource.
func (*policyNode) ResourceType() api.Type { return (*api.Node)(nil).ResourceType() }

// UnmarshalJSON reads a Node.
func (n *policyNode) UnmarshalJSON(data []byte) error {
	var obj struct {
		Meta   api.Meta `json:"metadata"`
		Status struct {
			Addresses []api.NodeAddress `json:"addresses"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*n = policyNode{meta: named(&obj.Meta), Node: policy.Node{Labels: sharedLabels(obj.Meta.Labels)}}
	n.Addresses = nodeAddresses(&obj.Meta, obj.Status.Addresses)
	return nil
}

// nodeAddresses returns the addresses of the status and of the tunnel devices. A tunnel device's address is the source of packets from processes
// on the node to pods of other nodes.
func nodeAddresses(m *api.Meta, reported []api.NodeAddress) []netip.Addr {
	texts := []string{
		m.Annotations[api.AnnotationIPv4TunnelAddr], m.Annotations[api.AnnotationIPv4VXLANAddr], m.Annotations[api.AnnotationIPv6VXLANAddr],
		m.Annotations[api.AnnotationIPv4WireGuard], m.Annotations[api.AnnotationIPv6WireGuard],
	}
	for _, a := range reported {
		texts = append(texts, a.Address)
	}
	return addresses(texts)
}

func samePolicyNode(a, b *policyNode) bool {
	return maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Addresses, b.Addresses)
}
