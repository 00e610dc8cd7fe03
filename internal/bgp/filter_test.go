package bgp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// sixth is our end of a session in IPv6 to the daemon of a neighbour.
func (n *neighbour) sixth(s *bgptest.Speaker) *neighbour {
	six := *n
	six.peer.Addr, six.peer.From = n.On().V6, s.V6
	return &six
}

// withSix gives a daemon a session in IPv6, and a block to announce there.
func withSix(s *bgptest.Speaker, n int) func(*bgptest.Config) {
	return func(c *bgptest.Config) {
		c.Announce = append(c.Announce, netip.MustParsePrefix(fmt.Sprintf("fd01:%d::/122", n)))
		c.Sessions = append(c.Sessions, bgptest.Session{Peer: s.V6, ASN: ourASN, Passive: true})
	}
}

// both has the same rules for both families, with prefixes of each.
func both(four, six []api.BGPFilterRule) api.BGPFilterSpec {
	return api.BGPFilterSpec{ImportV4: four, ExportV4: four, ImportV6: six, ExportV6: six}
}

// everything is every operation there is.
var everything = []api.BGPFilterOperation{
	{AddCommunity: &api.BGPFilterAddCommunity{Value: "64512:100"}},
	{AddCommunity: &api.BGPFilterAddCommunity{Value: "64512:1:2"}},
	{PrependASPath: &api.BGPFilterPrependASPath{Prefix: []uint32{4200000000, 64777}}},
	{SetPriority: &api.BGPFilterSetPriority{Value: 512}},
}

// A peer receives what a filter changes, in both families, inside of our AS and outside, where our own number stays
// first and priorities are not sent.
func TestFilterChangesExports(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	bird, frr := beside(lan, s, bgptest.BIRD1, 1, ourASN, withSix(s, 1)), beside(lan, s, bgptest.FRR, 2, 64902, withSix(s, 2))
	all := []*neighbour{bird, bird.sixth(s), frr, frr.sixth(s)}
	setPeers(s, all...)
	check := undisturbed(t, s, all...)
	filter := api.BGPFilterSpec{
		ExportV4: []api.BGPFilterRule{{CIDR: "10.200.0.0/16", MatchOperator: "In", PrefixLength: &api.BGPFilterPrefixLength{Min: new(int32)},
			Action: "Accept", Operations: everything}},
		ExportV6: []api.BGPFilterRule{{Source: "RemotePeers", Action: "Reject"},
			{CIDR: "fd02::/16", MatchOperator: "NotIn", Action: "Accept", Operations: everything}},
	}
	filters := map[netip.Addr]api.BGPFilterSpec{}
	for _, n := range all {
		filters[n.peer.Addr] = filter
	}
	s.SetPolicy(bgp.Policy{}, filters)
	told := func(n *neighbour, from netip.Addr, want ...string) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			var got []string
			for _, r := range n.Learned(from) {
				pref := r.LocalPref
				if n.peer.ASN != ourASN {
					pref = "" // its own
				}
				got = append(got, fmt.Sprintf("%s via %s (%s) [%s] %s", r.Prefix, r.NextHop, r.ASPath, r.Communities, pref))
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("host %d has learned\n%s\nwant\n%s", n.n, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			return nil
		})
	}
	told(bird, s.V4, "10.1.5.0/26 via 10.0.0.5 () [] 100", "10.200.0.5/32 via 10.0.0.5 (4200000000 64777) [64512:100 64512:1:2] 2147483135")
	told(bird, s.V6, fmt.Sprintf("fd01:5::/122 via %s (4200000000 64777) [64512:100 64512:1:2] 2147483135", s.V6))
	told(frr, s.V4, "10.1.5.0/26 via 10.0.0.5 (64512) [] ", "10.200.0.5/32 via 10.0.0.5 (64512 4200000000 64777) [64512:100 64512:1:2] ")
	told(frr, s.V6, fmt.Sprintf("fd01:5::/122 via %s (64512 4200000000 64777) [64512:100 64512:1:2] ", s.V6))
	s.SetPolicy(bgp.Policy{}, nil)
	told(bird, s.V4, "10.1.5.0/26 via 10.0.0.5 () [] 100", "10.200.0.5/32 via 10.0.0.5 () [] 100")
	told(frr, s.V6, fmt.Sprintf("fd01:5::/122 via %s (64512) [] ", s.V6))
	check()
}

// hears waits until we have learned exactly these paths, each as "prefix (AS path) [communities] LOCAL_PREF".
func hears(t *testing.T, s *bgptest.Speaker, want ...string) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		var got []string
		for _, p := range s.Snapshot() {
			got = append(got, fmt.Sprintf("%s (%s) [%s] %d", p.Prefix, p.ASPath, p.Communities, p.LocalPref))
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("learned\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

// A filter matches announcements by their communities and AS path, and changes our learned paths.
func TestFilterChangesImports(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	tagged := func(c *bgptest.Config) { c.Communities = []string{"64999:100", "64999:1:2"} }
	bird, frr := beside(lan, s, bgptest.BIRD1, 1, ourASN, withSix(s, 1), tagged), beside(lan, s, bgptest.FRR, 2, 64902, withSix(s, 2))
	all := []*neighbour{bird, bird.sixth(s), frr, frr.sixth(s)}
	setPeers(s, all...)
	check := undisturbed(t, s, all...)
	plain := []string{"10.1.1.0/26 () [64999:100 64999:1:2] 100", "10.1.2.0/26 (64902) [] 100", "fd01:1::/122 () [64999:100 64999:1:2] 100",
		"fd01:2::/122 (64902) [] 100"}
	hears(t, s, plain...)
	rules := []api.BGPFilterRule{
		{PeerType: "eBGP", Communities: &api.BGPFilterCommunities{Values: []string{"64999:1:2"}}, Action: "Reject"},
		{Source: "RemotePeers", Communities: &api.BGPFilterCommunities{Values: []string{"64999:1:2"}}, Action: "Accept", Operations: everything},
		{ASPathPrefix: []uint32{64902}, Action: "Accept", Operations: []api.BGPFilterOperation{
			{SetPriority: &api.BGPFilterSetPriority{Value: 1025}}, {PrependASPath: &api.BGPFilterPrependASPath{Prefix: []uint32{ourASN}}},
		}},
	}
	filters := map[netip.Addr]api.BGPFilterSpec{}
	for _, n := range all {
		filters[n.peer.Addr] = both(rules, rules)
	}
	s.SetPolicy(bgp.Policy{}, filters)
	hears(t, s,
		"10.1.1.0/26 (4200000000 64777) [64512:100 64999:100 64512:1:2 64999:1:2] 2147483135", "10.1.2.0/26 (64512 64902) [] 99",
		"fd01:1::/122 (4200000000 64777) [64512:100 64999:100 64512:1:2 64999:1:2] 2147483135", "fd01:2::/122 (64512 64902) [] 99")
	s.SetPolicy(bgp.Policy{}, nil)
	hears(t, s, plain...)
	check()
}

// A rule may accept a path outside of all pools for a peer; others do not receive it.
func TestFilterPassesOn(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	s.Originate()
	rack, core := beside(lan, s, bgptest.BIRD2, 1, 64901), beside(lan, s, bgptest.FRR, 2, 64902)
	inside := beside(lan, s, bgptest.BIRD2, 3, ourASN)
	rack.Announce(netip.MustParsePrefix("10.66.0.0/24"), netip.MustParsePrefix("10.77.0.0/24"))
	all := []*neighbour{rack, core, inside}
	setPeers(s, all...)
	check := undisturbed(t, s, all...)
	core.learns(t, s.V4)
	accept := api.BGPFilterSpec{ExportV4: []api.BGPFilterRule{
		{CIDR: "10.66.0.0/16", MatchOperator: "In", Source: "RemotePeers", Action: "Accept"},
	}}
	s.SetPolicy(bgp.Policy{}, map[netip.Addr]api.BGPFilterSpec{core.peer.Addr: accept})
	core.learns(t, s.V4, "10.66.0.0/24 via 10.0.0.5 (64512 64901)")
	inside.learns(t, s.V4)
	s.SetPolicy(bgp.Policy{}, map[netip.Addr]api.BGPFilterSpec{inside.peer.Addr: accept})
	inside.learns(t, s.V4, "10.66.0.0/24 via 10.0.0.1 (64901)")
	core.learns(t, s.V4)
	s.SetPolicy(bgp.Policy{}, nil)
	inside.learns(t, s.V4)
	check()
}

// Communities keep paths inside of our AS, or from all peers, whatever a rule accepts. With GRACEFUL_SHUTDOWN any other
// path is preferred.
func TestWellKnownCommunities(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	s.Originate()
	s.SetPolicy(bgp.Policy{Transit: pods}, nil)
	from := func(n int, community string) *neighbour {
		return beside(lan, s, bgptest.BIRD2, n, uint32(64900+n), func(c *bgptest.Config) { c.Communities = []string{community} })
	}
	export, advertise, leaving := from(1, "65535:65281"), from(2, "65535:65282"), from(3, "65535:0")
	core, inside := beside(lan, s, bgptest.FRR, 4, 64904), beside(lan, s, bgptest.BIRD2, 6, ourASN)
	all := []*neighbour{export, advertise, leaving, core, inside}
	setPeers(s, all...)
	hears(t, s, "10.1.1.0/26 (64901) [65535:65281] 100", "10.1.2.0/26 (64902) [65535:65282] 100", "10.1.3.0/26 (64903) [65535:0] 0",
		"10.1.4.0/26 (64904) [] 100", "10.1.6.0/26 () [] 100")
	inside.learns(t, s.V4, "10.1.1.0/26 via 10.0.0.1 (64901)", "10.1.3.0/26 via 10.0.0.3 (64903)", "10.1.4.0/26 via 10.0.0.4 (64904)")
	outside := []string{"10.1.3.0/26 via 10.0.0.5 (64512 64903)", "10.1.6.0/26 via 10.0.0.5 (64512)"}
	core.learns(t, s.V4, outside...)
	accept := api.BGPFilterSpec{ExportV4: []api.BGPFilterRule{{Action: "Accept"}}}
	s.SetPolicy(bgp.Policy{Transit: pods}, map[netip.Addr]api.BGPFilterSpec{core.peer.Addr: accept, inside.peer.Addr: accept})
	core.learns(t, s.V4, outside...)
}

// A rule can match the interface of a path, also on its way to another AS, where its next hop is this node already.
func TestFilterByInterface(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	s.Originate()
	rack, core := beside(lan, s, bgptest.BIRD2, 1, 64901), beside(lan, s, bgptest.FRR, 2, 64902)
	setPeers(s, rack, core)
	check := undisturbed(t, s, rack, core)
	through := func(link string) bgp.Policy {
		return bgp.Policy{Transit: pods, Links: []policy.Link{{Prefix: netip.MustParsePrefix("10.0.0.1/32"), Interface: link}}}
	}
	reject := []api.BGPFilterRule{{Interface: "eth*", Action: "Reject"}}
	here := "10.1.1.0/26 via 10.0.0.5 (64512 64901)"
	exports := map[netip.Addr]api.BGPFilterSpec{core.peer.Addr: {ExportV4: reject}}
	s.SetPolicy(through("bond0"), exports)
	core.learns(t, s.V4, here)
	s.SetPolicy(through("eth1"), exports)
	core.learns(t, s.V4)
	s.SetPolicy(through("bond0"), exports)
	core.learns(t, s.V4, here)
	imports := map[netip.Addr]api.BGPFilterSpec{rack.peer.Addr: {ImportV4: reject}}
	s.SetPolicy(through("eth1"), imports)
	core.learns(t, s.V4)
	hears(t, s, "10.1.2.0/26 (64902) [] 100")
	s.SetPolicy(through("eth1"), nil)
	core.learns(t, s.V4, here)
	check()
}
