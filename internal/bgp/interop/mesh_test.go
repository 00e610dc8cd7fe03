package interop_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// side is one way to open a session between the node and a daemon.
type side struct {
	name                    string
	weWait, itWaits         bool
	host                    int
	incoming                func(n int) bool // checks how many connections the node accepted
	asn                     uint32
	nodeASPath, theirASPath string
	localPref               string
}

// sides returns all ways, in iBGP and eBGP.
func sides() []side {
	var list []side
	for i, as := range []side{
		{name: "iBGP", asn: ourASN, localPref: "100"},
		{name: "eBGP", asn: 64999, nodeASPath: "64512", theirASPath: "64999"},
	} {
		for j, way := range []side{
			{name: "node connects", itWaits: true, incoming: func(n int) bool { return n == 0 }},
			{name: "node waits", weWait: true, incoming: func(n int) bool { return n == 1 }},
			{name: "both connect", incoming: func(n int) bool { return n <= 1 }},
		} {
			as := as
			as.name += ", " + way.name
			as.weWait, as.itWaits, as.incoming = way.weWait, way.itWaits, way.incoming
			as.host = 10*(i+1) + j
			list = append(list, as)
		}
	}
	return list
}

// Sessions come up in one AS and between two, for both families, whichever end opens them. Announcements arrive with
// the right attributes and get into the other's kernel. Learned paths are not passed on.
func TestMesh(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		var all []bgp.Peer
		daemons := map[string]bgptest.Daemon{}
		for _, s := range sides() {
			host := lan.Host(s.host)
			config := partner(s.host, node.Host, func(p *bgptest.Session) { p.Passive = s.itWaits })
			config.ASN = s.asn
			daemons[s.name] = host.Daemon(kind, config)
			all = append(all, peers(node.Host, host, func(p *bgp.Peer) { p.ASN, p.Passive = s.asn, s.weWait })...)
		}
		node.SetPeers(all...)
		for _, s := range sides() {
			for i, addr := range daemons[s.name].On().Addrs() {
				t.Logf("%s: %s", s.name, addr)
				checkSession(t, node, daemons[s.name], s, addr, node.Addrs()[i])
			}
		}
		checkSteady(t, node, all)
		checkChange(t, node, daemons[sides()[0].name])
	})
}

// checkSession checks one session at both ends.
func checkSession(t *testing.T, node *bgptest.Speaker, d bgptest.Daemon, s side, addr, ours netip.Addr) {
	t.Helper()
	node.WaitEstablished(addr)
	bgptest.WaitState(t, d, ours, "Established")
	bgptest.Eventually(t, func() error {
		if in, out := connections(node.Host, addr); !s.incoming(in) || in+out != 1 {
			return fmt.Errorf("%d connections from %s on port 179, %d to it", in, addr, out)
		}
		return nil
	})

	var want []bgp.Path
	for _, prefix := range blocksOf(s.host) {
		if prefix.Addr().Is4() == addr.Is4() {
			want = append(want, bgp.Path{Prefix: prefix, NextHop: addr, From: addr, ASPath: s.theirASPath, LocalPref: 100})
		}
	}
	bgptest.Eventually(t, func() error {
		if d := cmp.Diff(want, node.LearnedFrom(addr), difftest.Netip); d != "" {
			return fmt.Errorf("learned from %s (-want +got):\n%s", addr, d)
		}
		return nil
	})

	var announced []bgptest.Route
	for _, prefix := range family(addr, ownBlocks...) {
		announced = append(announced, bgptest.Route{Prefix: prefix, NextHop: ours, Origin: "IGP", ASPath: s.nodeASPath, LocalPref: s.localPref})
	}
	bgptest.Eventually(t, func() error {
		learned := d.Learned(ours)
		if s.asn != ourASN {
			for i := range learned {
				learned[i].LocalPref = "" // not sent between ASes: some kinds show a value of their own
			}
		}
		if d := cmp.Diff(announced, learned, difftest.Netip); d != "" {
			return fmt.Errorf("learned by %s (-want +got):\n%s", addr, d)
		}
		return nil
	})
	for _, route := range announced {
		bgptest.WaitKernel(t, d.On(), route.Prefix.String(), ours)
	}
	// In eBGP FRR also sends our paths back, with our own AS in them.
	if p := node.Peer(addr); p.Sent != len(announced) || p.Received < len(want) {
		t.Errorf("session to %s: %d sent, %d received, want %d and at least %d", addr, p.Sent, p.Received, len(announced), len(want))
	}
}

// checkChange makes both ends withdraw a prefix and announce another one.
func checkChange(t *testing.T, node *bgptest.Speaker, d bgptest.Daemon) {
	t.Helper()
	next := []netip.Prefix{netip.MustParsePrefix("10.1.99.0/26"), netip.MustParsePrefix("fd01:99::/122")}
	d.Announce(next...)
	for i, addr := range d.On().Addrs() {
		bgptest.Eventually(t, func() error {
			if paths := node.LearnedFrom(addr); len(paths) != 1 || paths[0].Prefix != next[i] {
				return fmt.Errorf("learned from %s: %v, want %s alone", addr, paths, next[i])
			}
			return nil
		})
	}
	node.Originate(ownBlocks[0], "10.1.98.0/26", "fd01:98::/122")
	waitKernels(t, d.On(), node.Host, ownBlocks[0], "10.1.98.0/26", "fd01:98::/122")
	for _, prefix := range ownBlocks[1:] {
		bgptest.Eventually(t, func() error {
			if route := d.On().KernelRoute(prefix); route != "" {
				return fmt.Errorf("withdrawn, and still there: %s", route)
			}
			return nil
		})
	}
}

// connections counts a host's incoming connections from another host to its BGP port, and its outgoing ones.
func connections(h *bgptest.Host, other netip.Addr) (in, out int) {
	h.T.Helper()
	for line := range strings.Lines(h.Run(h.T, "busybox", "netstat", "-tn")) {
		fields := strings.Fields(line)
		switch ours, theirs := fields[3], fields[4]; {
		case fields[len(fields)-1] != "ESTABLISHED" || !strings.HasPrefix(theirs, other.String()+":"):
		case strings.HasSuffix(ours, ":179"):
			in++
		case strings.HasSuffix(theirs, ":179"):
			out++
		}
	}
	return in, out
}

// checkSteady checks that no session is lost while nothing happens: crossing connections must not end each other for
// ever.
func checkSteady(t *testing.T, node *bgptest.Speaker, all []bgp.Peer) {
	t.Helper()
	since := map[netip.Addr]time.Time{}
	for _, p := range all {
		since[p.Addr] = node.Peer(p.Addr).Since
	}
	time.Sleep(8 * time.Second) //nolint:forbidigo // longer than the others wait between two attempts
	for _, p := range all {
		if now := node.Peer(p.Addr); now.State != bgp.Established || !now.Since.Equal(since[p.Addr]) {
			t.Errorf("session to %s: %+v, was established since %s", p.Addr, now, since[p.Addr])
		}
	}
}
