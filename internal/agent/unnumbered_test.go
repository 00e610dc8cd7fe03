package agent

import (
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/radv"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// advertise sends a router advertisement on a router's eth0, and returns the router's address as the node sees it.
func advertise(t *testing.T, ns *netnstest.NS) netip.Addr {
	t.Helper()
	index := ns.Link(t, "eth0").Index
	all, err := ns.Conn.Addrs(index, netlinkx.IPv6)
	errtest.Must(t, err)
	at := slices.IndexFunc(all, func(a netlinkx.Addr) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
	router := all[at].Prefix.Addr()
	e := radv.New(slog.New(slog.DiscardHandler), ns.Namespace)
	t.Cleanup(e.Close)
	e.Set(map[string]radv.Link{"eth0": {Index: index, Addrs: []netip.Addr{router}}})
	return router.WithZone("eth0")
}

// Unresolved sessions are idle since they are configured, and keep routes of an earlier agent.
func TestUnresolvedPeers(t *testing.T) {
	begun := time.Unix(10_000, 0)
	peers := []bgp.PeerStatus{{Addr: addr("10.0.0.7"), State: bgp.Established}, {Addr: addr("fe80::1%eth0"), State: bgp.Established}}
	s := &desired.Snapshot{ASN: 64512}
	s.Peering.Unresolved = []peering.Unresolved{{Peer: bgp.Peer{Addr: addr("fe80::%eth0"), ASN: 65000}, Why: "nothing came"}}
	b := bgpState{begun: begun}
	b.withUnresolved(begun, slices.Clone(peers), s)
	now := begun.Add(time.Minute)
	all := b.withUnresolved(now, slices.Clone(peers), s)
	want := bgp.PeerStatus{Addr: addr("fe80::%eth0"), ASN: 65000, LocalASN: 64512, State: bgp.Idle, Since: begun, LastError: "nothing came",
		ErrorSince: begun, LastErrorAt: now}
	if len(all) != 3 || all[0].Addr != peers[0].Addr || !reflect.DeepEqual(all[1], want) {
		t.Errorf("sessions %+v, want %+v between the others", all, want)
	}
	if b.watch(now, all); !b.settled.IsZero() {
		t.Error("a session that cannot be had yet has told all that it knows")
	}
	s.Peering.Unresolved = nil
	if all = b.withUnresolved(now, slices.Clone(peers), s); len(all) != 2 || len(b.unresolved) > 0 {
		t.Errorf("sessions %+v", all)
	}
}

// A peer that is the router on an interface is shown until it is known. Then it has a session, also after the link was
// made anew.
func TestAgentLearnsRouter(t *testing.T) {
	r := newRig(t)
	labstore.Make(t, r.store, &api.BGPPeer{Meta: api.Meta{Name: "rig-rack"}, Spec: api.BGPPeerSpec{PeerIP: "fe80::%eth0", ASNumber: 65000}})
	speaker := newPeers()
	status, _ := r.agent(t, speaker)
	shown := func(address, part string) func() bool {
		return func() bool {
			return slices.ContainsFunc(status.Report().Peers, func(p nodestatus.Peer) bool {
				return p.Address == address && p.Object == "rig-rack" && p.Kind == "global" && p.ASN == 65000 && errtest.Has(p.LastError, part)
			})
		}
	}
	has := func(router netip.Addr) func() bool {
		return func() bool {
			sessions, _ := speaker.told()
			return slices.ContainsFunc(sessions, func(p bgp.Peer) bool { return p.Addr == router && p.ASN == 65000 && !p.From.IsValid() })
		}
	}
	waittest.Until(t, 2*soon, "the peer that is not known yet", shown("fe80::%eth0", "no router advertisement was received on eth0"))
	router := advertise(t, r.far)
	waittest.Until(t, soon, "the session", has(router))
	waittest.Until(t, soon, "the peer", shown(router.String(), ""))
	if shown("fe80::%eth0", "")() {
		t.Error("the peer is shown twice")
	}

	errtest.Must(t, r.ns.Conn.DeleteLink(r.ns.Link(t, "eth0").Index))
	waittest.Until(t, soon, "the end of the session", func() bool { return !has(router)() })
	netnstest.Cable(t, r.ns, "eth0", r.far, "eth0")
	r.ns.Addr(t, "eth0", "172.31.0.1/24")
	router = advertise(t, r.far)
	waittest.Until(t, soon, "the session on the new link", has(router))
}
