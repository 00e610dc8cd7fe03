package interop_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// guarded is a node with an honest peer, whose session must survive all attacks.
type guarded struct {
	t      *testing.T
	lan    *bgptest.LAN
	node   *bgptest.Speaker
	honest *bgptest.Host
	all    []bgp.Peer
	since  map[netip.Addr]time.Time
	rss    int // KiB, at first
	grown  int // at most
}

func guardedNode(t *testing.T) *guarded {
	t.Helper()
	lan, node := node(t)
	g := &guarded{t: t, lan: lan, node: node, honest: lan.Host(9), since: map[netip.Addr]time.Time{}}
	// The daemon waits: two crossing connections would be a reason to lose one.
	g.honest.Daemon(bgptest.BIRD2, partner(9, node.Host, func(p *bgptest.Session) { p.Passive = true }))
	g.add(peers(node.Host, g.honest)...)
	waitPaths(t, node, blocksOf(9), false)
	for _, addr := range g.honest.Addrs() {
		g.since[addr] = node.Peer(addr).Since
	}
	g.rss = node.Usage().RSS
	t.Cleanup(func() { t.Logf("the process has grown from %d by %d MB at most", g.rss>>10, g.grown>>10) })
	return g
}

// add adds peers to the node's.
func (g *guarded) add(peers ...bgp.Peer) {
	g.t.Helper()
	g.all = append(g.all, peers...)
	g.node.SetPeers(g.all...)
}

// hostile adds peers that attack in turn: a peer that loses one session after another must wait longer and longer.
func (g *guarded) hostile() (hosts []*bgptest.Host) {
	g.t.Helper()
	for n := range 6 {
		host := g.lan.Host(77 + n)
		g.add(peers(g.node.Host, host, func(p *bgp.Peer) { p.Passive, p.ConnectRetry = true, time.Second })[0])
		hosts = append(hosts, host)
	}
	return hosts
}

// check fails the test unless the node works, its honest peer's sessions are untouched, and it has not grown by more
// than 64 MB.
func (g *guarded) check(after string) {
	g.t.Helper()
	g.node.Healthy()
	for addr, since := range g.since {
		if p := g.node.Peer(addr); p.State != bgp.Established || !p.Since.Equal(since) {
			g.t.Errorf("after %s: session to an honest peer: %+v, was up since %s", after, p, since)
		}
	}
	if paths := g.node.LearnedFrom(g.honest.V4); len(paths) != 1 || paths[0].Stale {
		g.t.Errorf("after %s: an honest peer's paths: %v", after, paths)
	}
	g.grown = max(g.grown, g.node.Usage().RSS-g.rss)
	if g.grown > 64<<10 {
		g.t.Errorf("after %s: the process has grown by %d MB", after, g.grown>>10)
	}
}

// attack is a sequence of messages of a hostile peer. Established ones begin after an orderly handshake.
type attack struct {
	name        string
	established bool
	send        [][]byte
}

func attacks() []attack {
	hop := netip.MustParseAddr("10.0.0.77")
	good := bgptest.UpdateMessage(hop, 100, netip.MustParsePrefix("10.66.0.0/26"))
	open := bgptest.OpenMessage(ourASN, hop, true, 90, 120)
	raw := func(parts ...[]byte) [][]byte { return parts }
	update := func(withdrawn, attrs, nlri []byte) [][]byte {
		return raw(bgptest.Message(bgptest.Update, bgptest.UpdateBody(withdrawn, attrs, nlri)...))
	}
	length := func(m []byte, n uint16) []byte {
		m = bytes.Clone(m)
		binary.BigEndian.PutUint16(m[16:], n)
		return m
	}
	basic := []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4, 10, 0, 0, 77, 0x40, 5, 4, 0, 0, 0, 100}
	with := func(more ...byte) []byte { return append(bytes.Clone(basic), more...) }
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(i * 7)
	}
	return []attack{
		{"noise", false, raw(noise)},
		{"HTTP", false, raw([]byte("GET / HTTP/1.1\r\nHost: node\r\n\r\n"))},
		{"nothing, and goes away", false, nil},
		{"half a header", false, raw(open[:10])},
		{"half an OPEN", false, raw(open[:25])},
		{"a wrong marker", false, raw(append(make([]byte, 16), open[16:]...))},
		{"a message of length 0", false, raw(length(open, 0))},
		{"a message of length 18", false, raw(length(open, 18))},
		{"a message of length 65535", false, raw(length(open, 65535), noise)},
		{"a type nobody knows instead of an OPEN", false, raw(bgptest.Message(99))},
		{"an UPDATE instead of an OPEN", false, raw(good)},
		{"a KEEPALIVE instead of an OPEN", false, raw(bgptest.Message(bgptest.Keepalive))},
		{"an OPEN of version 3", false, raw(bgptest.Message(bgptest.Open, append([]byte{3}, open[20:]...)...))},
		{"an OPEN with parameters beyond its end", false, raw(bgptest.Message(bgptest.Open, 4, 0xfc, 0, 0, 90, 10, 0, 0, 77, 200, 2, 4))},
		{"an OPEN with a capability beyond its end", false,
			raw(bgptest.Message(bgptest.Open, 4, 0xfc, 0, 0, 90, 10, 0, 0, 77, 4, 2, 2, 65, 200))},
		{"an OPEN with a short capability", false, raw(bgptest.Message(bgptest.Open, 4, 0xfc, 0, 0, 90, 10, 0, 0, 77, 5, 2, 3, 64, 1, 0))},
		{"an OPEN with hold time 1", false, raw(bgptest.OpenMessage(ourASN, hop, true, 1, 120))},
		{"an OPEN with our router ID", false, raw(bgptest.OpenMessage(ourASN, netip.MustParseAddr("10.0.0.5"), true, 90, 120))},
		{"an OPEN of AS 0", false, raw(bgptest.OpenMessage(0, hop, true, 90, 120))},
		{"two OPENs", false, raw(open, open)},

		{"a type nobody knows", true, raw(bgptest.Message(9))},
		{"type 255 with a body", true, raw(bgptest.Message(255, noise[:4000]...))},
		{"another OPEN", true, raw(open)},
		{"a KEEPALIVE with a body", true, raw(bgptest.Message(bgptest.Keepalive, 1, 2, 3))},
		{"an empty NOTIFICATION", true, raw(bgptest.Message(bgptest.Notification))},
		{"a NOTIFICATION nobody knows", true, raw(bgptest.Message(bgptest.Notification, 200, 200, 1, 2, 3))},
		{"a Cease with a text that lies about its length", true, raw(bgptest.Message(bgptest.Notification, 6, 2, 255, 'x'))},
		{"a ROUTE-REFRESH of one byte", true, raw(bgptest.Message(5, 1))},
		{"a ROUTE-REFRESH of a family nobody knows", true, raw(bgptest.Message(5, 0x33, 0x33, 0, 0x33))},
		{"an empty UPDATE body", true, raw(bgptest.Message(bgptest.Update))},
		{"an UPDATE with withdrawn routes beyond its end", true, raw(bgptest.Message(bgptest.Update, 0xff, 0xff, 0, 0))},
		{"an UPDATE with attributes beyond its end", true, raw(bgptest.Message(bgptest.Update, 0, 0, 0xff, 0xff))},
		{"an attribute beyond the attributes' end", true, update(nil, []byte{0x40, 1, 200, 0}, nil)},
		{"a header of an attribute and no more", true, update(nil, []byte{0x50, 1}, nil)},
		{"MP_REACH_NLRI without a body", true, update(nil, with(0x80, 14, 0), nil)},
		{"MP_REACH_NLRI of one byte", true, update(nil, with(0x80, 14, 1, 0), nil)},
		{"MP_REACH_NLRI cut after the family", true, update(nil, with(0x80, 14, 3, 0, 2, 1), nil)},
		{"MP_REACH_NLRI cut in the next hop", true, update(nil, with(0x80, 14, 8, 0, 2, 1, 16, 1, 2, 3, 4), nil)},
		{"MP_REACH_NLRI with a next hop of 255 bytes", true, update(nil, with(0x80, 14, 5, 0, 2, 1, 255, 0), nil)},
		{"MP_REACH_NLRI of a family nobody knows", true, update(nil, with(0x80, 14, 9, 0x44, 0x44, 9, 4, 1, 2, 3, 4, 0), nil)},
		{"MP_UNREACH_NLRI of one byte", true, update(nil, []byte{0x80, 15, 1, 0}, nil)},
		{"a prefix of 33 bits", true, update(nil, basic, []byte{33, 10, 66, 0, 0, 0})},
		{"a prefix of 255 bits", true, update(nil, basic, []byte{255})},
		{"a prefix without its bytes", true, update(nil, basic, []byte{26, 10})},
		{"a withdrawal of 200 bits", true, update([]byte{200, 10}, nil, nil)},
		{"AS_PATH of odd length", true,
			update(nil, []byte{0x40, 1, 1, 0, 0x40, 2, 3, 2, 1, 0, 0x40, 3, 4, 10, 0, 0, 77}, []byte{26, 10, 66, 0, 0})},
		{"AS_PATH with a segment beyond its end", true,
			update(nil, []byte{0x40, 1, 1, 0, 0x40, 2, 2, 2, 255, 0x40, 3, 4, 10, 0, 0, 77}, []byte{26, 10, 66, 0, 0})},
		{"NEXT_HOP of three bytes", true, update(nil, []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 3, 10, 0, 0}, []byte{26, 10, 66, 0, 0})},
		{"ORIGIN twice, with a value nobody knows", true, update(nil, with(0x40, 1, 1, 77), []byte{26, 10, 66, 0, 0})},
		{"LOCAL_PREF of one byte", true,
			update(nil, []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4, 10, 0, 0, 77, 0x40, 5, 1, 0}, []byte{26, 10, 66, 0, 0})},
		{"AGGREGATOR of one byte", true, update(nil, with(0xc0, 7, 1, 0), []byte{26, 10, 66, 0, 0})},
		{"communities of three bytes", true, update(nil, with(0xc0, 8, 3, 0, 0, 0), []byte{26, 10, 66, 0, 0})},
		{"extended communities of one byte", true, update(nil, with(0xc0, 16, 1, 0), []byte{26, 10, 66, 0, 0})},
		{"large communities of five bytes", true, update(nil, with(0xc0, 32, 5, 0, 0, 0, 0, 0), []byte{26, 10, 66, 0, 0})},
		{"a tunnel attribute that is cut", true, update(nil, with(0xc0, 23, 3, 0, 1, 0xff), []byte{26, 10, 66, 0, 0})},
		{"AIGP that is cut", true, update(nil, with(0x80, 26, 2, 1, 0xff), []byte{26, 10, 66, 0, 0})},
		{"prefix SID that is cut", true, update(nil, with(0xc0, 40, 3, 1, 0, 7), []byte{26, 10, 66, 0, 0})},
		{"BGP-LS that is cut", true, update(nil, with(0x80, 29, 3, 1, 0, 7), []byte{26, 10, 66, 0, 0})},
		{"PMSI tunnel that is cut", true, update(nil, with(0xc0, 22, 1, 0), []byte{26, 10, 66, 0, 0})},
		{"an attribute nobody knows", true, update(nil, with(0xc0, 200, 2, 1, 2), []byte{26, 10, 66, 0, 0})},
		{"well-known attributes missing", true, update(nil, []byte{0x40, 1, 1, 0}, []byte{26, 10, 66, 0, 0})},
		{"our own address as next hop", true,
			raw(bgptest.UpdateMessage(netip.MustParseAddr("10.0.0.5"), 100, netip.MustParsePrefix("10.66.0.0/26")))},
		{"a multicast next hop", true, raw(bgptest.UpdateMessage(netip.MustParseAddr("224.0.0.5"), 100, netip.MustParsePrefix("10.66.0.0/26")))},
		{"half an UPDATE", true, raw(good[:30])},
		{"a good UPDATE and noise", true, raw(good, noise)},
	}
}

// Messages that violate BGP end only the session that they came on, or do nothing. No process ends, and the peer may
// come back and behave.
func TestHostilePeer(t *testing.T) {
	t.Parallel()
	g := guardedNode(t)
	hosts := g.hostile()
	for i, a := range attacks() {
		var session *bgptest.Raw
		if hostile := hosts[i%len(hosts)]; a.established {
			session, _ = hostile.Establish(g.node.V4, ourASN, 0)
		} else {
			session = hostile.Dial(g.node.V4)
		}
		session.Send(a.send...)
		answers(session)
		_ = session.Close()
		g.check(a.name)
		if t.Failed() {
			return
		}
	}
	// They can behave, and their paths are learned.
	for _, hostile := range hosts {
		session, _ := hostile.Establish(g.node.V4, ourASN, 0)
		prefix := netip.MustParsePrefix("10.67.0.0/26")
		session.Send(bgptest.UpdateMessage(hostile.V4, 100, prefix))
		bgptest.Eventually(t, func() error {
			if paths := g.node.LearnedFrom(hostile.V4); len(paths) != 1 || paths[0].Prefix != prefix {
				return fmt.Errorf("learned %v from a peer that behaves again", paths)
			}
			return nil
		})
	}
}

// answers reads messages for a moment. An ignored attack gets none.
func answers(session *bgptest.Raw) {
	_ = session.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	for buffer := make([]byte, 4096); ; {
		if _, err := session.Conn.Read(buffer); err != nil {
			return
		}
	}
}

// UPDATEs with bytes changed at random, with a fixed seed: cases that the table of attacks lacks.
func TestMutatedUpdates(t *testing.T) {
	t.Parallel()
	g := guardedNode(t)
	hosts := g.hostile()
	random := rand.New(rand.NewPCG(4, uint64(time.Now().UnixNano())))
	seed := random.Uint64()
	t.Logf("seed %d", seed)
	random = rand.New(rand.NewPCG(4, seed))
	for round := range 20 {
		session, _ := hosts[round%len(hosts)].Establish(g.node.V4, ourASN, 0)
		for range 200 {
			session.Send(mutated(random))
		}
		answers(session)
		_ = session.Close()
		g.check(fmt.Sprintf("round %d of seed %d", round, seed))
		if t.Failed() {
			return
		}
	}
}

// mutated returns an UPDATE with some bytes of its body changed, in a correct frame.
func mutated(random *rand.Rand) []byte {
	attrs := []byte{
		0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfc, 0, 0x40, 3, 4, 10, 0, 0, 77, 0x40, 5, 4, 0, 0, 0, 100,
		0xc0, 8, 4, 0xfc, 0, 0, 1, 0x80, 14, 22, 0, 2, 1, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77, 0, 0,
	}
	body := bgptest.UpdateBody(bgptest.NLRI(netip.MustParsePrefix("10.65.0.0/26")), attrs, bgptest.NLRI(netip.MustParsePrefix("10.66.0.0/26")))
	for range 1 + random.IntN(3) {
		body[random.IntN(len(body))] = byte(random.IntN(256))
	}
	return bgptest.Message(bgptest.Update, body...)
}

// A stranger receives no BGP message, and a peer that opens connections and sends nothing disturbs no other peer.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	g := guardedNode(t)
	stranger, silent := g.lan.Host(66), g.lan.Host(77)
	g.add(peers(g.node.Host, silent, func(p *bgp.Peer) { p.Passive = true })[0])
	for _, h := range []*bgptest.Host{stranger, silent} {
		for range 300 {
			conn, err := h.TryDial(g.node.V4)
			if err != nil {
				continue // refused is an answer
			}
			if h == stranger {
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
				if n, err := conn.Read(make([]byte, 100)); n > 0 || err == nil {
					t.Fatalf("a stranger is told %d bytes (%v)", n, err)
				}
			}
		}
		g.check("connections without a word")
	}
}
