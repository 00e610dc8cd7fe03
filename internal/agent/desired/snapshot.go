package desired

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/cluster/services"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// Calico's defaults.
const (
	defaultASN  uint32 = 64512
	defaultPort uint16 = 179
)

// Snapshot is the state of this node and the cluster at one moment. The desired state is a function of it alone.
type Snapshot struct {
	// build is the number of the View's Base. As the first field it ends reflect.DeepEqual early if two builds differ.
	build uint64
	// Self is this node.
	Self Self
	// Others are the nodes that have announced an address, ordered by name.
	Others []Member
	// Pools are ordered by CIDR.
	Pools []Pool
	// Blocks are the confirmed blocks of this node, in ascending order.
	Blocks []netip.Prefix
	// Owners has the node that owns each other confirmed block.
	Owners map[netip.Prefix]Owner
	// ASN, Port and Mesh are the cluster's BGP settings; Port is this node's own port if set.
	ASN  uint32
	Port uint16
	Mesh bool
	// Felix are the settings for packets.
	Felix Felix
	// Services are the prefixes that this node announces for services. Nothing learned inside of ServiceRanges may become
	// a route of this node: it serves these addresses itself. Both are in ascending order.
	Services, ServiceRanges []netip.Prefix

	// Peering is the decision on this node's sessions.
	Peering peering.Decision
	// disowned are, by node, the annotations with keys that belong to other nodes; see ToKeep.
	disowned map[string][]string
	// Aggregates are, by peer, the prefixes announced in place of blocks; see Aggregate.
	Aggregates map[netip.Addr]policy.Aggregates

	group    groups.Group // API group of Calico's objects
	meshPort uint16       // of nodes without a port of their own
	peers    peerObjects
	settings settings
	served   services.Config
	// ServicesKnown: services have been read, or are not needed.
	ServicesKnown bool
	priorities    priorities
	index         index
	networks      *localNetworks // made on first use
	crypt         [2]crypt       // of WireGuard over IPv4 and IPv6
	// Unsure are the objects that must be read before all can be decided.
	Unsure Unsure
}

// Self is what this node finds of itself.
type Self struct {
	Name string
	// Addr is the node's IPv4 address with the prefix length of its subnet; invalid on a node with IPv6 alone.
	Addr netip.Prefix
	// AddrSource describes the origin of Addr, for people.
	AddrSource string
	// Link is the name of the interface that has the address, LinkMTU its MTU.
	Link    string
	LinkMTU int
	// Addr6 and the next three fields are the same for IPv6; invalid on a node with IPv4 alone.
	Addr6       netip.Prefix
	AddrSource6 string
	Link6       string
	LinkMTU6    int
	// Found are all addresses of the host, with the reasons for and against each.
	Found []nodeaddr.Candidate
	// Internal are the InternalIPs in the Node's status, APIServer the addresses of the API server, Gateways the next hops
	// of the host's own routes.
	Internal, APIServer, Gateways []netip.Addr
	// ASN overrides the cluster's AS number if not 0.
	ASN uint32
	// Labels are matched by selectors of nodes.
	Labels map[string]string
	// Reflector: an operator made this node a route reflector, outside of the mesh, with ClusterID. That is invalid if the
	// annotation is.
	Reflector bool
	ClusterID netip.Addr
	// Pods are the addresses of pods to which the kernel has routes, in ascending order.
	Pods []netip.Addr
	// Floating are the floating addresses of pods, in ascending order; see Floats.
	Floating []Floating
	// Sources are the additional source prefixes of pods, which FelixConfiguration must allow.
	Sources []guard.Source
	// TunnelAddr is the address of tunl0; invalid if none is assigned.
	TunnelAddr netip.Addr
	// VTEP and VTEP6 are the addresses of vxlan.calico and vxlan-v6.calico, invalid as TunnelAddr. MAC and MAC6 are their
	// MACs in the Node's annotations, zero if derived from its name.
	VTEP, VTEP6 netip.Addr
	MAC, MAC6   vxlan.MAC
	// WireGuard and WireGuard6 are the addresses of wireguard.cali and wg-v6.cali, invalid as TunnelAddr.
	WireGuard, WireGuard6 netip.Addr
	// RequireEncryption: with WireGuard on, nothing unencrypted is sent to pods of other nodes.
	RequireEncryption bool
	// NoWireGuard: this kernel has no WireGuard, so there are no devices, whatever the configuration.
	NoWireGuard bool
	// RotateKeys: the keys of WireGuard over IPv4 and IPv6 must be changed. The devices have had them since KeySince.
	RotateKeys [2]bool
	KeySince   [2]time.Time
	// ChecksumsBroken: this kernel computes wrong checksums of tunneled packets with checksum offload.
	ChecksumsBroken bool
	// TunnelMTU is the MTU of tunl0 from the environment; 0 means that FelixConfiguration or the link decides.
	TunnelMTU int
	// RouterID and MaxPrefixes are BGP settings of the environment.
	RouterID    string
	MaxPrefixes int
}

// addrs returns the node's addresses, of one family or of both.
func (s *Self) addrs() []netip.Addr {
	var all []netip.Addr
	for _, p := range []netip.Prefix{s.Addr, s.Addr6} {
		if p.IsValid() {
			all = append(all, p.Addr())
		}
	}
	return all
}

// towards returns the node's address, with its subnet, and its link, in the family of a.
func (s *Self) towards(a netip.Addr) (addr netip.Prefix, link string) {
	if a.Is4() {
		return s.Addr, s.Link
	}
	return s.Addr6, s.Link6
}

// Member is another node.
type Member struct {
	Name string
	// Addr and Addr6 are its addresses; one of them may be invalid.
	Addr, Addr6 netip.Addr
	ASN         uint32 // 0 means the cluster's
	Port        uint16 // 0 means the cluster's
	// Reflector and ClusterID are as in Self.
	Reflector bool
	ClusterID netip.Addr
	Labels    map[string]string
	// VTEP and VTEP6 are its VXLAN tunnel endpoints. Tunneled: it has announced an address of tunl0.
	VTEP, VTEP6 VTEP
	Tunneled    bool
	// Keys are its public keys for WireGuard over IPv4 and IPv6; zero: no key of its own.
	Keys [2]wireguard.Key
	// Next are the keys that it changes to, or changed to last; zero: it takes no part in key changes.
	Next [2]wireguard.Key
}

// In returns the member's address in the family of a, which may be invalid.
func (m Member) In(a netip.Addr) netip.Addr {
	if a.Is4() {
		return m.Addr
	}
	return m.Addr6
}

// Owner is the node that owns a block.
type Owner struct {
	Node string
	// Addr is the owner's address in the block's family; invalid if the node does not exist or has not announced one.
	Addr netip.Addr
}

// Pool is an IPPool as the agent sees it. A disabled pool still has pods.
type Pool struct {
	ipam.Pool
	IPIP, VXLAN api.Encapsulation // at most one differs from Never
	Former      former            // the encapsulation before, while that matters
	NATOutgoing bool
	NoExport    bool
	UID         string
}

// servicesOnly reports whether only Services get addresses of the pool.
func (p *Pool) servicesOnly() bool {
	return !slices.ContainsFunc(p.Uses, func(u api.AllowedUse) bool { return u != api.UseLoadBalancer })
}

// index looks up nodes, blocks and addresses of a Snapshot.
type index struct {
	byAddr   map[netip.Addr]int          // place in Others
	byName   map[string]int              // place in Others
	reflect  []int                       // places in Others of route reflectors
	nested   bool                        // one pool lies in another
	addrs    []netip.Addr                // of Others, in ascending order
	tunnels  map[netip.Addr]string       // the node by the address of its tunnel device, if in its block
	covered  map[netip.Prefix]netip.Addr // blocks with an address that certainly is another node's
	twins    map[netip.Addr]string       // nodes with an address of this one in their InternalIPs
	lengths4 []int                       // of blocks
	lengths6 []int
}

// Build turns the state of the cluster into a Snapshot. Unreadable objects are left out and returned as problems that
// name them: one broken object must not stop a node.
func Build(self Self, w state.Cluster) (Snapshot, []error) { return build(self, w, Evidence{}) }

// build is Build with the evidence that decides between contradicting nodes.
func build(self Self, w state.Cluster, ev Evidence) (Snapshot, []error) {
	s := Snapshot{Self: self, ASN: defaultASN, Mesh: true, group: w.Group}
	var problems []error
	note := func(err error) { problems = append(problems, err) }
	s.bgp(w)
	s.peers = peersOf(w)
	if w.Self != nil {
		s.self(*w.Self, note)
		s.Self.Internal = w.Self.InternalIPs()
	}
	s.members(w, &ev, note)
	s.pools(w.Pools, note)
	s.blocks(w.Affinities, &ev, note)
	s.tunnelAddresses(w.Nodes)
	s.checkVTEPs(w.Nodes, &ev, note)
	s.checkKeys(w.Nodes, &ev, note)
	s.coverMembers(&ev, note)
	return s, problems
}

// As returns the snapshot with other facts about this node; facts from the cluster stay.
func (s Snapshot) As(self Self) Snapshot {
	self.Labels, self.Reflector, self.ClusterID, self.MAC, self.MAC6 = s.Self.Labels, s.Self.Reflector,
		s.Self.ClusterID, s.Self.MAC, s.Self.MAC6
	self.Internal = s.Self.Internal
	if self.ASN == 0 {
		self.ASN = s.Self.ASN
	}
	s.Self, s.networks = self, nil
	return s
}

func (s *Snapshot) bgp(w state.Cluster) {
	s.priorities = prioritiesOf(w.BGP)
	if w.BGP.ASNumber != nil {
		s.ASN = *w.BGP.ASNumber
	}
	s.meshPort = cmp.Or(w.BGP.ListenPort, defaultPort)
	s.Port = cmp.Or(w.OwnBGP.ListenPort, s.meshPort)
	if w.BGP.NodeToNodeMeshEnabled != nil {
		s.Mesh = *w.BGP.NodeToNodeMeshEnabled
	}
}

// self reads the Node of this node.
func (s *Snapshot) self(n api.Node, note func(error)) {
	s.Self.Labels = labelsOf(n, note)
	s.Self.ClusterID, s.Self.Reflector = clusterID(n, note)
	s.Self.MAC, s.Self.MAC6 = ownMAC(n, api.AnnotationVXLANMAC, note), ownMAC(n, api.AnnotationVXLANMACv6, note)
	if s.Self.ASN != 0 {
		return
	}
	asn, err := nodeASN(n.Annotations)
	if err != nil {
		note(inNode(n.Name, err))
	}
	s.Self.ASN = asn
}

func (s *Snapshot) members(w state.Cluster, ev *Evidence, note func(error)) {
	for _, n := range w.Nodes {
		if n.Name == s.Self.Name {
			s.self(n, note)
			continue
		}
		asn, err := nodeASN(n.Annotations)
		if err != nil {
			note(inNode(n.Name, err))
		}
		m := Member{
			Name: n.Name, ASN: asn, Port: w.Ports[n.Name], Labels: labelsOf(n, note),
			Addr:  announced(n, api.AnnotationIPv4Address, nodeaddr.IPv4, note),
			Addr6: announced(n, api.AnnotationIPv6Address, nodeaddr.IPv6, note),
			VTEP:  vtep(n, false, note), VTEP6: vtep(n, true, note), Tunneled: n.Annotations[api.AnnotationIPv4TunnelAddr] != "",
		}
		m.ClusterID, m.Reflector = clusterID(n, note)
		m.Keys, m.Next = keysOf(n, KeyAnnotations, note), keysOf(n, NextKeyAnnotations, note)
		if m.Addr.IsValid() || m.Addr6.IsValid() { // else its agent has not come up yet
			s.Others = append(s.Others, m)
		}
	}
	slices.SortFunc(s.Others, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	s.checkAddresses(w, ev, note)
	s.indexMembers()
}

// indexMembers indexes members by name and by address.
func (s *Snapshot) indexMembers() {
	s.index.byName = make(map[string]int, len(s.Others))
	s.index.byAddr = make(map[netip.Addr]int, len(s.Others))
	for i, m := range s.Others {
		s.index.byName[m.Name] = i
		if m.Reflector {
			s.index.reflect = append(s.index.reflect, i)
		}
		for _, a := range m.addrs() {
			s.index.byAddr[a] = i
			s.index.addrs = append(s.index.addrs, a)
		}
	}
	slices.SortFunc(s.index.addrs, netip.Addr.Compare)
}

// inNode returns an error about a Node.
func inNode(name string, err error) error {
	return InObject((*api.Node)(nil).ResourceType(), api.Meta{Name: name}, err)
}

// announced reads an address that a node has announced; invalid if there is none.
func announced(n api.Node, annotation string, f nodeaddr.Family, note func(error)) netip.Addr {
	text, ok := n.Annotations[annotation]
	if !ok || text == "" {
		return netip.Addr{}
	}
	addr, err := netip.ParsePrefix(text)
	if err != nil || addr.Addr().Is4() != (f == nodeaddr.IPv4) || addr.Addr().Is4In6() {
		note(inNode(n.Name, fmt.Errorf("annotation %s %q is no %s address with its prefix length", annotation, cut(text), f)))
		return netip.Addr{}
	}
	// An address that the kernel refuses as a neighbour or a source would fail the passes of this node.
	if why := nodeaddr.Unusable(addr.Addr()); why != "" {
		note(inNode(n.Name, fmt.Errorf("annotation %s %s cannot be a node's address: it is %s", annotation, addr, why)))
		return netip.Addr{}
	}
	return addr.Addr()
}

// nodeASN reads a node's own AS number, 0 if it has none.
func nodeASN(annotations map[string]string) (uint32, error) {
	text, ok := annotations[api.AnnotationASNumber]
	if !ok || text == "" {
		return 0, nil
	}
	n, err := config.ParseASN(text)
	if err != nil {
		return 0, fmt.Errorf("annotation %s %q %w", api.AnnotationASNumber, cut(text), err)
	}
	return n, nil
}

func (s *Snapshot) pools(pools []api.IPPool, note func(error)) {
	for i, parsed := range ipam.ParsePools(pools) {
		p := pools[i]
		if parsed.Err != nil {
			note(InObject(p.ResourceType(), p.Meta, errors.Unwrap(parsed.Err))) // which names the object too
			continue
		}
		ipip, vxlan := encapsulation(p, parsed.CIDR.Addr().Is6(), note)
		s.Pools = append(s.Pools, Pool{
			Pool: parsed, IPIP: ipip, VXLAN: vxlan, NATOutgoing: p.Spec.NATOutgoing, NoExport: p.Spec.DisableBGPExport, UID: p.UID,
		})
	}
	slices.SortFunc(s.Pools, func(a, b Pool) int { return a.CIDR.Compare(b.CIDR) })
	for i := 1; i < len(s.Pools); i++ {
		s.index.nested = s.index.nested || s.Pools[i-1].CIDR.Overlaps(s.Pools[i].CIDR)
	}
}

// blocks needs the members and the pools. The API server allows each node claims in its own name, so a faulty node or a
// stolen token may claim free blocks or blocks of others. A claim with the size of its pool's blocks counts at once; of
// two the claim confirmed by the IPAMBlock, else the first. A claim of another size is left from a former blockSize and
// counts if its IPAMBlock exists; it is not older than that. Only this node can write its own claims.
func (s *Snapshot) blocks(affinities []api.BlockAffinity, ev *Evidence, note func(error)) {
	s.Owners = make(map[netip.Prefix]Owner, len(affinities))
	claimed := make(map[netip.Prefix]string, len(affinities)) // to the node
	claims, odd := s.sized(confirmed(affinities, note), ev)
	for _, c := range claims {
		s.claim(claimed, c, ev, note)
	}
	for _, c := range odd {
		pool, in := s.poolOf(c.cidr)
		switch _, node := s.firstClaim(claimed, c.cidr); {
		case node == c.Spec.Node: // a part of its own block
			s.claim(claimed, c, ev, note)
		case in:
			note(InObject(c.ResourceType(), c.Meta, fmt.Errorf("spec.cidr %s of node %s is no block of IPPool %s (/%d), and there is no IPAMBlock "+
				"of that size for the node: nothing is sent there: remove the claim", c.cidr, c.Spec.Node, pool.Name, pool.BlockBits)))
		}
	}
	slices.SortFunc(s.Blocks, netip.Prefix.Compare)
}

// claim adds a claim, unless its block was claimed before.
func (s *Snapshot) claim(claimed map[netip.Prefix]string, c claimOfBlock, ev *Evidence, note func(error)) {
	if first, node := s.firstClaim(claimed, c.cidr); node != "" && node != c.Spec.Node {
		if first != c.cidr || !s.contest(c, node, ev) {
			note(InObject(c.ResourceType(), c.Meta, fmt.Errorf(
				"block %s of node %s is, or lies in, %s, which node %s claimed before: remove the wrong one", c.cidr, c.Spec.Node, first, node)))
			return
		}
		note(InObject(c.ResourceType(), api.Meta{Name: names.Affinity(node, c.cidr)}, fmt.Errorf(
			"block %s of node %s is node %s's, by its IPAMBlock or by what was known before: remove the wrong one", c.cidr, node, c.Spec.Node)))
	}
	claimed[c.cidr] = c.Spec.Node
	s.indexLength(c.cidr)
	if c.Spec.Node == s.Self.Name {
		s.Blocks = append(s.Blocks, c.cidr)
		return
	}
	owner := Owner{Node: c.Spec.Node}
	if i, ok := s.index.byName[c.Spec.Node]; ok {
		owner.Addr = s.Others[i].In(c.cidr.Addr())
	}
	s.Owners[c.cidr] = owner
}

// contest reports whether a claim replaces another node's earlier claim to the same block: the IPAMBlock decides about
// the owner. Without an IPAMBlock, the owner known before counts: a claim may be older than its block.
func (s *Snapshot) contest(c claimOfBlock, before string, ev *Evidence) bool {
	s.Unsure.Blocks = append(s.Unsure.Blocks, BlockClaim{c.cidr, before}, BlockClaim{c.cidr, c.Spec.Node})
	if record, known := ev.Blocks[c.cidr]; known {
		if record.Node != c.Spec.Node {
			return false
		}
	} else if !s.had(ev, c.cidr, c.Spec.Node) || s.had(ev, c.cidr, before) {
		return false
	}
	delete(s.Owners, c.cidr)
	s.Blocks = slices.DeleteFunc(s.Blocks, func(b netip.Prefix) bool { return b == c.cidr })
	return true
}

// claimOfBlock is a confirmed BlockAffinity.
type claimOfBlock struct {
	*api.BlockAffinity
	cidr netip.Prefix
	age  string // when it began to count
}

// confirmed returns the confirmed claims of nodes.
func confirmed(affinities []api.BlockAffinity, note func(error)) []claimOfBlock {
	claims := make([]claimOfBlock, 0, len(affinities))
	for i := range affinities {
		a := &affinities[i]
		if !a.Confirmed() || (a.Spec.Type != "" && a.Spec.Type != api.AffinityHost) {
			continue
		}
		cidr, err := netip.ParsePrefix(a.Spec.CIDR)
		if err != nil || cidr != cidr.Masked() {
			note(InObject(a.ResourceType(), a.Meta, fmt.Errorf("spec.cidr %q is no CIDR with its host bits zero", cut(a.Spec.CIDR))))
			continue
		}
		claims = append(claims, claimOfBlock{a, cidr, a.CreationTimestamp})
	}
	return claims
}

// sized returns the claims that may count, and the other claims of an odd size, each the oldest first.
func (s *Snapshot) sized(all []claimOfBlock, ev *Evidence) (claims, odd []claimOfBlock) {
	claims = all[:0]
	for _, c := range all {
		if c.Spec.Node == s.Self.Name || s.isBlock(c.cidr) {
			claims = append(claims, c)
			continue
		}
		if _, in := s.poolOf(c.cidr); in {
			s.Unsure.Blocks = append(s.Unsure.Blocks, BlockClaim{c.cidr, c.Spec.Node})
		}
		if record, known := ev.Blocks[c.cidr]; known && record.Node == c.Spec.Node {
			c.age = max(c.age, record.Created) // the API server's times have one form, which sorts
			claims = append(claims, c)
			continue
		}
		odd = append(odd, c)
	}
	order := func(a, b claimOfBlock) int {
		return cmp.Or(strings.Compare(a.age, b.age), strings.Compare(a.Name, b.Name))
	}
	slices.SortFunc(claims, order)
	slices.SortFunc(odd, order)
	return claims, odd
}

// isBlock reports whether a prefix has the block size of a pool that it lies in.
func (s *Snapshot) isBlock(cidr netip.Prefix) bool {
	pool, in := s.poolOf(cidr)
	if !in || pool.BlockBits == cidr.Bits() || !s.index.nested {
		return in && pool.BlockBits == cidr.Bits()
	}
	return slices.ContainsFunc(s.Pools, func(p Pool) bool { return inside(cidr, p.CIDR) && p.BlockBits == cidr.Bits() })
}

// firstClaim returns the claim that equals or contains a block, and its node. A claim that is larger than its pool's
// blocks contains nothing: it could cover the whole pool.
func (s *Snapshot) firstClaim(claimed map[netip.Prefix]string, cidr netip.Prefix) (first netip.Prefix, node string) {
	for _, bits := range *s.index.lengths(cidr.Addr()) {
		if bits > cidr.Bits() {
			continue
		}
		around := netip.PrefixFrom(cidr.Addr(), bits).Masked()
		owner, ok := claimed[around]
		if !ok {
			continue
		}
		if pool, in := s.poolOf(around); bits == cidr.Bits() || in && bits >= pool.BlockBits {
			return around, owner
		}
	}
	return netip.Prefix{}, ""
}

// lengths returns the prefix lengths of blocks in the family of a.
func (i *index) lengths(a netip.Addr) *[]int {
	if a.Is6() {
		return &i.lengths6
	}
	return &i.lengths4
}

// indexLength adds the length of a block to the index.
func (s *Snapshot) indexLength(block netip.Prefix) {
	lengths := s.index.lengths(block.Addr())
	if !slices.Contains(*lengths, block.Bits()) {
		*lengths = append(*lengths, block.Bits())
	}
}

// owns reports whether a confirmed block is this node's.
func (s *Snapshot) owns(block netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(s.Blocks, block, netip.Prefix.Compare)
	return found
}

// blockOf returns the confirmed block that contains or equals a prefix, and its owner, which may be this node.
func (s *Snapshot) blockOf(p netip.Prefix) (block netip.Prefix, owner Owner, ok bool) {
	for _, bits := range *s.index.lengths(p.Addr()) {
		if bits > p.Bits() {
			continue
		}
		block := netip.PrefixFrom(p.Addr(), bits).Masked()
		if owner, ok := s.Owners[block]; ok {
			return block, owner, true
		}
		if s.owns(block) {
			self, _ := s.Self.towards(p.Addr())
			return block, Owner{Node: s.Self.Name, Addr: self.Addr()}, true
		}
	}
	return netip.Prefix{}, Owner{}, false
}

// poolOf returns the pool that contains a prefix.
func (s *Snapshot) poolOf(p netip.Prefix) (*Pool, bool) {
	// Without nested pools only the last pool that does not begin after the prefix can contain it.
	i := sort.Search(len(s.Pools), func(i int) bool { return s.Pools[i].CIDR.Addr().Compare(p.Addr()) > 0 })
	var masked *Pool // overlaps an older pool, which has the blocks
	for i--; i >= 0; i-- {
		switch pool := &s.Pools[i]; {
		case !inside(p, pool.CIDR):
		case pool.Reason != api.PoolOverlap:
			return pool, true
		case masked == nil:
			masked = pool
		}
		if !s.index.nested {
			break
		}
	}
	return masked, masked != nil
}

// Place implements cluster.Ground.
func (s *Snapshot) Place(a netip.Addr) (pooled bool, node string) {
	single := netip.PrefixFrom(a, a.BitLen())
	if _, owner, ok := s.blockOf(single); ok {
		node = owner.Node
	}
	pool, in := s.poolOf(single)
	pooled = in && slices.Contains(pool.Uses, api.UseWorkload) && (node != "" || pool.Reason != api.PoolDisabled)
	return pooled && !s.isNodes(a, node), node
}

// isNodes reports whether an address belongs to a node or its tunnel. A node's address in another node's block does not
// count.
func (s *Snapshot) isNodes(a netip.Addr, owner string) bool {
	if m, is := s.MemberAt(a); is && (owner == "" || owner == m.Name) {
		return true
	}
	return s.index.tunnels[a] == owner && owner != "" || slices.Contains(s.Self.Internal, a)
}

// tunnelAddresses indexes the addresses that nodes announce for their tunnel devices, if they lie in the node's own
// blocks.
func (s *Snapshot) tunnelAddresses(nodes []api.Node) {
	s.index.tunnels = map[netip.Addr]string{}
	for _, n := range nodes {
		for _, key := range api.TunnelAddresses {
			a, err := netip.ParseAddr(n.Annotations[key])
			if err != nil {
				continue
			}
			if _, owner, in := s.blockOf(netip.PrefixFrom(a, a.BitLen())); in && owner.Node == n.Name {
				s.index.tunnels[a] = n.Name
			}
		}
	}
}

// MemberAt returns the node with an address.
func (s *Snapshot) MemberAt(a netip.Addr) (*Member, bool) {
	i, ok := s.index.byAddr[a]
	if !ok {
		return nil, false
	}
	return &s.Others[i], true
}

// PortOf returns the TCP port of BGP on another node.
func (s *Snapshot) PortOf(m *Member) uint16 { return cmp.Or(m.Port, s.meshPort) }

// Member returns the node with a name, if it has announced an address.
func (s *Snapshot) Member(name string) (*Member, bool) {
	i, ok := s.index.byName[name]
	if !ok {
		return nil, false
	}
	return &s.Others[i], true
}

// Duplicate returns a node that seems to have an address of this node, and the address; empty if there is none.
func (s *Snapshot) Duplicate() (node string, addr netip.Addr) {
	for _, a := range s.Self.addrs() {
		if name := s.index.twins[a]; name != "" {
			return name, a
		}
		if m, ok := s.MemberAt(a); ok {
			return m.Name, a
		}
	}
	return "", netip.Addr{}
}
