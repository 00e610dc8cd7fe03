package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kube"
)

// Defaults of BGPConfiguration.
const (
	defaultASN  = 64512
	defaultPort = 179
)

// Snapshot is what is known about this node and the cluster at one moment. The desired state is a function of it and of
// nothing else.
type Snapshot struct {
	// Self is this node.
	Self Self
	// Others are the nodes that have announced their address, ordered by name.
	Others []Member
	// Pools are ordered by CIDR.
	Pools []Pool
	// Blocks are the confirmed blocks of this node, in ascending order.
	Blocks []netip.Prefix
	// Owners has the address of the node that owns each other confirmed block, if the node has announced its address.
	Owners map[netip.Prefix]netip.Addr
	// ASN, Port and Mesh are the cluster's BGP settings.
	ASN  uint32
	Port uint16
	Mesh bool
	// Felix are the settings for packets.
	Felix Felix
}

// Self is this node as it finds itself.
type Self struct {
	Name string
	// Addr is the node's address with the prefix length of its subnet.
	Addr netip.Prefix
	// AddrSource says in words where that comes from.
	AddrSource string
	// Link is the name of the interface that has the address, LinkMTU its MTU.
	Link    string
	LinkMTU int
	// ASN overrides the cluster's AS number if not 0.
	ASN uint32
	// Labels are matched by the pools' node selectors.
	Labels map[string]string
	// Pods are the addresses that the kernel has routes to pods for.
	Pods []netip.Addr
	// TunnelAddr is the address of tunl0; invalid if none is assigned.
	TunnelAddr netip.Addr
	// TunnelMTU is the configured MTU of tunl0; 0 means automatic.
	TunnelMTU int
}

// Member is another node.
type Member struct {
	Name string
	Addr netip.Addr
	ASN  uint32 // 0 means the cluster's
}

// Pool is an IPPool as the agent sees it. A disabled pool still has pods.
type Pool struct {
	ipam.Pool
	IPIP        api.Encapsulation
	NATOutgoing bool
	NoExport    bool
}

// BuildSnapshot turns the World into a Snapshot. What cannot be understood is left out and returned as problems, each of
// which names the object: one broken object must not stop a node.
func BuildSnapshot(self Self, w kube.World) (Snapshot, []error) {
	s := Snapshot{Self: self, ASN: defaultASN, Port: defaultPort, Mesh: true}
	var problems []error
	note := func(err error) { problems = append(problems, err) }
	s.bgp(w.BGP)
	s.members(w.Nodes, note)
	s.pools(w.Pools, note)
	s.blocks(w.Affinities, note)
	return s, problems
}

func (s *Snapshot) bgp(c api.BGPConfigurationSpec) {
	if c.ASNumber != nil {
		s.ASN = *c.ASNumber
	}
	if c.ListenPort != 0 {
		s.Port = c.ListenPort
	}
	if c.NodeToNodeMeshEnabled != nil {
		s.Mesh = *c.NodeToNodeMeshEnabled
	}
}

func (s *Snapshot) members(nodes []api.Node, note func(error)) {
	for _, n := range nodes {
		asn, err := nodeASN(n.Annotations)
		if err != nil {
			note(fmt.Errorf("node %s: %w", n.Name, err))
		}
		if n.Name == s.Self.Name {
			s.Self.ASN, s.Self.Labels = asn, n.Labels
			continue
		}
		text, ok := n.Annotations[api.AnnotationIPv4Address]
		if !ok {
			continue // its agent has not come up yet
		}
		addr, err := netip.ParsePrefix(text)
		if err != nil {
			note(fmt.Errorf("node %s: annotation %s %q is no address with its prefix length", n.Name, api.AnnotationIPv4Address, text))
			continue
		}
		s.Others = append(s.Others, Member{Name: n.Name, Addr: addr.Addr(), ASN: asn})
	}
	slices.SortFunc(s.Others, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
}

// nodeASN reads a node's own AS number, 0 if it has none. calicoctl writes it in decimal.
func nodeASN(annotations map[string]string) (uint32, error) {
	text, ok := annotations[api.AnnotationASNumber]
	if !ok || text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("annotation %s %q is no AS number from 1 to 4294967295", api.AnnotationASNumber, text)
	}
	return uint32(n), nil
}

func (s *Snapshot) pools(pools []api.IPPool, note func(error)) {
	for _, p := range pools {
		parsed, err := ipam.ParsePool(&p)
		if err != nil {
			note(err)
			continue
		}
		mode := p.Spec.IPIPMode
		if mode == "" {
			mode = api.EncapNever
		}
		if p.Spec.VXLANMode != "" && p.Spec.VXLANMode != api.EncapNever {
			note(fmt.Errorf("IPPool %s: spec.vxlanMode %s is not supported: its packets travel without encapsulation", p.Name, p.Spec.VXLANMode))
		}
		s.Pools = append(s.Pools, Pool{
			Pool: parsed, IPIP: mode, NATOutgoing: p.Spec.NATOutgoing, NoExport: p.Spec.DisableBGPExport,
		})
	}
	slices.SortFunc(s.Pools, func(a, b Pool) int { return a.CIDR.Compare(b.CIDR) })
}

// blocks needs the members.
func (s *Snapshot) blocks(affinities []api.BlockAffinity, note func(error)) {
	s.Owners = map[netip.Prefix]netip.Addr{}
	for _, a := range affinities {
		if !a.Confirmed() || (a.Spec.Type != "" && a.Spec.Type != api.AffinityHost) {
			continue
		}
		cidr, err := netip.ParsePrefix(a.Spec.CIDR)
		if err != nil || cidr != cidr.Masked() {
			note(fmt.Errorf("BlockAffinity %s: spec.cidr %q is no CIDR with its host bits zero", a.Name, a.Spec.CIDR))
			continue
		}
		if a.Spec.Node == s.Self.Name {
			s.Blocks = append(s.Blocks, cidr)
		} else if i := slices.IndexFunc(s.Others, func(m Member) bool { return m.Name == a.Spec.Node }); i >= 0 {
			s.Owners[cidr] = s.Others[i].Addr
		}
	}
	slices.SortFunc(s.Blocks, netip.Prefix.Compare)
}

// poolOf returns the pool that a prefix lies in.
func (s *Snapshot) poolOf(p netip.Prefix) (Pool, bool) {
	i := slices.IndexFunc(s.Pools, func(pool Pool) bool {
		return pool.CIDR.Bits() <= p.Bits() && pool.CIDR.Contains(p.Addr())
	})
	if i < 0 {
		return Pool{}, false
	}
	return s.Pools[i], true
}
