package policy

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// ID names a policy: of kind NetworkPolicy, ClusterNetworkPolicy, or one of Calico's.
type ID struct{ Kind, Namespace, Name string }

// The kinds of Calico's policies; that of a NetworkPolicy is told apart from Kubernetes'.
const (
	KindCalicoNetworkPolicy       = "CalicoNetworkPolicy"
	KindCalicoGlobalNetworkPolicy = "CalicoGlobalNetworkPolicy"
)

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

// The actions. Pass leaves the tier: the next tier that has a policy for the pod decides. Log decides nothing: what it
// matches is logged, and the next rule is asked.
const (
	Allow Action = iota
	Deny
	Pass
	Log
)

// countsUnsure reports that a rule matches addresses which may be a pod's as the pod's. What would allow one because it
// is the pod's does not.
func (a Action) countsUnsure() bool { return a == Deny || a == Pass }

// Tier is a list of policies that decide before those of later tiers. A tier counts for a pod and direction only if one
// of its policies selects the pod in that direction.
type Tier struct {
	Name string
	// Order: lower ones come first; +Inf is that of a tier without one.
	Order float64
	// End is what happens to packets that no rule of the tier matches: Deny, or Pass.
	End Action
	// Missing: policies name the tier, but it does not exist. It comes after all others, by name, and its End is Deny.
	Missing bool
}

// The tiers of Kubernetes, as Calico calls them: no Tier object makes another one of the same name. What no tier
// decides is allowed.
var (
	TierAdmin    = Tier{Name: "kube-admin", Order: 1000, End: Pass}
	TierDefault  = Tier{Name: "default", Order: 1_000_000, End: Deny} // NetworkPolicy, and Calico's policies without a tier
	TierBaseline = Tier{Name: "kube-baseline", Order: 10_000_000, End: Pass}
)

// Policy is a policy of any kind. What was invalid in its object is already closed, see Problems.
type Policy struct {
	ID
	Tier Tier
	// Order within the tier: lower ones come first; +Inf is that of a policy without one. Equal ones come by name, of
	// Calico's kinds without the prefix "default.", then by namespace and kind.
	Order   float64
	Subject Pods
	// Forward: the policy counts for what host endpoints forward, too. PreDNAT: it counts for host endpoints alone, before
	// destinations are translated. NoTrack: likewise, before connections are tracked, and what it allows is not.
	Forward, PreDNAT, NoTrack bool
	// Applies says for which directions the policy counts at all; without rules it then allows nothing.
	Applies [2]bool
	Rules   [2][]Rule // by Direction
	// Problems are what was invalid, each with field, value and remedy.
	Problems []string
}

// Pods selects pods with a network of their own, and, in a Match, network sets and host endpoints.
type Pods struct {
	// Namespace is that of what is selected; empty: all that Namespaces matches.
	Namespace  string
	Namespaces selector.Selector // on the labels of the namespace
	Labels     selector.Selector
	// Calico: both selectors read labels as Calico shows them. A pod has projectcalico.org/namespace, .../orchestrator and
	// .../serviceaccount besides its own; a network set of a namespace has the first. Both have the labels of the
	// namespace under pcns., a pod those of its service account under pcsa. Own labels with these names do not count, see
	// Belonging. Of a namespace, its name is the label projectcalico.org/name, of a service account likewise.
	Calico bool
	// Scope narrows the selection to what has a namespace, or has none. Only network sets and host endpoints have none; to
	// Namespaces they have no labels.
	Scope Scope
	// Accounts are names of service accounts of which a pod has to have one; empty: any. AccountLabels is on the labels of
	// the pod's service account, of which there are none without one. ByAccount: all() is what has a service account
	// there.
	Accounts      []string
	AccountLabels selector.Selector
	ByAccount     bool
	// Owner is the namespace of the policy, in a Match, for whose policies alone some networks count. It is no part of the
	// identity.
	Owner string
}

// Scope says where something is that is selected.
type Scope uint8

// The scopes.
const (
	Everywhere Scope = iota
	Global
)

// Rule decides on the packets that match all that it gives: one of its peers, one of its ports, one of its sources'
// ports, its own end.
type Rule struct {
	Name   string // may be empty
	Action Action
	// Family is that of the packet: 4 or 6, or 0 for both.
	Family uint8
	// Any peer matches if AnyPeer is set; else none matches unless it is in Peers.
	AnyPeer bool
	Peers   []Peer
	// AnyPort matches every protocol and port; else none matches unless it is in Ports.
	AnyPort bool
	Ports   []Port
	// Except are ports none of which may match.
	Except []Port
	// Sources are ports of the source of which one must match; nil: any. Of ExceptSources none may match. A name is that
	// of a port which the source declares.
	Sources, ExceptSources []Port
	// HostPorts: names of ports are those that host endpoints declare, too, as in Calico's policies.
	HostPorts bool
	// Own is the pod's own end: the destination of ingress, the source of egress; nil: any. All addresses that the pod has
	// of the packet's family have to match, or of a Deny one of them. If none is known yet, what reads addresses denies,
	// and does nothing else.
	Own *Match
}

// Peer is the other end of a connection: pods, the addresses of nodes, a service, all that a Match says, or a network.
type Peer struct {
	Pods    *Pods
	Nodes   *selector.Selector // on the labels of nodes
	Service *Service
	Match   *Match
	// Net and Except are used if all others are nil.
	Net    netip.Prefix // masked
	Except []netip.Prefix
}

// Match matches addresses to which all applies that it gives.
type Match struct {
	Nets    []netip.Prefix // masked; nil: any address, empty: none
	NotNets []netip.Prefix // masked
	// Select selects pods, network sets and host endpoints that have the address; nil: any address.
	Select *Pods
	// Not: nothing that Select selects may have the address. Addresses of nothing that is known match.
	Not bool
}

// Service is a Service as a peer: of egress its endpoints at their ports, of ingress their addresses.
type Service struct{ Namespace, Name string }

// Port matches ports. Those of ICMP and ICMPv6 are type<<8 | code.
type Port struct {
	// Protocol is the number of IP's protocol; 0 with a Name: the one that the endpoint declares.
	Protocol uint8
	// First and Last are both inclusive. 0 to 65535 is every port of the protocol, also of one that has none.
	First, Last uint16
	// Name, if not empty, is that of a port which the pod declares that has the address, see also Rule.HostPorts.
	Name string
}

// Packet is what policies read of the first packet of a connection besides its addresses.
type Packet struct {
	Protocol uint8
	// Port is that of the destination; of ICMP and ICMPv6 type<<8 | code; 0 for other protocols without ports, as is
	// SourcePort.
	Port, SourcePort uint16
}

// State is what is known of the cluster.
type State struct {
	// Local are the pods of this node by the names of their links on the host, peers and local ones alike are in Pods.
	Local      map[string]PodKey
	Pods       map[PodKey]*Pod
	Namespaces map[string]map[string]string // their labels
	Nodes      map[string]Node
	Policies   []Policy
	// What only Calico's policies read. The order has no meaning.
	Sets          []NetworkSet
	HostEndpoints []HostEndpoint
	Services      map[Service][]ServiceEndpoint
	// Accounts are labels of service accounts; nil: they are not known. One that is missing has none, as to Calico.
	Accounts map[Account]map[string]string
	// Node is this node, whose host endpoints are subjects; Interfaces are its links that are no pod's, and not loopback,
	// with their addresses.
	Node       string
	Interfaces map[string][]netip.Addr
	Host       HostRules
	Handling   *Handling // nil: not known
}

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

// String is "namespace/name".
func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// Pod is a pod with a network of its own that has not finished. It must not be changed.
type Pod struct {
	PodKey
	// Prefix of the name is what pods of the same owner share: metadata.generateName. Empty: the name is the pod's own.
	Prefix    string
	UID       string // that the runtime is given
	Stated    bool   // the UID is an annotation's, as of static pods, which a user may have written
	Labels    map[string]string
	Account   string // the name of its service account
	Addresses []netip.Addr
	// Unsure are addresses that may be the pod's, or nobody's: they count for it in Deny and Pass, and for no pod in Allow
	// and Log. What is denied to nobody's address, or to one of several pods that may have it, is denied to the address.
	// Of a local pod there are none.
	Unsure []netip.Addr
	Ports  []NamedPort

	host *HostEndpoint // that the pod stands for as a subject; nil: none
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

// NetworkSet is one of Calico's, which has no Namespace if it is a global one.
type NetworkSet struct {
	Namespace, Name string
	Labels          map[string]string
	Nets            []netip.Prefix // masked
	// Private are networks that count for policies of its namespace alone, see FindSurplus. Where those of others would be
	// open without, they count as so many ranges, with the addresses between them: for what Deny selects, and what Allow
	// and Pass exclude.
	Private []netip.Prefix
	Wide    int
}

// HostEndpoint is one of Calico's: a node, or one of its interfaces.
type HostEndpoint struct {
	Name      string
	Labels    map[string]string
	Addresses []netip.Addr
	Ports     []NamedPort
	// Node is where it is a subject. Interface is a link, AllInterfaces, or empty: then it is that with one of the
	// Addresses.
	Node, Interface string
	// Allows: its profiles allow what no policy decides. AllowsWith is the namespace whose profile does so as long as
	// there is one; empty: none.
	Allows     bool
	AllowsWith string
	// Inherits are the namespaces, and service accounts, whose labels it has by its profiles; of a label that several have
	// the first counts.
	Inherits []Account
}

// ServiceEndpoint is an endpoint of a Service at one of its ports. Without a protocol it has an address only, which
// counts for ingress.
type ServiceEndpoint struct {
	Address  netip.Addr
	Protocol uint8
	Port     uint16
}

// Account names a service account.
type Account struct{ Namespace, Name string }

// Needs are what decides on a policy besides pods, namespaces, nodes, network sets and host endpoints.
type Needs struct {
	Services []Service
	Accounts bool // labels of service accounts
}

// Needs looks into the subject and all rules.
func (p *Policy) Needs() Needs {
	n := Needs{Accounts: p.Subject.readsAccountLabels()}
	for _, rule := range slices.Concat(p.Rules[Ingress], p.Rules[Egress]) {
		n.Accounts = n.Accounts || rule.Own.ReadsAccounts()
		for _, peer := range rule.Peers {
			n.Accounts = n.Accounts || peer.Match.ReadsAccounts()
			if peer.Service != nil {
				n.Services = append(n.Services, *peer.Service)
			}
		}
	}
	return n
}

// ReadsAccounts reports whether labels of service accounts decide.
func (m *Match) ReadsAccounts() bool {
	return m != nil && m.Select != nil && m.Select.readsAccountLabels()
}
