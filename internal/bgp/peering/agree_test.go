package peering

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
)

// dice makes random clusters.
type dice struct{ *rand.Rand }

func (d dice) is(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// nodes returns nodes with addresses of one family or both, racks, and sometimes AS numbers of their own.
func (d dice) nodes(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		node := nodeN(i+1, "rack="+pick(d, "a", "b", "c"))
		if d.is(20) {
			node.Labels["rr"] = "true"
		}
		if d.is(15) {
			node.Addr6 = netip.Addr{}
		} else if d.is(15) {
			node.Addr = netip.Addr{}
		}
		if d.is(20) {
			node.ASN = pick(d, uint32(64512), 65001, 65002)
		}
		if d.is(20) {
			node.Port = pick(d, uint16(179), 1790)
		}
		if d.is(15) {
			node.Reflector, node.ClusterID = true, pick(d, addr("1.0.0.1"), addr("1.0.0.2"), netip.Addr{})
		}
		nodes[i] = node
	}
	return nodes
}

var selectors = []string{"all()", "has(rr)", "!has(rr)", "rack == 'a'", "rack in {'b','c'}", "rack == 'z'"}

// peer returns a random BGPPeer. A fair one contains nothing on which the two ends cannot agree: another AS number or
// port than the node's, or settings that only one end knows.
func (d dice) peer(i int, nodes []Node, fair bool) api.BGPPeer {
	var s api.BGPPeerSpec
	switch d.IntN(3) {
	case 0:
		s.Node = pick(d, nodes...).Name
	case 1:
		s.NodeSelector = pick(d, selectors...)
	}
	switch d.IntN(4) {
	case 0:
		s.PeerIP, s.ASNumber = "172.16.0."+fmt.Sprint(1+d.IntN(3)), 65000
	case 1:
		n := pick(d, nodes...)
		a := cmp.Or(pick(d, n.addrs()...), n.Addr)
		s.PeerIP, s.ASNumber = a.String(), cmp.Or(n.ASN, 64512)
		if !fair {
			s.ASNumber = pick(d, s.ASNumber, 65009)
			s.PeerIP = pick(d, s.PeerIP, netip.AddrPortFrom(a, 1799).String())
		}
	default:
		s.PeerSelector = pick(d, selectors...)
		if d.is(20) { // where the peer is given by its AS number, another would not agree
			s.LocalASNumber = ptr(uint32(65100 + d.IntN(2)))
		}
	}
	if !fair && d.is(20) {
		s.ReversePeering = "Manual"
	}
	if d.is(30) {
		s.MaxRestartTime = pick(d, "10s", "20s")
	}
	s.KeepOriginalNextHop = d.is(10)
	return bgpPeer(fmt.Sprintf("p%d", i), s)
}

// views returns each node's decision on the same cluster.
func views(nodes []Node, peers []api.BGPPeer, mesh bool) []Decision {
	all := make([]Decision, len(nodes))
	for i := range nodes {
		in := Input{Self: nodes[i], ASN: 64512, Port: 179, Mesh: Mesh{On: mesh}, Peers: peers}
		for j := range nodes {
			if i != j {
				in.Others = append(in.Others, nodes[j])
			}
		}
		all[i], _ = Decide(in, State{})
	}
	return all
}

func (d Decision) peer(a netip.Addr) (bgp.Peer, bool) {
	for _, p := range d.Peers {
		if p.Addr == a {
			return p, true
		}
	}
	return bgp.Peer{}, false
}

// In every cluster both ends of a session between nodes decide alike: both have it or none, one of them at least
// connects, each is in the AS that the other expects, and knows the other's port.
func TestBothEndsAgree(t *testing.T) {
	for seed := range uint64(3000) {
		d := dice{rand.New(rand.NewPCG(seed, 1))}
		nodes := d.nodes(2 + d.IntN(5))
		var peers []api.BGPPeer
		for i := range d.IntN(5) {
			peers = append(peers, d.peer(i, nodes, true))
		}
		all := views(nodes, peers, d.is(70))
		for i := range nodes {
			for j := range i {
				for _, a := range nodes[i].addrs() {
					if b := nodes[j].in(a); b.IsValid() {
						if err := agree(all, nodes, i, j, a, b); err != nil {
							t.Fatalf("seed %d: %s at %s and %s at %s: %v\n%+v", seed, nodes[i].Name, a, nodes[j].Name, b, err, peers)
						}
					}
				}
			}
		}
	}
}

func agree(all []Decision, nodes []Node, i, j int, a, b netip.Addr) error {
	there, thereIs := all[i].peer(b)
	back, backIs := all[j].peer(a)
	as := func(p bgp.Peer, n Node) uint32 { return cmp.Or(p.LocalASN, n.ASN, 64512) }
	switch {
	case thereIs != backIs:
		return fmt.Errorf("one has the session (%v), the other not (%v)", there, back)
	case !thereIs:
		return nil
	case there.Passive && back.Passive:
		return fmt.Errorf("both wait")
	case all[i].Sources[b].Peer == "" && there.Passive == back.Passive:
		return fmt.Errorf("in the mesh not exactly one waits")
	case there.ASN != as(back, nodes[j]) || back.ASN != as(there, nodes[i]):
		return fmt.Errorf("AS numbers: %d expected and %d, %d expected and %d", there.ASN, as(back, nodes[j]), back.ASN, as(there, nodes[i]))
	case there.Port != cmp.Or(nodes[j].Port, 179) || back.Port != cmp.Or(nodes[i].Port, 179):
		return fmt.Errorf("ports %d and %d", there.Port, back.Port)
	}
	return nil
}

// Even where they cannot agree, at least one end connects.
func TestNeverBothWait(t *testing.T) {
	for seed := range uint64(2000) {
		d := dice{rand.New(rand.NewPCG(seed, 2))}
		nodes := d.nodes(2 + d.IntN(4))
		var peers []api.BGPPeer
		for i := range d.IntN(6) {
			peers = append(peers, d.peer(i, nodes, false))
		}
		all := views(nodes, peers, d.is(70))
		for i := range nodes {
			for _, p := range all[i].Peers {
				for j := range nodes {
					if back, ok := all[j].peer(nodes[i].in(p.Addr)); ok && nodes[j].in(p.Addr) == p.Addr && p.Passive && back.Passive {
						t.Fatalf("seed %d: %s and %s both wait\n%+v", seed, nodes[i].Name, nodes[j].Name, peers)
					}
				}
			}
		}
	}
}

// No object causes a session that the speaker refuses, or a panic.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), "172.16.0.1:179", "has(rr)", "1m", "10.0.0.254", "Keep", "64512:1", -1)
	f.Add(uint64(2), "[fd00::2]:1", "rack == 'a'", "0s", "fe80::1", "Me", "x", 300)
	f.Add(uint64(3), "10.0.0.2", "(", "9999h", "::ffff:10.0.0.1", "", "1:2:3", 11)
	f.Fuzz(func(t *testing.T, seed uint64, peerIP, selector, duration, via, mode, community string, number int) {
		d := dice{rand.New(rand.NewPCG(seed, 3))}
		nodes := d.nodes(4)
		in := Input{Self: nodes[0], Others: nodes[1:], ASN: 64512, Port: 179, Mesh: Mesh{On: d.is(50)}}
		for i := range 3 {
			p := d.peer(i, nodes, false)
			s := &p.Spec
			for _, field := range []struct {
				of   *string
				text string
			}{
				{&s.PeerIP, peerIP}, {&s.PeerSelector, selector}, {&s.NodeSelector, selector}, {&s.MaxRestartTime, duration},
				{&s.KeepaliveTime, duration}, {&s.ReachableBy, via}, {&s.NextHopMode, mode}, {&s.SourceAddress, mode},
			} {
				if d.is(30) {
					*field.of = field.text
				}
			}
			if d.is(30) {
				s.TTLSecurity, s.NumAllowedLocalASNumbers, s.LocalASNumber = &number, &number, ptr(uint32(number))
			}
			if d.is(20) {
				s.Filters = []string{"f", via}
			}
			in.Peers = append(in.Peers, p)
		}
		in.Filters = []api.BGPFilter{
			{Meta: api.Meta{Name: "f"}, Spec: api.BGPFilterSpec{ExportV4: []api.BGPFilterRule{{Action: mode, CIDR: peerIP, MatchOperator: "In"}}}},
		}
		in.Config.PrefixAdvertisements = []api.PrefixAdvertisement{{CIDR: via + "/32", Communities: []string{community}}}
		first, state := Decide(in, State{})
		again, _ := Decide(in, state)
		for _, d := range []Decision{first, again} {
			for i, p := range d.Peers {
				if err := usable(p, in.Self); err != nil {
					t.Errorf("%s: %v", p, err)
				}
				if _, ok := d.Sources[p.Addr]; !ok || i > 0 && d.Peers[i-1].Addr.Compare(p.Addr) >= 0 {
					t.Errorf("%s has no source, or is not in order", p)
				}
			}
			for _, err := range d.Problems {
				if strings.Contains(err.Error(), "%!") {
					t.Errorf("%v", err)
				}
			}
		}
		if fmt.Sprint(texts(first)) != fmt.Sprint(texts(again)) {
			t.Errorf("the same again: %v, then %v", texts(first), texts(again))
		}
	})
}

// usable returns an error for a peer that the speaker refuses.
func usable(p bgp.Peer, self Node) error {
	within := func(d, least, most time.Duration) bool { return d == 0 || d >= least && d <= most }
	hold := cmp.Or(p.HoldTime, bgp.DefaultHoldTime)
	switch {
	case checkUnicast(p.Addr) != nil || p.Addr == self.Addr || p.Addr == self.Addr6:
		return fmt.Errorf("address")
	case p.From.IsValid() && p.From != self.in(p.Addr):
		return fmt.Errorf("own address %s", p.From)
	case p.ASN == 0 || p.Port == 0:
		return fmt.Errorf("AS %d, port %d", p.ASN, p.Port)
	case !within(p.RestartTime, time.Second, maxRestart) || !within(p.Keepalive, time.Second, hold-1) ||
		!within(p.HoldTime, 3*time.Second, 65535*time.Second):
		return fmt.Errorf("restart %s, keepalive %s, hold %s", p.RestartTime, p.Keepalive, p.HoldTime)
	case p.AllowOwnASN < 0 || p.AllowOwnASN > bgp.MaxOwnASN || p.TTLSecurity < 0 || p.TTLSecurity > maxHops:
		return fmt.Errorf("own AS %d times, %d hops", p.AllowOwnASN, p.TTLSecurity)
	case p.Client && p.ASN != cmp.Or(p.LocalASN, self.ASN, 64512):
		return fmt.Errorf("a client in another AS")
	}
	return nil
}

func BenchmarkDecide(b *testing.B) {
	in := Input{Self: nodeN(1), ASN: 64512, Port: 179, Mesh: Mesh{On: false}}
	for i := range 5000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		in.Others = append(in.Others,
			Node{Name: fmt.Sprintf("n%04d", i), Addr: a, Labels: map[string]string{"rack": fmt.Sprint(i % 100), "zone": "z"}})
	}
	in.Self.Addr6 = netip.Addr{}
	in.Self.Labels = map[string]string{"rack": "7", "zone": "z"}
	for i := range 10 {
		in.Peers = append(in.Peers, bgpPeer(fmt.Sprintf("p%d", i),
			api.BGPPeerSpec{NodeSelector: fmt.Sprintf("rack == '%d'", i), PeerSelector: "rack in {'7', '8'} && zone == 'z'"}))
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := Decide(in, State{}); len(d.Peers) != 500 {
			b.Fatalf("%d sessions", len(d.Peers))
		}
	}
}
