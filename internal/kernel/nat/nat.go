package nat

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// The chains that translate packets: chain is for natOutgoing; the others are for floating addresses, in packets that
// come in and in packets that the node itself sends.
const (
	chain          = "nat-postrouting"
	arrivingChain  = "nat-prerouting"
	departingChain = "nat-output"
)

// Config is the desired state. The same rules are for packets of pods and of the node's own processes: the latter are
// translated only if they come from an address in a pool, such as the tunnel's.
type Config struct {
	// Pools are all pools of both families, including disabled ones, as they may still have pods. A pool for addresses of
	// services only (allowedUses LoadBalancer) must be left out. Pools may overlap: an address in any of them counts as
	// inside, and an address in any with NATOutgoing is translated.
	Pools []Pool
	// Nodes are addresses that count as inside although they are in no pool, as with natOutgoingExclusions
	// IPPoolsAndHostIPs.
	Nodes []netip.Addr
	// Source is the address that packets of its family are sent from; invalid means an address of the outgoing link.
	Source netip.Addr
	// Ports are the source ports for TCP and UDP; zero leaves the choice to the kernel. Other protocols are translated
	// without.
	Ports nft.Ports
	// Floating are further addresses of pods of this node.
	Floating []Floating
}

// Floating is an address that stands for a pod's, of the same family.
type Floating struct{ Addr, Pod netip.Addr }

// Pool is an IP pool.
type Pool struct {
	CIDR        netip.Prefix
	NATOutgoing bool
}

// Syncer keeps the chains in a table.
type Syncer struct{ table *nft.Table }

// New returns the syncer of a table. It touches nothing yet.
func New(table *nft.Table) *Syncer { return &Syncer{table} }

// Sync makes the chains and their sets as desired, in one transaction: no packet passes half of it. Correct rules are
// not written; pools that come or go change elements alone. Without a pool that has natOutgoing, and without floating
// addresses, all chains and sets of this package are removed.
//
// Connections keep the translation that they began with.
func (s *Syncer) Sync(ctx context.Context, c Config) error {
	p, err := c.part()
	if err != nil {
		return err
	}
	if _, err := s.table.Sync(ctx, p); err != nil {
		return fmt.Errorf("nat: %w", err)
	}
	return nil
}

// family has the differences between IPv4 and IPv6.
type family struct {
	nft.Family
	is4      bool
	pools    string // name of the set with all addresses that count as inside
	outgoing string // name of the set with the pools that have natOutgoing
	floating string // name of the map from floating addresses to pods'
	hairpin  string // name of the set with pods' addresses, each with its floating one
}

var families = []family{
	{nft.IPv4, true, "pools-v4", "nat-outgoing-v4", "nat-floating-v4", "nat-hairpin-v4"},
	{nft.IPv6, false, "pools-v6", "nat-outgoing-v6", "nat-floating-v6", "nat-hairpin-v6"},
}

// part returns c as chains and sets.
func (c Config) part() (nft.Part, error) {
	p := nft.Part{Prefixes: []string{"nat-", "pools-"}, Former: []string{chain, arrivingChain, departingChain}}
	if err := c.validate(); err != nil {
		return nft.Part{}, err
	}
	translate, floating := false, len(c.Floating) > 0
	rules := nft.Chain{Name: chain, Hook: &nft.Hook{Type: nft.NAT, Number: nft.Postrouting, Priority: nft.PrioritySNAT}}
	for _, f := range families {
		inside, outgoing := c.ranges(f)
		translate = translate || len(outgoing) > 0
		rules.Rules = append(rules.Rules, c.rules(f)...)
		p.Sets = append(p.Sets,
			nft.Set{Name: f.outgoing, Key: []nft.Type{f.Addr}, Interval: true, Elements: outgoing},
			nft.Set{Name: f.pools, Key: []nft.Type{f.Addr}, Interval: true, Elements: inside})
	}
	if !translate {
		p.Sets, rules.Rules = nil, nil
	}
	var others []nft.Chain
	if floating {
		others, rules.Rules = c.float(&p, rules.Rules)
	}
	if len(rules.Rules) > 0 {
		p.Chains = append([]nft.Chain{rules}, others...)
	}
	return p, nil
}

// float returns chains that translate floating addresses to pods' addresses, before kube-proxy's chains, and puts rules
// in front of others for a pod that sends to a floating address of its own: it would drop a packet from its own
// address. It adds their sets to p.
func (c Config) float(p *nft.Part, others []nft.Rule) (chains []nft.Chain, leaving []nft.Rule) {
	arriving := nft.Chain{Name: arrivingChain, Hook: &nft.Hook{Type: nft.NAT, Number: nft.Prerouting, Priority: nft.PriorityDNAT - 1}}
	for _, f := range families {
		to := nft.Set{Name: f.floating, Key: []nft.Type{f.Addr}, Value: f.Addr}
		own := nft.Set{Name: f.hairpin, Key: []nft.Type{f.Addr, f.Addr}}
		for _, a := range c.Floating {
			if a.Addr.Is4() == f.is4 {
				to.Elements = append(to.Elements, nft.Element{First: nft.AddrKey(a.Addr), Value: nft.AddrKey(a.Pod)})
				own.Elements = append(own.Elements, nft.Element{First: nft.Key(nft.AddrKey(a.Pod), nft.AddrKey(a.Addr))})
			}
		}
		if len(to.Elements) == 0 {
			continue
		}
		p.Sets = append(p.Sets, to, own)
		arriving.Rules = append(arriving.Rules, nft.NewRule("", f.Is(), f.DestinationNATBy(f.floating, f.Dest)))
		leaving = append(leaving, nft.NewRule("", f.Is(), nft.In(f.hairpin, f.Src, f.Dialled), f.SourceNATDialled()))
	}
	departing := arriving
	departing.Name, departing.Hook = departingChain, &nft.Hook{Type: nft.NAT, Number: nft.Output, Priority: nft.PriorityDNAT - 1}
	return []nft.Chain{arriving, departing}, append(leaving, others...)
}

func (c Config) validate() error {
	for _, p := range c.Pools {
		if !p.CIDR.IsValid() || p.CIDR != p.CIDR.Masked() {
			return fmt.Errorf("pool %q is not a CIDR without host bits", p.CIDR)
		}
	}
	for _, a := range c.Nodes {
		if !a.IsValid() || a.Zone() != "" {
			return fmt.Errorf("node address %q is not an address without zone", a)
		}
	}
	seen := map[netip.Addr]bool{}
	for _, f := range c.Floating {
		if !f.Addr.IsValid() || !f.Pod.IsValid() || f.Addr.Is4() != f.Pod.Is4() || f.Addr == f.Pod || seen[f.Addr] {
			return fmt.Errorf("floating address %q of pod %q: want two addresses of one family, and a floating one once", f.Addr, f.Pod)
		}
		seen[f.Addr] = true
	}
	if c.Source.IsValid() && (c.Source.IsUnspecified() || c.Source.IsMulticast() || c.Source.Zone() != "" || c.Source.Is4In6()) {
		return fmt.Errorf("natOutgoingAddress %q is not an address to send from", c.Source)
	}
	if c.Ports.First > c.Ports.Last || c.Ports != (nft.Ports{}) && c.Ports.First == 0 {
		return fmt.Errorf("natPortRange %d:%d: must be a port from 1 to 65535, or two with the lesser first", c.Ports.First, c.Ports.Last)
	}
	return nil
}

// ranges returns the addresses that count as inside, and the pools with natOutgoing.
func (c Config) ranges(f family) (inside, outgoing []nft.Element) {
	var all, translated []netip.Prefix
	for _, p := range c.Pools {
		if p.CIDR.Addr().Is4() != f.is4 {
			continue
		}
		all = append(all, p.CIDR)
		if p.NATOutgoing {
			translated = append(translated, p.CIDR)
		}
	}
	for _, a := range c.Nodes {
		if a = a.Unmap(); a.Is4() == f.is4 {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return nft.Ranges(all), nft.Ranges(translated)
}

// rules returns, in nft's syntax, "ip saddr @nat-outgoing-v4 ip daddr != @pools-v4 masquerade fully-random", after the
// same with ports for TCP and for UDP if ports are limited.
func (c Config) rules(f family) []nft.Rule {
	translate := func(ports nft.Ports) nft.Term {
		if c.Source.IsValid() && c.Source.Is4() == f.is4 {
			return nft.SourceNAT(c.Source, ports)
		}
		return nft.Masquerade(ports)
	}
	outgoing, leaves := nft.In(f.outgoing, f.Src), nft.NotIn(f.pools, f.Dest)
	var rules []nft.Rule
	if c.Ports != (nft.Ports{}) {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			rules = append(rules, nft.NewRule("", f.Is(), nft.L4Proto.Is(nft.ByteKey(proto)), outgoing, leaves, translate(c.Ports)))
		}
	}
	return append(rules, nft.NewRule("", f.Is(), outgoing, leaves, translate(nft.Ports{})))
}
