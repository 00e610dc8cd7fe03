package policy

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// ID names a policy: of kind NetworkPolicy or ClusterNetworkPolicy.
type ID struct{ Kind, Namespace, Name string }

// String is "NetworkPolicy default/web", or "ClusterNetworkPolicy admin" without a namespace.
func (id ID) String() string {
	if id.Namespace == "" {
		return id.Kind + " " + id.Name
	}
	return id.Kind + " " + id.Namespace + "/" + id.Name
}

// Direction is that of the packet that opens a connection, as the pod sees it.
type Direction uint8

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// String is "ingress" or "egress".
func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Action is what a rule does with the packets that it matches.
type Action uint8

// The actions. Pass leaves the tier: the next tier that has a policy for the pod decides.
const (
	Allow Action = iota
	Deny
	Pass
)

// Tier is a list of policies that decide before those of later tiers. A tier counts for a pod and direction only if one of its policies
// selects the pod in that direction.
type Tier struct {
	Name string
	// Order: lower ones come first.
	Order float64
	// End is what happens to packets that no rule of the tier matches: Deny, or Pass.
	End Action
}

// The tiers of Kubernetes. What no tier decides is allowed.
var (
	TierAdmin    = Tier{"admin", 1000, Pass}
	TierDefault  = Tier{"default", 1_000_000, Deny} // NetworkPolicy
	TierBaseline = Tier{"baseline", 10_000_000, Pass}
)

// Policy is a policy of any kind. What was invalid in its object is already closed, see Problems.
type Policy struct {
	ID
	Tier Tier
	// Order within the tier: lower ones come first, equal ones by ID.
	Order   float64
	Subject Pods
	// Applies says for which directions the policy counts at all; without rules it then allows nothing.
	Applies [2]bool
	Rules   [2][]Rule // by Direction
	// Problems are what was invalid, each with field, value and remedy.
	Problems []string
}

// Pods selects pods with a network of their own.
type Pods struct {
	// Namespace is that of the pods; empty: all that Namespaces matches.
	Namespace  string
	Namespaces selector.Selector // on the labels of the namespace
	Labels     selector.Selector
}

// Rule decides on the packets that match one of its peers and one of its ports.
type Rule struct {
	Name   string // may be empty
	Action Action
	// Any peer matches if AnyPeer is set; else none matches unless it is in Peers.
	AnyPeer bool
	Peers   []Peer
	// AnyPort matches every protocol and port; else none matches unless it is in Ports.
	AnyPort bool
	Ports   []Port
}

// Peer is the other end of a connection: pods, or a network, or the addresses of nodes.
type Peer struct {
	Pods  *Pods
	Nodes *selector.Selector // on the labels of nodes
	// Net and Except are used if both others are nil.
	Net    netip.Prefix // masked
	Except []netip.Prefix
}

// Port matches ports of the destination.
type Port struct {
	// Protocol is the number of IP's protocol; 0 with a Name: the one that the pod declares.
	Protocol uint8
	// First and Last are both inclusive. 0 to 65535 is every port of the protocol, also of one that has none.
	First, Last uint16
	// Name, if not empty, is that of a port which the destination pod declares.
	Name string
}

// State is what is known of the cluster.
type State struct {
	// Local are the pods of this node by the names of their links on the host, peers and local ones alike are in Pods.
	Local      map[string]PodKey
	Pods       map[PodKey]*Pod
	Namespaces map[string]map[string]string // their labels
	Nodes      map[string]Node
	Policies   []Policy
}

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

// String is "namespace/name".
func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// Pod is a pod with a network of its own that has not finished. It must not be changed.
type Pod struct {
	PodKey
	UID       string
	Labels    map[string]string
	Addresses []netip.Addr
	Ports     []NamedPort
}

// NamedPort is a port that a container declares.
type NamedPort struct {
	Name     string
	Protocol uint8
	Port     uint16
}

// Node is a node's part in policies.
type Node struct {
	Labels    map[string]string
	Addresses []netip.Addr
}
