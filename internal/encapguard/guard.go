package encapguard

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/nft"
)

// DefaultVXLANPort is the one that IANA has assigned.
const DefaultVXLANPort = 4789

// Config is the desired state.
type Config struct {
	// Nodes are the addresses that nodes send from, of both families, this node's own among them. While there are none they
	// are taken to be not known yet, and no sender is a stranger: a node must not be locked out by a list that is not complete.
	Nodes []netip.Addr
	// PodLinks is how the names of pods' interfaces on the host begin.
	PodLinks string
	// IPIP and VXLAN say which encapsulations the pools use. Packets of others are not looked at, as they may be somebody
	// else's, except those that pods send.
	IPIP, VXLAN bool
	// VXLANPort is the UDP port of VXLAN, 0 for the default.
	VXLANPort uint16
	// AllowIPIPFromPods and AllowVXLANFromPods let pods send such packets to other hosts.
	AllowIPIPFromPods, AllowVXLANFromPods bool
}

// The reasons for which packets are dropped. They are the comments of the rules.
const (
	IPIPFromStranger  = "ipip-from-stranger"
	VXLANFromStranger = "vxlan-from-stranger"
	IPIPFromPod       = "ipip-from-pod"
	VXLANFromPod      = "vxlan-from-pod"
)

const (
	prefix       = "guard-"
	inputChain   = prefix + "input"
	forwardChain = prefix + "forward"
	// priority is in front of most firewalls. What these say counts as well: a packet has to pass all chains.
	priority = nft.PriorityFilter - 1
)

// Syncer keeps the guard in a table.
type Syncer struct{ table *nft.Table }

// New returns the syncer of a table. It touches nothing yet.
func New(table *nft.Table) *Syncer { return &Syncer{table} }

// Sync makes the guard as desired, in one transaction. What is right is not written, and rules that stay keep their counters:
// nodes that come and go change elements alone.
func (s *Syncer) Sync(ctx context.Context, c Config) error {
	p, err := c.part()
	if err != nil {
		return fmt.Errorf("encapsulation guard: %w", err)
	}
	if _, err := s.table.Sync(ctx, p); err != nil {
		return fmt.Errorf("encapsulation guard: %w", err)
	}
	return nil
}

// Remove takes the guard away.
func (s *Syncer) Remove(ctx context.Context) error {
	if _, err := s.table.Sync(ctx, empty()); err != nil {
		return fmt.Errorf("encapsulation guard: %w", err)
	}
	return nil
}

// Counters returns what was dropped, by reason. A reason without a rule is missing. Counting begins anew when a rule changes.
func (s *Syncer) Counters(ctx context.Context) (map[string]nft.Counter, error) {
	return s.table.Counters(ctx, prefix)
}

func empty() nft.Part {
	return nft.Part{Prefixes: []string{prefix}, Former: []string{inputChain, forwardChain}}
}

// part is c in nftables.
func (c Config) part() (nft.Part, error) {
	p := empty()
	if c.PodLinks == "" || len(c.PodLinks) >= unix.IFNAMSIZ {
		return p, fmt.Errorf("prefix of pods' interfaces %q: must have 1 to %d characters", c.PodLinks, unix.IFNAMSIZ-1)
	}
	if c.VXLANPort == 0 {
		c.VXLANPort = DefaultVXLANPort
	}
	for _, f := range families {
		set, err := c.set(f)
		if err != nil {
			return p, err
		}
		p.Sets = append(p.Sets, set)
	}
	p.Chains = append(p.Chains, chain(inputChain, nft.Input, append(c.fromPods(), c.fromStrangers()...))...)
	p.Chains = append(p.Chains, chain(forwardChain, nft.Forward, c.fromPods())...)
	return p, nil
}

// chain returns none for no rules.
func chain(name string, hook nft.HookNumber, rules []nft.Rule) []nft.Chain {
	if len(rules) == 0 {
		return nil
	}
	return []nft.Chain{{Name: name, Hook: &nft.Hook{Type: nft.Filter, Number: hook, Priority: priority}, Rules: rules}}
}

// family is what differs between IPv4 and IPv6.
type family struct {
	nft.Family
	is4 bool
	set string
}

var families = []family{{nft.IPv4, true, prefix + "nodes-v4"}, {nft.IPv6, false, prefix + "nodes-v6"}}

func (c Config) set(f family) (nft.Set, error) {
	s := nft.Set{Name: f.set, Key: []nft.Type{f.Addr}}
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

// ipip and vxlan match outer packets. Few packets get as far as the rules' other conditions.
func ipip() nft.Term { return nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_IPIP)) }

func (c Config) vxlan() []nft.Term {
	return []nft.Term{nft.L4Proto.Is(nft.ByteKey(unix.IPPROTO_UDP)), nft.DestPort.Is(nft.PortKey(c.VXLANPort))}
}

func (c Config) fromPods() []nft.Rule {
	var rules []nft.Rule
	fromPod := nft.InLink.HasPrefix(c.PodLinks)
	if !c.AllowIPIPFromPods {
		rules = append(rules, drop(IPIPFromPod, ipip(), fromPod))
	}
	if !c.AllowVXLANFromPods {
		rules = append(rules, drop(VXLANFromPod, append(c.vxlan(), fromPod)...))
	}
	return rules
}

func (c Config) fromStrangers() []nft.Rule {
	var rules []nft.Rule
	if len(c.Nodes) == 0 {
		return nil
	}
	if v4 := families[0]; c.IPIP {
		rules = append(rules, drop(IPIPFromStranger, v4.Is(), ipip(), nft.NotIn(v4.set, v4.Src)))
	}
	for _, f := range families {
		if c.VXLAN {
			terms := append([]nft.Term{f.Is()}, c.vxlan()...)
			rules = append(rules, drop(VXLANFromStranger, append(terms, nft.NotIn(f.set, f.Src))...))
		}
	}
	return rules
}

func drop(reason string, terms ...nft.Term) nft.Rule {
	return nft.NewRule(reason, append(terms, nft.Count(), nft.Do(nft.Drop))...)
}
