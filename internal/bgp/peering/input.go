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

// Input is all that decides on a node's sessions.
type Input struct {
	Self Node
	// Others are the other nodes that have announced an address, ordered by name: of several with one address the first
	// counts.
	Others []Node
	// ASN and Port are those of nodes that have none of their own; not 0.
	ASN  uint32
	Port uint16
	Mesh Mesh
	// Peers are the BGPPeers, in any order. Absent are the names in their spec.node that no Node has.
	Peers   []api.BGPPeer
	Absent  map[string]bool
	Secrets map[api.Place]Secret
	Filters []api.BGPFilter
	// Config is the cluster's BGPConfiguration, OwnConfig this node's: they say which communities are added.
	Config, OwnConfig api.BGPConfigurationSpec
	// MaxPrefixes is how many prefixes each peer may announce; 0 is the speaker's default.
	MaxPrefixes int
}

// Node is one node of the cluster.
type Node struct {
	Name string
	// Addr and Addr6 are its addresses; one of them may be invalid.
	Addr, Addr6 netip.Addr
	ASN         uint32 // 0 means the cluster's
	Port        uint16 // 0 means the cluster's
	// Reflector: its annotation makes it a route reflector, which is no part of the mesh. ClusterID is whose; it is invalid
	// if the annotation has none.
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
	// Restart is for how long peers are asked to keep paths; 0 is the speaker's default.
	Restart time.Duration
	BFD     bfd.Config
	// Unknown: there is to be a password, and it is not known yet. Then there can be no mesh.
	Unknown bool
}

// Secret is a password, or why it is not known. It is never to be logged or shown.
type Secret struct {
	Text string
	Err  error
	// Pending: the API server has been asked, and has not answered yet.
	Pending bool
}

// Decision is the result of an Input.
type Decision struct {
	// Peers are ordered by address. On puts the address of a router in the place of one that has to be learned.
	Peers []bgp.Peer
	// Sources says of each of them why it is there.
	Sources map[netip.Addr]Source
	// Static are the routes by which peers are reached, ordered by peer.
	Static []Static
	// Import and Export are the rules of the BGPFilters for each peer that has some, by its address.
	Import, Export map[netip.Addr]*policy.Rules
	// Aggregations has each peer, by its address, that is to be announced larger prefixes in place of blocks. No node of
	// the cluster is among them.
	Aggregations map[netip.Addr]Aggregation
	// Tags are added to what is announced.
	Tags []policy.Tag
	// ClusterID is this node's own as a route reflector; invalid if it is none.
	ClusterID netip.Addr
	// Unresolved are sessions that cannot be had for now; see On.
	Unresolved []Unresolved
	// Problems are faults of objects, each a *Problem.
	Problems []error
}

// Aggregation says which prefixes a peer is announced in place of the blocks in them; empty: none.
type Aggregation string

// Aggregations.
const (
	ByPool          Aggregation = "pools"                // those of IPPools
	ByAdvertisement Aggregation = "prefixAdvertisements" // those of BGPConfiguration's prefixAdvertisements
)

// Source says where a session comes from.
type Source struct {
	// Peer is the name of the BGPPeer; empty: it is the mesh's.
	Peer string
	// Global: the BGPPeer is for all nodes.
	Global bool
	// Node is the name of the node at the other end; empty: it is none.
	Node string
	// Reverse: the BGPPeer is about the other node, and this session is its other end.
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

// Static is a route to one address.
type Static struct {
	Peer, Via netip.Addr
}

// Problem is a fault of an object. Parts that it does not affect are in force.
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
