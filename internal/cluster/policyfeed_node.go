package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// policyNode is the part of a Node that policies depend on.
type policyNode struct {
	meta   api.Meta // see named
	labels map[string]string
	// reported are the addresses in the status, which the kubelet or the cloud's controller writes. tunnels are the
	// addresses of tunnel devices in the Node's annotations: source addresses of packets from the node's processes to pods
	// of other nodes. Both ascend.
	reported, tunnels []netip.Addr
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
	texts := make([]string, 0, len(obj.Status.Addresses))
	for _, a := range obj.Status.Addresses {
		texts = append(texts, a.Address)
	}
	m := obj.Meta.Annotations
	*n = policyNode{
		meta: named(&obj.Meta), labels: sharedLabels(obj.Meta.Labels), reported: addresses(texts),
	}
	texts = texts[:0]
	for _, key := range api.TunnelAddresses {
		texts = append(texts, m[key])
	}
	n.tunnels = addresses(texts)
	return nil
}

// on returns the node with the addresses that count for it, and why others do not. A holder of a node's token may write
// any address into its annotations: a policy that denies pods all nodes would deny them that address, and one that
// allows nodes would allow it. So a tunnel address must lie in a block of the node, and a reported one outside of other
// nodes' blocks. ground is nil while it is not known.
func (n *policyNode) on(ground Ground) (node policy.Node, problems []error) {
	node = policy.Node{Labels: n.labels}
	for _, a := range n.reported {
		if _, owner := place(ground, a); owner != "" && owner != n.meta.Name {
			problems = append(problems, fmt.Errorf(
				"status.addresses: %s lies in a block of node %s: peers of policies that select nodes are without it: give this node another address",
				a, owner))
			continue
		}
		node.Addresses = append(node.Addresses, a)
	}
	for _, a := range n.tunnels {
		switch pooled, owner := place(ground, a); {
		case owner == n.meta.Name:
			node.Addresses = append(node.Addresses, a)
		case owner != "" || ground != nil && !pooled:
			problems = append(problems, fmt.Errorf("annotations: %s is said to be the address of a tunnel device, and lies in no block of this "+
				"node: peers of policies that select nodes are without it: remove the annotation, which the node's agent writes anew", a))
		}
	}
	slices.SortFunc(node.Addresses, netip.Addr.Compare)
	node.Addresses = slices.Compact(node.Addresses)
	return node, problems
}

func place(ground Ground, a netip.Addr) (pooled bool, node string) {
	if ground == nil {
		return false, ""
	}
	return ground.Place(a)
}

func samePolicyNode(a, b *policyNode) bool {
	return maps.Equal(a.labels, b.labels) && slices.Equal(a.reported, b.reported) && slices.Equal(a.tunnels, b.tunnels)
}
