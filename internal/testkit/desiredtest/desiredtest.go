// Package desiredtest has snapshots of clusters for tests of the desired state.
package desiredtest

import (
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// World returns a cluster of three nodes with one pool, as seen from node1, after change.
func World(change func(*state.Cluster)) state.Cluster {
	node := func(name, address string) api.Node {
		n := api.Node{Meta: api.Meta{Name: name, Annotations: map[string]string{}}}
		if address != "" {
			n.Annotations[api.AnnotationIPv4Address] = address
		}
		return n
	}
	affinity := func(node, cidr string, state api.AffinityState) api.BlockAffinity {
		return api.BlockAffinity{
			Meta: api.Meta{Name: node + "-" + cidr},
			Spec: api.BlockAffinitySpec{Node: node, CIDR: cidr, State: state, Type: "host"},
		}
	}
	w := state.Cluster{
		Nodes: []api.Node{node("node2", "10.0.0.2/24"), node("node1", "10.0.0.1/24"), node("far", "10.9.0.9/24"), node("new", "")},
		Pools: []api.IPPool{{
			Meta: api.Meta{Name: "default-ipv4-ippool"},
			Spec: api.IPPoolSpec{CIDR: "192.168.0.0/16", IPIPMode: api.EncapAlways, NATOutgoing: true},
		}},
		Affinities: []api.BlockAffinity{
			affinity("node1", "192.168.1.64/26", api.AffinityConfirmed),
			affinity("node1", "192.168.1.0/26", ""), // old data: confirmed
			affinity("node1", "192.168.9.0/26", api.AffinityPending),
			affinity("node1", "192.168.9.64/26", api.AffinityPendingDeletion),
			affinity("node2", "192.168.2.0/26", api.AffinityConfirmed),
		},
	}
	if change != nil {
		change(&w)
	}
	return w
}

// Reflecting returns a dual-stack cluster of five nodes. n3 is a route reflector of kube-controllers, and n2 owns
// blocks.
func Reflecting() state.Cluster {
	node := func(name, v4, v6 string, more map[string]string) api.Node {
		n := api.Node{Meta: api.Meta{Name: name, Labels: map[string]string{api.LabelZone: "zone-" + name}, Annotations: map[string]string{
			api.AnnotationIPv4Address: v4, api.AnnotationIPv6Address: v6,
		}}}
		for key, value := range more {
			n.Annotations[key] = value
		}
		return n
	}
	reflector := node("n3", "10.0.0.3/24", "", map[string]string{api.AnnotationReflector: "10.0.0.3"})
	reflector.Labels[api.LabelReflector] = ""
	block := func(owner, cidr string) api.BlockAffinity {
		return api.BlockAffinity{Meta: api.Meta{Name: owner + cidr},
			Spec: api.BlockAffinitySpec{Node: owner, CIDR: cidr, State: api.AffinityConfirmed}}
	}
	pool := func(cidr string, size int) api.IPPool {
		return api.IPPool{Meta: api.Meta{Name: cidr}, Spec: api.IPPoolSpec{CIDR: cidr, BlockSize: size, NodeSelector: "all()"}}
	}
	return state.Cluster{
		Self: &api.Node{Meta: api.Meta{Name: "n1"}},
		Nodes: []api.Node{
			node("n1", "10.0.0.1/24", "fd00::1/64", nil),
			node("n2", "10.0.0.2/24", "fd00::2/64", nil),
			reflector,
			node("n4", "10.0.0.4/24", "", map[string]string{api.AnnotationASNumber: "65001"}),
			{Meta: api.Meta{Name: "n5"}}, // its agent has not come up yet
		},
		Pools:      []api.IPPool{pool("192.168.0.0/16", 26), pool("fd99::/64", 122)},
		Affinities: []api.BlockAffinity{block("n2", "192.168.2.0/26"), block("n2", "fd99::/122")},
	}
}
