package peering

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/bgp/policy"
)

// Input is all that a decision on a node's sessions depends on.
type Input struct {
	Self Node
	// Others are the other nodes that have announced an address, ordered by name. If several have the same address the
	// first counts.
	Others []Node
	// ASN and Port are the defaults for nodes without their own; not 0.
	ASN  uint32
	Port uint16
	Mesh Mesh
	// Peers are the BGPPeers, in any order. Absent has the values of their spec.node that name no Node.
	Peers   []api.BGPPeer
	Absent  map[string]bool
	Secrets map[api.Place]Secret
	Filters []api.BGPFilter
	// Config is the cluster's BGPConfiguration, OwnConfig this node's: they define the communities to add.
	Config, OwnConfig api.BGPConfigurationSpec
	// MaxPrefixes is how many prefixes each peer may announce; 0 means the speaker's default.
	MaxPrefixes int
}

// Node is one node of the cluster.
type Node struct {
	Name string
	// Addr and Addr6 are its addresses; one of them may be invalid.
	Addr, Addr6 netip.Addr
	ASN         uint32 // 0 means the cluster's
	Port        uint16 // 0 means the cluster's
	// Reflector: its annotation makes it a route reflector, which is not part of the mesh. ClusterID is the annotation's
	// value; invalid if there is none.
	Reflector bool
	ClusterID netip.Addr
	Labels    map[string]string
}

// in returns the node's address in the family of a, which may be invalid.
func (n *Node) in(a netip.Addr) netip.Addr {
	if a.Is4() {
		return n.Addr
	}
	return n.Addr6
}

// addrs returns the node's addresses.
func (n *Node) addrs() []netip.Addr {
	var all []netip.Addr
	for _, a := range []netip.Addr{n.Addr, n.Addr6} {
		if a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

// Mesh has the fields of BGPConfiguration for the sessions that all nodes have with all others.
type Mesh struct {
	On       bool
	Password string
	// Restart is the announced time for which peers keep paths; 0 means the speaker's default.
	Restart time.Duration
	BFD     bfd.Config
	// Unknown: the mesh has a password that is not known yet, and so no sessions.
	Unknown bool
}

// Secret is a password, or why it is not known. It must never be logged or shown.
type Secret struct {
	Text string
	Err  error
	// Pending: the API server has not answered yet.
	Pending bool
}

// Decision is the result of Decide.
type Decision struct {
	// Peers are ordered by address. On replaces an address that stands for a router with the router's own.
	Peers []bgp.Peer
	// Sources is where each session comes from, by the peer's address.
	Sources map[netip.Addr]Source
	// Static are the routes to peers behind a gateway, ordered by peer.
	Static []Static
	// Import and Export are the rules of the BGPFilters by peer; a peer without rules has no entry.
	Import, Export map[netip.Addr]*policy.Rules
	// Aggregations is, by the peer's address, which prefixes replace blocks in announcements to it. Nodes of the cluster
	// have no entry.
	Aggregations map[netip.Addr]Aggregation
	// Tags are the communities to add to announcements.
	Tags []policy.Tag
	// ClusterID is this node's own as a route reflector; invalid if it is none.
	ClusterID netip.Addr
	// Unresolved are sessions that are not possible yet; see On.
	Unresolved []Unresolved
	// Problems are faults of objects, each a *Problem.
	Problems []error
}

// Aggregation names the kind of prefixes that a peer receives in place of the blocks in them; empty: none.
type Aggregation string

// Aggregations.
const (
	ByPool          Aggregation = "pools"                // CIDRs of IPPools
	ByAdvertisement Aggregation = "prefixAdvertisements" // CIDRs of BGPConfiguration's prefixAdvertisements
)

// Source is where a session comes from.
type Source struct {
	// Peer is the name of the BGPPeer; empty: the session is the mesh's.
	Peer string
	// Global: the BGPPeer is for all nodes.
	Global bool
	// Node is the name of the node at the other end; empty: the peer is not a node.
	Node string
	// Reverse: the BGPPeer gives the session to the other node; this is its other end.
	Reverse bool
}

// String is for people.
func (s Source) String() string {
	switch {
	case s.Peer == "":
		return "mesh"
	case s.Reverse:
		return fmt.Sprintf("BGPPeer %s, from the other end", s.Peer)
	}
	return "BGPPeer " + s.Peer
}

// Static is a route to a peer by a gateway.
type Static struct {
	Peer, Via netip.Addr
}

// Problem is a fault of an object. Its unaffected parts are in force.
type Problem struct {
	Kind api.Type
	Name string
	// Err names field, value and remedy, not the object.
	Err error
}

// Error implements error.
func (p *Problem) Error() string { return fmt.Sprintf("%s %s: %v", p.Kind.Kind, p.Name, p.Err) }

// Unwrap returns the error without the object's name.
func (p *Problem) Unwrap() error { return p.Err }
