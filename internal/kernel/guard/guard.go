package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// DefaultVXLANPort is assigned by IANA.
const DefaultVXLANPort = 4789

// Config is the desired state.
type Config struct {
	// Nodes are the addresses that nodes send from, of both families, including this node's own. An empty list means that
	// they are not known yet, and packets of any sender pass: an incomplete list must not lock a node out.
	Nodes []netip.Addr
	// PodLinks is the prefix of the names of pods' interfaces on the host.
	PodLinks string
	// IPIP and VXLAN are the encapsulations that the pools use. Packets of other encapsulations pass, as they may be
	// another program's, unless pods send them.
	IPIP, VXLAN bool
	// VXLANPort is the UDP port of VXLAN, 0 for the default.
	VXLANPort uint16
	// WireGuardPorts are the UDP ports at which nodes receive WireGuard; none if it is off.
	WireGuardPorts []uint16
	// BGPPorts are the TCP ports of all BGP speakers known, besides DefaultBGPPort.
	BGPPorts []uint16
	// AllowIPIPFromPods, AllowVXLANFromPods and AllowBGPFromPods permit pods to send such packets to other hosts, and to
	// open BGP connections and send BFD to their node.
	AllowIPIPFromPods, AllowVXLANFromPods, AllowBGPFromPods bool
	// Sources are prefixes that single pods may send from besides their own addresses.
	Sources []Source
	// OwnLinks are the indexes of the node's own links, by which packets of any source may come. By any other link except
	// pods', packets from an address of the cluster are dropped unless the kernel would reach that address by the same
	// link: a pod with CAP_NET_ADMIN can make links into its node's namespace. Most packets should come by the first, then
	// by the second. Without OwnLinks, other links are not checked.
	OwnLinks []int
	// Pools are the prefixes of pods' addresses, of both families.
	Pools []netip.Prefix
}

// Source is a prefix that the pod behind a link may send from.
type Source struct {
	Link   string
	Prefix netip.Prefix
}

// DefaultBGPPort and BFDPort are assigned by IANA.
const (
	DefaultBGPPort = 179
	BFDPort        = 3784 // of UDP, over one hop
)

// The reasons for which packets are dropped. They are the comments of the rules.
const (
	IPIPFromStranger  = "ipip-from-stranger"
	VXLANFromStranger = "vxlan-from-stranger"
	IPIPFromPod       = "ipip-from-pod"
	VXLANFromPod      = "vxlan-from-pod"
	BGPFromPod        = "bgp-from-pod"
	BFDFromPod        = "bfd-from-pod"
	LoopbackFromPod   = "loopback-from-pod"
	SpoofedFromPod    = "spoofed-from-pod"
	SpoofedElsewhere  = "spoofed-by-other-link"
	NeighboursFromPod = "neighbours-from-pod"
	ErrorFromPod      = "icmp-error-from-pod"
	TranslatedVXLAN   = "vxlan-translated"
	TranslatedBGP     = "bgp-translated"
)

const (
	prefix          = "guard-"
	preroutingChain = prefix + "prerouting"
	inputChain      = prefix + "input"
	forwardChain    = prefix + "forward"
	sourceChain     = prefix + "source"
	elsewhereChain  = prefix + "elsewhere"
	ipipChain       = prefix + "ipip"
	vxlanChain      = prefix + "vxlan"
	fromPodsChain   = prefix + "from-pods" // of earlier versions
	outputChain     = prefix + "output"
	bgpSet          = prefix + "bgp-ports"
	tunnelSet       = prefix + "tunnel-ports"
	ownLinksSet     = prefix + "own-links"
	// priority puts these chains before most firewalls' chains. A packet has to pass all of them.
	priority = nft.PriorityFilter - 1
	// neighboursPerSecond bounds how many entries pods make in the host's table of IPv6 neighbours, which all network
	// namespaces share and which holds 1,024: the kernel may drop an entry that is not in use after five seconds.
	neighboursPerSecond = 100
)

// Syncer keeps the guard in a table.
type Syncer struct{ table *nft.Table }

// New returns the syncer of a table. It touches nothing yet.
func New(table *nft.Table) *Syncer { return &Syncer{table} }

// ErrNoSourceCheck means that the guard is in force without the check of pods' source addresses, which this kernel does
// not support.
var ErrNoSourceCheck = errors.New("pods may send from addresses of others: the kernel has no fib expression for nftables: load module " +
	"nft_fib_inet, or set CONFIG_NFT_FIB_INET")

// Sync makes the guard as desired, in one transaction. Only differences are written, and unchanged rules keep their
// counters: nodes that come and go change only elements of sets. With ErrNoSourceCheck the rest is in force.
func (s *Syncer) Sync(ctx context.Context, c Config) error {
	err := s.sync(ctx, c, true)
	// A kernel without the fib expression answers ENOENT.
	if errors.Is(err, unix.ENOENT) && s.sync(ctx, c, false) == nil {
		return ErrNoSourceCheck
	}
	return err
}

func (s *Syncer) sync(ctx context.Context, c Config, sources bool) error {
	p, err := c.part(sources)
	if err == nil {
		_, err = s.table.Sync(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("packet guard: %w", err)
	}
	return nil
}

// Counters returns the counters of dropped packets, by reason. A reason without a rule is missing. Counting begins anew
// when a rule changes.
func (s *Syncer) Counters(ctx context.Context) (map[string]nft.Counter, error) {
	return s.table.Counters(ctx, prefix)
}

func empty() nft.Part {
	return nft.Part{Prefixes: []string{prefix}, Former: []string{preroutingChain, inputChain, forwardChain, outputChain, sourceChain,
		elsewhereChain, ipipChain, vxlanChain, fromPodsChain}}
}

// part returns c as chains and sets.
func (c Config) part(sources bool) (nft.Part, error) {
	p := empty()
	if c.PodLinks == "" || len(c.PodLinks) >= unix.IFNAMSIZ {
		return p, fmt.Errorf("prefix of pods' interfaces %q: must have 1 to %d characters", c.PodLinks, unix.IFNAMSIZ-1)
	}
	if c.VXLANPort == 0 {
		c.VXLANPort = DefaultVXLANPort
	}
	if err := c.sets(&p); err != nil {
		return p, err
	}
	judged := sources && len(c.OwnLinks) > 0
	if judged {
		c.elsewhereSets(&p)
		p.Chains = chain(elsewhereChain, nil, c.elsewhere())
	}
	p.Chains = slices.Concat(p.Chains,
		chain(sourceChain, nil, c.source(sources)),
		chain(preroutingChain, hook(nft.Prerouting, nft.PriorityRaw), c.prerouting(judged)),
		chain(ipipChain, nil, c.ipipInput()),
		chain(vxlanChain, nil, c.vxlanInput()),
		chain(inputChain, hook(nft.Input, priority), c.input()),
		chain(outputChain, hook(nft.Output, nft.PriorityRaw), c.betweenNodes()),
		chain(forwardChain, hook(nft.Forward, priority), c.forward()),
	)
	return p, nil
}

// prerouting sends packets from pods, and packets by links that are not the node's own, to chains of their own: most
// others cost one comparison more.
func (c Config) prerouting(judged bool) []nft.Rule {
	rules := append([]nft.Rule{nft.NewRule("", c.fromPod(), nft.Do(nft.Goto(sourceChain)))}, c.betweenNodes()...)
	if !judged {
		return rules
	}
	const compared = 2 // a look-up costs more
	var other []nft.Term
	for _, index := range c.OwnLinks[:min(compared, len(c.OwnLinks))] {
		other = append(other, nft.InIndex.IsNot(linkIndex(index)))
	}
	return append(rules, nft.NewRule("", append(other, nft.NotIn(ownLinksSet, nft.InIndex), nft.Do(nft.Goto(elsewhereChain)))...))
}

// elsewhere drops packets from an address of the cluster to which no route leads by the link that they came in by:
// addresses of the node's pods, of whatever pool, addresses of pools, and addresses of nodes.
func (c Config) elsewhere() []nft.Rule {
	rules := []nft.Rule{drop(SpoofedElsewhere, nft.SourceLinkName.HasPrefix(c.PodLinks), nft.SourceLink.Is(nft.NoLink))}
	for _, f := range families {
		if len(c.cluster(f).Elements) > 0 {
			rules = append(rules, drop(SpoofedElsewhere, f.Is(), nft.In(f.clusterSet, f.Src), nft.SourceLink.Is(nft.NoLink)))
		}
	}
	return rules
}

func (c Config) elsewhereSets(p *nft.Part) {
	own := nft.Set{Name: ownLinksSet, Key: []nft.Type{nft.LinkIndex}}
	for _, index := range c.OwnLinks {
		own.Elements = append(own.Elements, nft.Element{First: linkIndex(index)})
	}
	p.Sets = append(p.Sets, own)
	for _, f := range families {
		if cluster := c.cluster(f); len(cluster.Elements) > 0 {
			p.Sets = append(p.Sets, cluster)
		}
	}
}

// cluster returns the set of a family's addresses of nodes and pools.
func (c Config) cluster(f family) nft.Set {
	s := nft.Set{Name: f.clusterSet, Key: []nft.Type{f.Addr}, Interval: true}
	var all []netip.Prefix
	for _, a := range c.Nodes {
		a = a.Unmap().WithZone("")
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	all = slices.DeleteFunc(append(all, c.Pools...), func(p netip.Prefix) bool { return p.Addr().Is4() != f.is4 })
	for _, r := range nft.Ranges(all) {
		s.Elements = append(s.Elements, nft.Element{First: r.First, Last: r.Last})
	}
	return s
}

func linkIndex(index int) string { return nft.WordKey(uint32(index)) }

// input sends packets of tunnels to chains of their own: no other rule is about them. UDP to other ports is accepted
// before all rules: WireGuard's streams cost 3 % less that way.
func (c Config) input() []nft.Rule {
	otherUDP := nft.NewRule("", udp(), nft.DestPort.IsNot(nft.PortKey(BFDPort)),
		nft.DestPort.IsNot(nft.PortKey(c.VXLANPort)), nft.Do(nft.Accept))
	rules := append([]nft.Rule{otherUDP}, established()...)
	if len(c.ipipInput()) > 0 {
		rules = append(rules, nft.NewRule("", ipip(), nft.Do(nft.Goto(ipipChain))))
	}
	rules = append(rules, c.bfd()...) // VXLAN may have BFD's port
	if len(c.vxlanInput()) > 0 {
		rules = append(rules, nft.NewRule("", append(c.vxlan(), nft.Do(nft.Goto(vxlanChain)))...))
	}
	return slices.Concat(rules, c.bgpFromPods(), c.aboutNodes(), c.translatedBGP(), c.neighbours())
}

func (c Config) ipipInput() []nft.Rule {
	rules := c.ipipFromPods()
	if v4 := families[0]; c.IPIP && len(c.Nodes) > 0 {
		rules = append(rules, drop(IPIPFromStranger, v4.Is(), nft.NotIn(v4.nodesSet, v4.Src)))
	}
	return rules
}

func (c Config) vxlanInput() []nft.Rule {
	rules := append(c.vxlanFromPods(), c.translatedVXLAN()...)
	if c.VXLAN && len(c.Nodes) > 0 {
		for _, f := range families {
			rules = append(rules, drop(VXLANFromStranger, f.Is(), nft.NotIn(f.nodesSet, f.Src)))
		}
	}
	return rules
}

func (c Config) forward() []nft.Rule {
	rules := slices.Concat(c.ipipFromPods(ipip()), c.vxlanFromPods(c.vxlan()...), c.bgpFromPods(), c.aboutNodes())
	for _, f := range c.families() {
		toNode := []nft.Term{f.Is(), nft.In(f.nodesSet, f.Dest)}
		rules = slices.Concat(rules, c.translatedVXLAN(append(c.vxlan(), toNode...)...), c.translatedBGP(toNode...))
	}
	if len(rules) == 0 {
		return nil
	}
	return slices.Concat(established(),
		[]nft.Rule{nft.NewRule("", udp(), nft.DestPort.IsNot(nft.PortKey(c.VXLANPort)), nft.Do(nft.Accept))}, rules)
}

// established accepts TCP packets that do not open a connection: no further rule is about them.
func established() []nft.Rule {
	return []nft.Rule{nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_TCP)), nft.JoinsTCP(), nft.Do(nft.Accept))}
}

// families returns the families that nodes have addresses of: no packet matches a rule about nodes of another family.
func (c Config) families() (of []family) {
	for _, f := range families {
		if slices.ContainsFunc(c.Nodes, func(a netip.Addr) bool { return a.Unmap().Is4() == f.is4 }) {
			of = append(of, f)
		}
	}
	return of
}

// betweenNodes exempts VXLAN and WireGuard between nodes from connection tracking: a user who may create a pod with a
// host port, or a Service with an external address, could otherwise have it translated to a pod.
func (c Config) betweenNodes() []nft.Rule {
	if len(c.tunnelPorts().Elements) == 0 {
		return nil
	}
	var rules []nft.Rule
	for _, f := range c.families() {
		rules = append(rules, nft.NewRule("", f.Is(), udp(), nft.In(tunnelSet, nft.DestPort),
			nft.In(f.nodesSet, f.Src), nft.In(f.nodesSet, f.Dest), nft.NoTrack()))
	}
	return rules
}

// tunnelPorts returns the UDP ports at which nodes receive each other's tunnels.
func (c Config) tunnelPorts() nft.Set {
	ports := slices.Clone(c.WireGuardPorts)
	if c.VXLAN {
		ports = append(ports, c.VXLANPort)
	}
	return portSet(tunnelSet, ports)
}

// translatedVXLAN and translatedBGP drop packets whose destination was translated (DNAT) to VXLAN or BGP of a node:
// they come from the address of the node that has translated them, not from their sender's. No node sends such packets.
// The terms of translatedVXLAN must match VXLAN, unless its chain does.
func (c Config) translatedVXLAN(packet ...nft.Term) []nft.Rule {
	if !c.VXLAN || c.AllowVXLANFromPods {
		return nil
	}
	return []nft.Rule{drop(TranslatedVXLAN, append(packet, nft.Translated())...)}
}

func (c Config) translatedBGP(to ...nft.Term) []nft.Rule {
	if c.AllowBGPFromPods {
		return nil
	}
	return []nft.Rule{drop(TranslatedBGP, slices.Concat(opensBGP(), to, []nft.Term{nft.Translated()})...)}
}

// sets adds the sets of addresses and ports.
func (c Config) sets(p *nft.Part) error {
	for _, f := range families {
		nodes, err := c.nodes(f)
		if err != nil {
			return err
		}
		p.Sets = append(p.Sets, nodes)
		if further := c.furtherSources(f); len(further.Elements) > 0 {
			p.Sets = append(p.Sets, further)
		}
	}
	if !c.AllowBGPFromPods {
		p.Sets = append(p.Sets, c.bgpPorts())
	}
	if tunnels := c.tunnelPorts(); len(tunnels.Elements) > 0 {
		p.Sets = append(p.Sets, tunnels)
	}
	return nil
}

func hook(number nft.HookNumber, priority int32) *nft.Hook {
	return &nft.Hook{Type: nft.Filter, Number: number, Priority: priority}
}

// chain returns a list of the one chain; it is empty if there are no rules.
func chain(name string, at *nft.Hook, rules []nft.Rule) []nft.Chain {
	if len(rules) == 0 {
		return nil
	}
	return []nft.Chain{{Name: name, Hook: at, Rules: rules}}
}

func (c Config) fromPod() nft.Term { return nft.InLink.HasPrefix(c.PodLinks) }

// family has the differences between IPv4 and IPv6.
type family struct {
	nft.Family
	is4                              bool
	nodesSet, sourcesSet, clusterSet string
	icmp                             byte
	quoted                           nft.Quoted
	tooLong                          nft.Term // matches "packet too big"
}

var families = []family{
	{nft.IPv4, true, prefix + "nodes-v4", prefix + "sources-v4", prefix + "cluster-v4", unix.IPPROTO_ICMP, nft.Quoted4,
		nft.ICMPTypeCode.Is("\x03\x04")},
	{nft.IPv6, false, prefix + "nodes-v6", prefix + "sources-v6", prefix + "cluster-v6", unix.IPPROTO_ICMPV6, nft.Quoted6,
		nft.ICMPType.Is("\x02")},
}

func (c Config) nodes(f family) (nft.Set, error) {
	s := nft.Set{Name: f.nodesSet, Key: []nft.Type{f.Addr}}
	seen := map[netip.Addr]bool{}
	for _, a := range c.Nodes {
		a = a.Unmap().WithZone("")
		if !a.IsValid() || a.IsUnspecified() {
			return s, fmt.Errorf("address of a node %q is none that a node sends from", a)
		}
		if a.Is4() == f.is4 && !seen[a] {
			seen[a] = true
			s.Elements = append(s.Elements, nft.Element{First: nft.AddrKey(a)})
		}
	}
	return s, nil
}

// furtherSources returns the set of a family's prefixes that single pods may send from.
func (c Config) furtherSources(f family) nft.Set {
	s := nft.Set{Name: f.sourcesSet, Key: []nft.Type{nft.LinkName, f.Addr}, Interval: true}
	byLink := map[string][]netip.Prefix{}
	for _, src := range c.Sources {
		if src.Prefix.Addr().Is4() == f.is4 {
			byLink[src.Link] = append(byLink[src.Link], src.Prefix)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byLink)) {
		link := nft.LinkKey(name)
		for _, r := range nft.Ranges(byLink[name]) {
			s.Elements = append(s.Elements, nft.Element{First: nft.Key(link, r.First), Last: nft.Key(link, r.Last)})
		}
	}
	return s
}

func (c Config) bgpPorts() nft.Set {
	return portSet(bgpSet, append([]uint16{DefaultBGPPort}, c.BGPPorts...))
}

func portSet(name string, ports []uint16) nft.Set {
	s := nft.Set{Name: name, Key: []nft.Type{nft.Port}}
	for _, port := range slices.Compact(slices.Sorted(slices.Values(ports))) {
		s.Elements = append(s.Elements, nft.Element{First: nft.PortKey(port)})
	}
	return s
}

// source returns the rules for packets from pods, at prerouting: they drop packets to loopback addresses and, if check
// is set, packets from sources that are not the pod's.
func (c Config) source(check bool) []nft.Rule {
	const loopback = 127
	rules := []nft.Rule{drop(LoopbackFromPod, nft.IPv4.Is(), nft.DestNet8.Is(nft.ByteKey(loopback)))}
	if !check {
		return rules
	}
	for _, f := range families {
		if len(c.furtherSources(f).Elements) > 0 {
			rules = append(rules, nft.NewRule("", f.Is(), nft.In(f.sourcesSet, nft.InLink, f.Src), nft.Do(nft.Accept)))
		}
	}
	return append(rules, drop(SpoofedFromPod, nft.SourceLink.Is(nft.NoLink)))
}

// ipip, udp and vxlan match a protocol. They come first in rules, as few packets match.
func ipip() nft.Term { return nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_IPIP)) }

func udp() nft.Term { return nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_UDP)) }

func (c Config) vxlan() []nft.Term {
	return []nft.Term{udp(), nft.DestPort.Is(nft.PortKey(c.VXLANPort))}
}

// opensBGP matches the first packets of connections to BGP ports.
func opensBGP() []nft.Term {
	return []nft.Term{nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_TCP)), nft.OpensTCP(), nft.In(bgpSet, nft.DestPort)}
}

// bfd drops BFD from pods to the node: a flood would displace a peer's packets. A forwarded BFD packet has a TTL below
// 255, and its receiver drops it (RFC 5881 section 5).
func (c Config) bfd() []nft.Rule {
	if c.AllowBGPFromPods {
		return nil
	}
	return []nft.Rule{drop(BFDFromPod, udp(), nft.DestPort.Is(nft.PortKey(BFDPort)), c.fromPod())}
}

// ipipFromPods, vxlanFromPods and bgpFromPods drop encapsulated packets and BGP connections from pods, which would
// reach other hosts with the node's address as source. The terms of the first two must match such packets, unless their
// chain does. The name of the link comes last: comparing it costs more than all terms before it.
func (c Config) ipipFromPods(packet ...nft.Term) []nft.Rule {
	if c.AllowIPIPFromPods {
		return nil
	}
	return []nft.Rule{drop(IPIPFromPod, append(packet, c.fromPod())...)}
}

func (c Config) vxlanFromPods(packet ...nft.Term) []nft.Rule {
	if c.AllowVXLANFromPods {
		return nil
	}
	return []nft.Rule{drop(VXLANFromPod, append(packet, c.fromPod())...)}
}

func (c Config) bgpFromPods() []nft.Rule {
	if c.AllowBGPFromPods {
		return nil
	}
	return []nft.Rule{drop(BGPFromPod, append(opensBGP(), c.fromPod())...)}
}

// aboutNodes drops ICMP errors from pods that quote packets between nodes: no pod receives such packets. The kernel
// would believe a forged "packet too big" about a tunnel: one would limit all traffic between two nodes to a path MTU
// of 552 bytes for ten minutes. An error about a packet from a node to the pod itself has the same effect if that
// packet's connection, and with it the error, is masqueraded: the error arrives from the address of the pod's node.
func (c Config) aboutNodes() (rules []nft.Rule) {
	for _, f := range c.families() {
		icmp, fromNode := nft.L4Proto.Is(nft.ByteKey(f.icmp)), nft.In(f.nodesSet, f.quoted.Src)
		rules = append(rules,
			drop(ErrorFromPod, f.Is(), icmp, fromNode, nft.In(f.nodesSet, f.quoted.Dest), c.fromPod()),
			drop(ErrorFromPod, f.Is(), icmp, f.tooLong, fromNode, nft.Masqueraded(), c.fromPod()))
	}
	return rules
}

// neighbours limits the solicitations from pods to the host. The kernel adds a neighbour entry for the source of each,
// and a pod has 2^64 link-local addresses to send from; routes limit its other addresses.
func (c Config) neighbours() (rules []nft.Rule) {
	const routerSolicitation, neighbourSolicitation = 133, 135
	linkLocal := string([]byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0})
	for _, kind := range []byte{routerSolicitation, neighbourSolicitation} {
		rules = append(rules, drop(NeighboursFromPod, nft.IPv6.Is(), nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_ICMPV6)),
			nft.ICMPType.Is(nft.ByteKey(kind)), c.fromPod(), nft.SrcNet64.Is(linkLocal), nft.Over(neighboursPerSecond)))
	}
	return rules
}

func drop(reason string, terms ...nft.Term) nft.Rule {
	return nft.NewRule(reason, append(terms, nft.Count(), nft.Do(nft.Drop))...)
}
