package desired

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/bgp/peering"
)

// An object that asks for BFD with a peer behind a router is named once, with the peer and the remedy, after a long
// silence.
func TestFarBFD(t *testing.T) {
	now := time.Unix(10_000, 0)
	long := now.Add(-bfdPatience)
	near, far, mesh, link, selected := addr("10.0.0.7"), addr("10.77.0.8"), addr("10.77.0.9"), addr("fe80::1%eth0"), addr("10.77.0.12")
	s := &Snapshot{Self: Self{Name: "n1", Addr: prefix("10.0.0.5/24"), Link: "eth0"}}
	s.Peering.Sources = map[netip.Addr]peering.Source{
		near: {Peer: "near"}, link: {Peer: "link"}, far: {Peer: "far"}, addr("10.77.0.10"): {Peer: "far"}, mesh: {Node: "n9"},
		addr("10.77.0.11"): {Node: "n11"},
		selected:           {Peer: "selected", Node: "n12"},
	}
	var silent []bgp.PeerStatus
	for _, a := range []netip.Addr{near, link, far, addr("10.77.0.10"), mesh, addr("10.77.0.11"), selected} {
		silent = append(silent, bgp.PeerStatus{Addr: a, State: bgp.Established, Since: long, BFD: &bfd.Status{State: bfd.Down, Since: long}})
	}
	problems := s.FarBFD(silent, now)
	const cause = ": it is in no subnet of this node, and BFD works over one hop only (RFC 5881): "
	want := []string{
		"BGPPeer far: annotation tortie.io/bfd: no packets come from peer 10.77.0.8" + cause + "remove the annotation",
		"BGPConfiguration default: annotation tortie.io/bfd: no packets come from peer 10.77.0.9" + cause + "ask for it in BGPPeers",
		"BGPPeer selected: annotation tortie.io/bfd: no packets come from peer 10.77.0.12" + cause + "ask for it in BGPPeers",
	}
	if len(problems) != len(want) {
		t.Fatalf("%q", problems)
	}
	for i, w := range want {
		if !strings.HasPrefix(problems[i].Error(), w) {
			t.Errorf("%v, want %s", problems[i], w)
		}
	}
	for _, p := range silent {
		if named := strings.Contains(p.BFD.Fault, cause); named != (p.Addr != near && p.Addr != link) {
			t.Errorf("%s: BFD's fault is %q", p.Addr, p.BFD.Fault)
		}
	}
	for name, change := range map[string]func(*bgp.PeerStatus){
		"it answers":          func(p *bgp.PeerStatus) { p.BFD.Heard = true },
		"no socket":           func(p *bgp.PeerStatus) { p.BFD.Fault = "open UDP port 3784 for BFD: address already in use" },
		"BFD has just begun":  func(p *bgp.PeerStatus) { p.BFD.Since = now },
		"BGP has just begun":  func(p *bgp.PeerStatus) { p.Since = now },
		"BGP is down, too":    func(p *bgp.PeerStatus) { p.State = bgp.Active },
		"there is to be none": func(p *bgp.PeerStatus) { p.BFD = nil },
	} {
		state := bfd.Status{State: bfd.Down, Since: long}
		p := silent[2]
		p.BFD = &state
		change(&p)
		if problems := s.FarBFD([]bgp.PeerStatus{p}, now); problems != nil {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
