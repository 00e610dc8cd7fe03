package desired

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// aggregating returns a node with aggregates for two routers, one of another AS at 10.0.0.254 and one of its own at
// 10.0.0.253.
func aggregating(t *testing.T, by string, change func(*state.Cluster)) *Snapshot {
	t.Helper()
	s := snapshot(t, func(w *state.Cluster) {
		for name, spec := range map[string]api.BGPPeerSpec{
			"tor": {PeerIP: "10.0.0.254", ASNumber: 65000}, "inside": {PeerIP: "10.0.0.253", ASNumber: 64512}, "nodes": {PeerSelector: "all()"},
		} {
			w.Peers = append(w.Peers,
				api.BGPPeer{Meta: api.Meta{Name: name, Annotations: map[string]string{api.AnnotationAggregate: by}}, Spec: spec})
		}
		if change != nil {
			change(w)
		}
	})
	new(Deciding).Decide(s)
	return s
}

// told lists the aggregates of each peer, in parentheses those without blocks, and the unreachable routes.
func told(s *Snapshot) (all []string) {
	for peer, of := range s.Aggregates {
		for _, a := range of {
			text := fmt.Sprintf("%s to %s", a.Prefix, peer)
			if !a.Live {
				text = "(" + text + ")"
			}
			if a.Singles {
				text += " singles"
			}
			all = append(all, text)
		}
	}
	for _, p := range s.Originated() {
		if p.Aggregate {
			all = append(all, p.Prefix.String())
		}
	}
	for _, r := range s.By(Grounds{}).Routes(nil) {
		if slices.Contains(s.liveAggregates(), r.Dst) {
			all = append(all, r.String())
		}
	}
	slices.Sort(all)
	return all
}

func TestAggregate(t *testing.T) {
	const by253, by254 = "192.168.0.0/16 to 10.0.0.253", "192.168.0.0/16 to 10.0.0.254"
	live := []string{"192.168.0.0/16", by253, by254, "unreachable 192.168.0.0/16"}
	withoutOwn := func(w *state.Cluster) { w.Affinities = w.Affinities[4:] } // node2's block alone
	add := func(p api.IPPoolSpec) func(*state.Cluster) {
		return func(w *state.Cluster) { w.Pools = append(w.Pools, api.IPPool{Meta: api.Meta{Name: "more"}, Spec: p}) }
	}
	advertise := func(cidr string, changes ...func(*state.Cluster)) func(*state.Cluster) {
		return func(w *state.Cluster) {
			w.BGP.PrefixAdvertisements = []api.PrefixAdvertisement{{CIDR: cidr, Communities: []string{"65000:1"}}}
			for _, change := range changes {
				change(w)
			}
		}
	}
	for _, c := range []struct {
		name, by string
		change   func(*state.Cluster)
		learned  []bgp.Path
		want     []string
		problem  string
	}{
		{name: "not asked for"},
		{name: "own blocks", by: "pools", want: live},
		{name: "no block", by: "pools", change: withoutOwn, want: []string{"(" + by253 + ")", "(" + by254 + ")"}},
		{name: "a node's block, for another AS", by: "pools", change: withoutOwn, learned: learn("192.168.2.0/26 via 10.0.0.2"),
			want: []string{"(" + by253 + ")", "192.168.0.0/16", by254, "unreachable 192.168.0.0/16"}},
		{name: "a block from the router itself", by: "pools", change: withoutOwn, learned: learn("192.168.2.0/26 via 10.0.0.2 from 10.0.0.254"),
			want: []string{"(" + by254 + ")", "192.168.0.0/16", by253, "unreachable 192.168.0.0/16"}},
		{name: "a block with NO_EXPORT", by: "pools", change: withoutOwn,
			learned: []bgp.Path{{Prefix: prefix("192.168.2.0/26"), From: addr("10.0.0.2"), Communities: "65000:1 65535:65281"}},
			want:    []string{"(" + by253 + ")", "(" + by254 + ")"}},
		{name: "the same from another node, and a single address", by: "pools", change: withoutOwn,
			learned: learn("192.168.0.0/16 via 10.0.0.2", "192.168.2.7/32 via 10.0.0.2"), want: []string{"(" + by253 + ")", "(" + by254 + ")"}},
		{name: "blocks of one address", by: "pools", change: func(w *state.Cluster) {
			w.Pools[0].Spec.BlockSize, w.Affinities = 32, []api.BlockAffinity{claim("node1", "192.168.1.7/32", "1")}
		}, want: []string{"192.168.0.0/16", by253 + " singles", by254 + " singles", "unreachable 192.168.0.0/16"}},
		{name: "a pool that is one block", by: "pools", change: func(w *state.Cluster) {
			w.Pools[0].Spec.CIDR, w.Affinities = "192.168.1.0/26", w.Affinities[1:2]
		}},
		{name: "a pool that is kept out of BGP", by: "pools", change: pool(func(p *api.IPPoolSpec) { p.DisableBGPExport = true })},
		{name: "a pool for load balancers", by: "pools",
			change: pool(func(p *api.IPPoolSpec) { p.AllowedUses = []api.AllowedUse{api.UseLoadBalancer} })},
		{name: "a disabled pool without blocks", by: "pools", change: add(api.IPPoolSpec{CIDR: "10.64.0.0/16", Disabled: true}), want: live},
		{name: "a disabled pool with blocks", by: "pools", change: pool(func(p *api.IPPoolSpec) { p.Disabled = true }), want: live},
		{name: "a pool around the API server", by: "pools", change: pool(func(p *api.IPPoolSpec) { p.CIDR = "192.0.0.0/8" }),
			problem: "BGPPeer tor: annotation tortie.io/aggregate pools: 192.0.0.0/8 shares addresses with the API server's address " +
				"192.0.2.1: it is not announced"},
		{name: "a node that only routers reach", by: "pools", change: func(w *state.Cluster) {
			w.Pools[0].Spec.IPIPMode, w.Affinities = api.EncapNever, append(w.Affinities, claim("far", "192.168.3.0/26", "1"))
		}, problem: "192.168.0.0/16 holds block 192.168.3.0/26 of node far, which is in another subnet, and the pool does not encapsulate"},
		{name: "no advertisement", by: "prefixAdvertisements"},
		{name: "a part of a pool", by: "prefixAdvertisements", change: advertise("192.168.0.0/20"),
			want: []string{"192.168.0.0/20", "192.168.0.0/20 to 10.0.0.253", "192.168.0.0/20 to 10.0.0.254", "unreachable 192.168.0.0/20"}},
		{name: "two pools", by: "prefixAdvertisements", change: advertise("192.168.0.0/15", add(api.IPPoolSpec{CIDR: "192.169.0.0/16"})),
			want: []string{"192.168.0.0/15", "192.168.0.0/15 to 10.0.0.253", "192.168.0.0/15 to 10.0.0.254", "unreachable 192.168.0.0/15"}},
		{name: "more than pools", by: "prefixAdvertisements", change: advertise("192.168.0.0/14", add(api.IPPoolSpec{CIDR: "192.169.0.0/16"})),
			problem: "192.168.0.0/14 holds addresses of no IPPool for pods, or of one with disableBGPExport"},
		{name: "a pool that is kept out of BGP in it", by: "prefixAdvertisements",
			change:  advertise("192.168.0.0/15", add(api.IPPoolSpec{CIDR: "192.169.0.0/16", DisableBGPExport: true})),
			problem: "192.168.0.0/15 holds addresses of no IPPool for pods"},
		{name: "a block, and what is no pool's", by: "prefixAdvertisements", change: advertise("192.168.1.0/26", func(w *state.Cluster) {
			w.BGP.PrefixAdvertisements = append(w.BGP.PrefixAdvertisements, api.PrefixAdvertisement{CIDR: "203.0.113.0/24"})
		})},
		{name: "one in the other", by: "prefixAdvertisements", change: advertise("192.168.0.0/20", func(w *state.Cluster) {
			w.BGP.PrefixAdvertisements = append(w.BGP.PrefixAdvertisements, api.PrefixAdvertisement{CIDR: "192.168.0.0/16"})
		}), want: live},
	} {
		s := aggregating(t, c.by, c.change)
		s.Self.APIServer = append(s.Self.APIServer, addr("192.0.2.1"))
		changed, problems := s.By(Grounds{}).Aggregate(c.learned)
		difftest.Want(t, c.name, c.want, told(s))
		if text := strings.Join(texts(problems), "\n"); !errtest.Has(text, c.problem) || (c.problem == "") != (text == "") {
			t.Errorf("%s: problems %q, want %q", c.name, text, c.problem)
		}
		if again, _ := s.By(Grounds{}).Aggregate(c.learned); again || changed != (len(s.Aggregates) > 0) {
			t.Errorf("%s: changed %t, then %t", c.name, changed, again)
		}
	}
}

// A reflector announces the block of one client to another, and to routers of its AS.
func TestAggregateOfReflectors(t *testing.T) {
	s := aggregating(t, "pools", func(w *state.Cluster) { w.Affinities = w.Affinities[4:] })
	for i := range s.Peering.Peers {
		s.Peering.Peers[i].Client = s.Peering.Peers[i].Addr == addr("10.0.0.2")
	}
	s.By(Grounds{}).Aggregate(learn("192.168.2.0/26 via 10.0.0.2"))
	want := []string{"192.168.0.0/16", "192.168.0.0/16 to 10.0.0.253", "192.168.0.0/16 to 10.0.0.254", "unreachable 192.168.0.0/16"}
	difftest.Want(t, "a client's block", want, told(s))
}
