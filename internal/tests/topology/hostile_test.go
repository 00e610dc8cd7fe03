package topology

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// A hostile router that an operator has configured, beside an honest one.
const (
	hostileAddr, honestAddr = "172.31.1.66", "172.31.1.3"
	hostileASN, honestASN   = 65066, 65000
)

// hostile is two nodes with sessions to both routers.
type hostile struct {
	*world
	nodes  []*meshtest.Node
	host   *bgptest.Host
	honest bgptest.Daemon
	since  uptime
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{world: newWorld(t, false)}
	h.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	h.nodes = []*meshtest.Node{h.node(t, 0, 11), h.node(t, 0, 12)}
	h.host = h.router(t, "hostile", hostileAddr)
	config := bgptest.Config{ASN: honestASN, Readvertise: true, Announce: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
	for _, n := range h.nodes {
		config.Sessions = append(config.Sessions, bgptest.Session{Peer: n.Prefix.Addr(), ASN: 64512, Passive: true})
	}
	h.honest = h.router(t, "honest", honestAddr).Daemon(bgptest.FRR, config)
	h.Create(t, &api.BGPPeer{Meta: api.Meta{Name: "honest"}, Spec: api.BGPPeerSpec{PeerIP: honestAddr, ASNumber: honestASN}})
	meshtest.Start(t, h.nodes...)
	for _, n := range h.nodes {
		leads(t, n.NS, n.Name, "203.0.113.0/24", honestAddr+" eth0")
		// Stale routes of an earlier agent are removed only then.
		meshtest.Eventually(t, func() error { return n.Settled(2) })
	}
	h.Create(t, &api.BGPPeer{Meta: api.Meta{Name: "hostile"},
		Spec: api.BGPPeerSpec{PeerIP: hostileAddr, ASNumber: hostileASN, Node: "node-11"}})
	h.since = uptimes(t, h.nodes...)
	return h
}

func (h *hostile) router(t testing.TB, name, addr string) *bgptest.Host {
	t.Helper()
	return h.world.host(t, name, link{"nodes", "br0", []string{addr + "/24"}})
}

// victim is the node with a session to the hostile router.
func (h *hostile) victim() *meshtest.Node { return h.nodes[0] }

// establish opens the session of the hostile router.
func (h *hostile) establish() *bgptest.Raw {
	session, _ := h.host.Establish(h.victim().Prefix.Addr(), hostileASN, 120)
	return session
}

// update returns an UPDATE for prefixes with an AS path, a next hop and more attributes.
func update(path []uint32, hop string, more []byte, prefixes ...string) []byte {
	attrs := []byte{0x40, 1, 1, 0, 0x40, 2, byte(2 + 4*len(path)), 2, byte(len(path))}
	for _, as := range path {
		attrs = binary.BigEndian.AppendUint32(attrs, as)
	}
	attrs = append(attrs, 0x40, 3, 4)
	attrs = append(attrs, netip.MustParseAddr(hop).AsSlice()...)
	attrs = append(attrs, more...)
	var nlri []netip.Prefix
	for _, p := range prefixes {
		nlri = append(nlri, netip.MustParsePrefix(p))
	}
	return bgptest.Message(bgptest.Update, bgptest.UpdateBody(nil, attrs, bgptest.NLRI(nlri...))...)
}

// manyCommunities returns an attribute of more than 2 KiB.
func manyCommunities() []byte {
	const count = 600
	attr := binary.BigEndian.AppendUint16([]byte{0xd0, 8}, 4*count)
	return append(attr, bytes.Repeat([]byte{0xfc, 0, 0, 1}, count)...)
}

// lie is an announcement that must be rejected, and its reason.
type lie struct {
	name   string
	update []byte
	prefix string
	// reason is part of the reason in the peer's status, or in the list of rejected routes.
	reason string
}

func lies() []lie {
	own := []uint32{hostileASN}
	return []lie{
		{"the node's AS number is in the path", update([]uint32{hostileASN, 64512}, hostileAddr, nil, "192.0.2.0/28"), "192.0.2.0/28", "own AS"},
		{"a path that does not begin with the peer", update([]uint32{65000, 65001}, hostileAddr, nil, "192.0.2.16/28"),
			"192.0.2.16/28", "AS path"},
		{"the node's own address", update(own, hostileAddr, nil, "172.31.1.11/32"), "172.31.1.11", "own address"},
		{"the node's own block", update(own, hostileAddr, nil, "10.90.11.0/26"), "", "own block"},
		{"a pod of the node", update(own, hostileAddr, nil, "10.90.11.5/32"), "10.90.11.5", "a pod on this node has the address"},
		{"a part of the node's own block", update(own, hostileAddr, nil, "10.90.11.32/27"), "10.90.11.32/27", "this node's own block"},
		{"loopback", update(own, hostileAddr, nil, "127.0.0.0/8"), "127.0.0.0/8", "martian"},
		{"link-local", update(own, hostileAddr, nil, "169.254.0.0/16"), "169.254.0.0/16", "martian"},
		{"multicast", update(own, hostileAddr, nil, "224.0.0.0/4"), "224.0.0.0/4", "martian"},
		{"the nodes' own network", update(own, hostileAddr, nil, "172.31.1.0/24"), "", "172.31.1.0/24"},
		{"a next hop that is this node", update(own, "172.31.1.11", nil, "192.0.2.32/28"), "192.0.2.32/28", "next hop"},
		{"an unreachable next hop", update(own, "192.168.99.9", nil, "192.0.2.48/28"), "192.0.2.48/28", "in no subnet of this node"},
		{"a next hop on loopback", update(own, "127.0.0.1", nil, "192.0.2.64/28"), "192.0.2.64/28", "malformed"},
		{"attributes of more than 2 KiB", update(own, hostileAddr, manyCommunities(), "192.0.2.80/28"), "192.0.2.80/28", "more than 2048 bytes"},
	}
}

// Invalid announcements of a router are rejected, counted and reported with a reason; valid ones of the same session
// are accepted; other sessions are not affected.
func TestHostileRouter(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHostile(t)
	packets := meshtest.StartTraffic(t, h.pods[h.nodes[0]], h.pods[h.nodes[1]])
	session := h.establish()
	for i, l := range lies() {
		marker := fmt.Sprintf("198.51.100.%d/32", i+1)
		session.Send(l.update, update([]uint32{hostileASN}, hostileAddr, nil, marker))
		leads(t, h.victim().NS, h.victim().Name, marker, hostileAddr+" eth0")
		h.refused(t, l)
		if l.prefix == "" { // the kernel has a route of its own
			continue
		}
		if have := hops(t, h.victim().NS, l.prefix); slices.ContainsFunc(have,
			func(hop string) bool { return strings.HasPrefix(hop, hostileAddr) }) {
			t.Errorf("%s: the kernel sends %s to %v", l.name, l.prefix, have)
		}
	}
	leads(t, h.victim().NS, h.victim().Name, blockOf(h.nodes[1]), "172.31.1.12 eth0")
	leads(t, h.victim().NS, h.victim().Name, blockOf(h.nodes[0]), "unreachable")
	p := sessions(t, h.victim())[hostileAddr]
	t.Logf("refused of %s: %d, %+v", hostileAddr, p.Refused, p.Refusals)
	if p.State != "Established" || p.Refused < 7 {
		t.Errorf("the session is %s, and %d prefixes are refused: %+v", p.State, p.Refused, p.Refusals)
	}
	// Other traffic was not interrupted, including that of the honest router.
	h.since.untouched(t, "lies")
	packets.Intact(t)
}

// refused waits until the victim reports why it rejects an announcement.
func (h *hostile) refused(t *testing.T, l lie) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		r, err := h.victim().Status()
		if err != nil {
			return err
		}
		for _, refusal := range r.Routes.Refusals {
			if strings.HasPrefix(refusal.Prefix, l.prefix) && strings.Contains(refusal.Reason, l.reason) {
				return nil
			}
		}
		said := sessions(t, h.victim())[hostileAddr].Refusals
		for _, refusal := range said {
			if strings.Contains(refusal.Reason, l.reason) {
				return nil
			}
		}
		return fmt.Errorf("%s: not refused as %q: %+v, %+v", l.name, l.reason, said, r.Routes.Refusals)
	})
}

// A flapping router, and one that leaks a full table, do not affect others.
func TestFlappingAndLeakingRouter(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHostile(t)
	packets := meshtest.StartTraffic(t, h.pods[h.nodes[0]], h.pods[h.nodes[1]])
	for i := range 10 { // after some, the agent delays the router
		session := h.establish()
		session.Send(update([]uint32{hostileASN}, hostileAddr, nil, fmt.Sprintf("198.51.100.%d/32", i%3+1)))
		_ = session.Close()
	}
	session := h.establish()
	session.Send(update([]uint32{hostileASN}, hostileAddr, nil, "198.51.100.200/32"))
	leads(t, h.victim().NS, h.victim().Name, "198.51.100.200", hostileAddr+" eth0")
	h.since.untouched(t, "a router that flaps")
	if p := sessions(t, h.victim())[hostileAddr]; p.Sessions < 11 {
		t.Errorf("flapping router: %d sessions are counted", p.Sessions)
	}

	before := h.victim().Usage(t)
	const table = 100_000
	for sent := 0; sent < table; {
		var message []string
		for range 500 {
			message = append(message, netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(sent>>16), byte(sent >> 8), byte(sent), 0}), 24).String())
			sent++
		}
		session.Send(update([]uint32{hostileASN, 3356}, hostileAddr, nil, message...))
	}
	meshtest.Eventually(t, func() error {
		p := sessions(t, h.victim())[hostileAddr]
		if p.State == "Established" || time.Until(p.HeldUntil) < 10*time.Second || !strings.Contains(p.LastError, "maximum number of prefixes") {
			return fmt.Errorf("a router with a full table: %s, held until %v: %s", p.State, p.HeldUntil, p.LastError)
		}
		return nil
	})
	// All its routes are removed, including valid ones.
	meshtest.Eventually(t, func() error {
		text := h.victim().Run(t, "ip", "route", "show", "via", hostileAddr)
		if count := strings.Count(text, "\n"); count > 0 {
			return fmt.Errorf("%d routes lead to a router that is held down", count)
		}
		return nil
	})
	after := h.victim().Usage(t)
	t.Logf("the agent's own memory: %d KiB before the table, %d KiB after", before.Anonymous, after.Anonymous)
	if grown := after.Anonymous - before.Anonymous; grown > 96<<10 {
		t.Errorf("the agent has grown by %d KiB", grown)
	}
	h.since.untouched(t, "a router that leaks")
	leads(t, h.victim().NS, h.victim().Name, "203.0.113.0/24", honestAddr+" eth0")
	packets.Intact(t)
}
