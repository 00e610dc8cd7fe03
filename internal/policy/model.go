package policy

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// ID names a policy: of kind NetworkPolicy, ClusterNetworkPolicy, or one of Calico's.
type ID struct{ Kind, Namespace, Name string }

// Kinds of Calico's policies. The prefix distinguishes Calico's NetworkPolicy from Kubernetes'.
const (
	KindCalicoNetworkPolicy       = "CalicoNetworkPolicy"
	KindCalicoGlobalNetworkPolicy = "CalicoGlobalNetworkPolicy"
)

// String returns "NetworkPolicy default/web", or "ClusterNetworkPolicy admin" without a namespace.
func (id ID) String() string {
	if id.Namespace == "" {
		return id.Kind + " " + id.Name
	}
	return id.Kind + " " + id.Namespace + "/" + id.Name
}

// Direction is the direction of the packet that opens a connection, as the pod sees it.
type Direction uint8

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// String returns "ingress" or "egress".
func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Action is what a rule does with the packets that it matches.
type Action uint8

// The actions. Pass leaves the tier: the next tier that has a policy for the pod decides. Log decides nothing: the
// packet is logged, and the next rule decides.
const (
	Allow Action = iota
	Deny
	Pass
	Log
)

// countsUnsure reports whether a rule with the action matches addresses that may be a pod's as that pod's. Rules that
// allow or log do not.
func (a Action) countsUnsure() bool { return a == Deny || a == Pass }

// Tier is a list of policies that decide before the policies of later tiers. A tier counts for a pod and direction only
// if one of its policies selects the pod in that direction.
type Tier struct {
	Name string
	// Order: lower numbers come first; +Inf for a tier without one.
	Order float64
	// End is what happens to packets that no rule of the tier matches: Deny, or Pass.
	End Action
	// Missing: policies name the tier, but it does not exist. It comes after all other tiers, by name, and its End is
	// Deny.
	Missing bool
}

// The tiers of Kubernetes, by Calico's names: a Tier object of the same name does not change them. What no tier decides
// is allowed.
var (
	TierAdmin    = Tier{Name: "kube-admin", Order: 1000, End: Pass}
	TierDefault  = Tier{Name: "default", Order: 1_000_000, End: Deny} // also Calico's policies without a tier
	TierBaseline = Tier{Name: "kube-baseline", Order: 10_000_000, End: Pass}
)

// Policy is a policy of any kind. Invalid parts of its object are already closed, see Problems.
type Policy struct {
	ID
	Tier Tier
	// Order within the tier: lower numbers come first; +Inf for a policy without one. Policies of equal order come by the
	// name of Shown, then by namespace and kind.
	Order float64
	// Called is the name by which Calico's clients know the policy; empty: Name.
	Called  string
	Subject Pods
	// Forward: the policy counts also for what host endpoints forward. PreDNAT: it counts for host endpoints only, before
	// destinations are translated. NoTrack: it counts for host endpoints only, before connection tracking, and what it
	// allows is not tracked.
	Forward, PreDNAT, NoTrack bool
	// Applies holds the directions in which the policy counts at all; without rules it then allows nothing.
	Applies [2]bool
	Rules   [2][]Rule // by Direction
	// Problems are the invalid parts, each with field, value and remedy.
	Problems []string
}

// Pods selects pods with a network of their own, and, in a Match, network sets and host endpoints.
type Pods struct {
	// Namespace is the namespace of what is selected; empty: all namespaces that Namespaces matches.
	Namespace  string
	Namespaces selector.Selector // on the labels of the namespace
	Labels     selector.Selector
	// Calico: both selectors read labels as Calico shows them. A pod has projectcalico.org/namespace, .../orchestrator and
	// .../serviceaccount besides its own labels; a network set of a namespace has the first. Both have the labels of the
	// namespace under pcns., a pod also the labels of its service account under pcsa. Own labels with these names do not
	// count, see Belonging. A namespace, and a service account, has its name as the label projectcalico.org/name.
	Calico bool
	// Scope narrows the selection to what has no namespace. Only network sets and host endpoints have none; Namespaces
	// finds no labels for them.
	Scope Scope
	// Accounts are names of service accounts, one of which a pod must have; empty: any. AccountLabels selects on the
	// labels of the pod's service account; a pod without an account has none. ByAccount: all() in AccountLabels matches
	// only what has a service account.
	Accounts      []string
	AccountLabels selector.Selector
	ByAccount     bool
	// Owner, in a Match, is the namespace of the policy: some networks count for policies of their own namespace only. It
	// is not part of the identity.
	Owner string
}

// Scope restricts a selection by namespace.
type Scope uint8

// The scopes.
const (
	Everywhere Scope = iota
	Global
)

// Rule decides on the packets that match all its conditions: one of its peers, one of its ports, one of its source
// ports, and its own end.
type Rule struct {
	Name   string // may be empty
	Action Action
	// Family is the packet's: 4 or 6, or 0 for both.
	Family uint8
	// AnyPeer: any peer matches; otherwise only Peers match.
	AnyPeer bool
	Peers   []Peer
	// AnyPort: every protocol and port matches; otherwise only Ports match.
	AnyPort bool
	Ports   []Port
	// Except are ports that must not match.
	Except []Port
	// Sources are source ports, one of which must match; nil: any. None of ExceptSources may match. A name is the name of
	// a port that the source declares.
	Sources, ExceptSources []Port
	// HostPorts: names of ports include those that host endpoints declare, as in Calico's policies.
	HostPorts bool
	// Own matches the pod's own end: the destination of ingress, the source of egress; nil: any. All of the pod's
	// addresses of the packet's family must match, for a Deny one of them. While no address is known, a Deny that reads
	// addresses matches, and no other rule that reads addresses does.
	Own *Match
}

// Peer is the other end of a connection: pods, the addresses of nodes, a service, a Match, or a network.
type Peer struct {
	Pods    *Pods
	Nodes   *selector.Selector // on the labels of nodes
	Service *Service
	Match   *Match
	// Net and Except are used if all others are nil.
	Net    netip.Prefix // masked
	Except []netip.Prefix
}

// Match matches addresses that meet all its conditions.
type Match struct {
	Nets    []netip.Prefix // masked; nil: any address, empty: none
	NotNets []netip.Prefix // masked
	// Select selects pods, network sets and host endpoints that have the address; nil: any address.
	Select *Pods
	// Not: nothing that Select selects may have the address. Addresses of unknown owners match.
	Not bool
}

// Service is a Service as a peer: for egress its endpoints at their ports, for ingress their addresses.
type Service struct{ Namespace, Name string }

// Port matches ports. An ICMP or ICMPv6 message is the port type<<8 | code.
type Port struct {
	// Protocol is the IP protocol number; 0 with a Name: any protocol with which the endpoint declares the name.
	Protocol uint8
	// First and Last are inclusive. 0 to 65535 is the whole protocol, even one without ports.
	First, Last uint16
	// Name, if not empty, is the name of a port that the pod with the address declares, see also Rule.HostPorts.
	Name string
}

// Packet holds the fields of the first packet of a connection that policies read besides its addresses.
type Packet struct {
	Protocol uint8
	// Port is the destination port; for ICMP and ICMPv6 type<<8 | code. Port and SourcePort are 0 for other protocols
	// without ports.
	Port, SourcePort uint16
}

// State is the known state of the cluster.
type State struct {
	// Local are the pods of this node by the names of their links on the host. Pods holds all pods, local ones too.
	Local      map[string]PodKey
	Pods       map[PodKey]*Pod
	Namespaces map[string]map[string]string // their labels
	Nodes      map[string]Node
	Policies   []Policy
	// Objects that only Calico's policies read, in any order.
	Sets          []NetworkSet
	HostEndpoints []HostEndpoint
	Services      map[Service][]ServiceEndpoint
	// Accounts are labels of service accounts; nil: not known. An account that is missing has no labels, as in Calico.
	Accounts map[Account]map[string]string
	// Node is this node: its host endpoints are subjects. Interfaces are its links with their addresses, without loopback
	// and links of pods.
	Node       string
	Interfaces map[string][]netip.Addr
	Host       HostRules
	Handling   *Handling // nil: not known
}

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

// String returns "namespace/name".
func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// Pod is a pod with a network of its own that has not finished. It must not be changed.
type Pod struct {
	PodKey
	// Prefix is metadata.generateName, which pods of one owner share; empty: the pod has a name of its own.
	Prefix    string
	UID       string // as the runtime knows it
	Stated    bool   // the UID is from an annotation, as for static pods; a user may have written it
	Labels    map[string]string
	Account   string // the name of its service account
	Addresses []netip.Addr
	// Unsure are addresses that may be the pod's, or no pod's: they count as its own in Deny and Pass, and as no pod's in
	// Allow and Log. If an address of no pod, or one of several possible pods, is denied, the address is denied. A local
	// pod has none.
	Unsure []netip.Addr
	Ports  []NamedPort

	host *HostEndpoint // set if the Pod stands for a host endpoint as a subject
}

// NamedPort is a port that a container declares.
type NamedPort struct {
	Name     string
	Protocol uint8
	Port     uint16
}

// Node holds what policies read of a node.
type Node struct {
	Labels    map[string]string
	Addresses []netip.Addr
}

// NetworkSet is one of Calico's; a GlobalNetworkSet has no Namespace.
type NetworkSet struct {
	Namespace, Name string
	Labels          map[string]string
	Nets            []netip.Prefix // masked
	// Private are networks that count for policies of the set's namespace only, see FindSurplus. For others they count,
	// widened to Wide ranges with the addresses between them, where ignoring them would open something: in what Deny
	// selects, and in what Allow and Pass exclude.
	Private []netip.Prefix
	Wide    int
}

// HostEndpoint is one of Calico's: a node, or an interface of a node.
type HostEndpoint struct {
	Name      string
	Labels    map[string]string
	Addresses []netip.Addr
	Ports     []NamedPort
	// Node is the node on which it is a subject. Interface is a link, AllInterfaces, or empty for the link with one of the
	// Addresses.
	Node, Interface string
	// Allows: its profiles allow what no policy decides. AllowsWith is a namespace: its profile does so while the
	// namespace exists; empty: none.
	Allows     bool
	AllowsWith string
	// Inherits are the namespaces and service accounts that give it labels by its profiles; the first value of a label
	// counts.
	Inherits []Account
}

// ServiceEndpoint is an endpoint of a Service at one of its ports. Without a protocol it has only an address, which
// counts for ingress.
type ServiceEndpoint struct {
	Address  netip.Addr
	Protocol uint8
	Port     uint16
}

// Account names a service account.
type Account struct{ Namespace, Name string }

// Needs lists what a policy reads besides pods, namespaces, nodes, network sets and host endpoints.
type Needs struct {
	Services []Service
	Accounts bool // labels of service accounts
}

// Needs returns the needs of the subject and all rules.
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

// ReadsAccounts reports whether the match depends on labels of service accounts.
func (m *Match) ReadsAccounts() bool {
	return m != nil && m.Select != nil && m.Select.readsAccountLabels()
}
