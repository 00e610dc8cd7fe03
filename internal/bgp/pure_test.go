package bgp

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	bgplog "github.com/osrg/gobgp/v3/pkg/log"

	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestDefaults(t *testing.T) {
	want := Peer{Port: 179, HoldTime: 90 * time.Second, ConnectRetry: 5 * time.Second, RestartTime: 120 * time.Second, MaxPrefixes: 20000}
	difftest.Want(t, "", want, Peer{}.withDefaults())
}

// Of every pair of a mesh one side waits and one connects: the text of their addresses decides, not the number.
func TestWaits(t *testing.T) {
	ordered := []string{"10.0.0.1", "10.0.0.10", "10.0.0.100", "10.0.0.9", "10.0.0.99", "192.168.0.1", "9.255.255.255", "fd00::10", "fd00::a"}
	for i, self := range ordered {
		for j, peer := range ordered {
			if got := Waits(addr(self), addr(peer)); got != (i < j) {
				t.Errorf("%s waits for %s: %t", self, peer, got)
			}
		}
	}
}

func TestDiff(t *testing.T) {
	have := map[string]int{"same": 1, "new value": 1, "b gone": 1, "a gone": 1}
	want := map[string]int{"same": 1, "new value": 2, "b new": 1, "a new": 1}
	got := diff(have, want, strings.Compare)
	difftest.Want(t, "", changes[string]{
		add: []string{"a new", "b new"}, replace: []string{"new value"}, remove: []string{"a gone", "b gone"},
	}, got, cmp.AllowUnexported(changes[string]{}))
	if got := diff(have, have, strings.Compare); got.add != nil || got.replace != nil || got.remove != nil {
		t.Errorf("equal sets: %v", got)
	}
}

func TestWithin(t *testing.T) {
	some := []netip.Prefix{prefix("10.0.0.0/16"), prefix("fd00::/64")}
	for text, want := range map[string]bool{
		"10.0.0.0/16": true, "10.0.1.0/26": true, "10.0.0.1/32": true, "fd00::/122": true,
		"10.0.0.0/8": false, "10.1.0.0/26": false, "0.0.0.0/0": false, "::/0": false, "fd01::/122": false,
	} {
		if got := within(prefix(text), some); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
	if within(prefix("10.0.0.0/26"), nil) {
		t.Error("no prefixes accept something")
	}
}

func TestValidation(t *testing.T) {
	local := Local{ASN: 64512, RouterID: addr("10.0.0.1"), Listen: []netip.Addr{addr("10.0.0.1")}}
	peer := Peer{Addr: addr("10.0.0.2"), ASN: 64512, From: addr("10.0.0.1")}.withDefaults()
	locally := func(change func(*Local)) error {
		l := local
		change(&l)
		return l.validate()
	}
	with := func(change func(*Peer)) error {
		p := peer
		change(&p)
		return p.validate()
	}
	for want, err := range map[string]error{
		"local AS number 0":                  locally(func(l *Local) { l.ASN = 0 }),
		"router ID fd00::1":                  locally(func(l *Local) { l.RouterID = addr("fd00::1") }),
		"router ID 0.0.0.0":                  locally(func(l *Local) { l.RouterID = addr("0.0.0.0") }),
		"address listen":                     locally(func(l *Local) { l.Listen = nil }),
		`listen address "ff02::1"`:           locally(func(l *Local) { l.Listen = []netip.Addr{addr("ff02::1")} }),
		"cluster ID fd00::1":                 locally(func(l *Local) { l.ClusterID = addr("fd00::1") }),
		"AS 11":                              with(func(p *Peer) { p.AllowOwnASN = 11 }),
		"NextHopMode(9)":                     with(func(p *Peer) { p.NextHop = 9 }),
		"TTL 256":                            with(func(p *Peer) { p.TTLSecurity = 256 }),
		"keepalive 500ms":                    with(func(p *Peer) { p.Keepalive = 500 * time.Millisecond }),
		"keepalive 1m30s":                    with(func(p *Peer) { p.Keepalive = 90 * time.Second }),
		`peer address "fe80::1" interface`:   with(func(p *Peer) { p.Addr = addr("fe80::1") }),
		`peer address "fd00::1%eth0"`:        with(func(p *Peer) { p.Addr = addr("fd00::1%eth0") }),
		"fe80::1%eth0 own address fd00::9":   with(func(p *Peer) { p.Addr, p.From = addr("fe80::1%eth0"), addr("fd00::9") }),
		`peer address "::ffff:10.0.0.2"`:     with(func(p *Peer) { p.Addr = addr("::ffff:10.0.0.2") }),
		"10.0.0.2 AS number 0":               with(func(p *Peer) { p.ASN = 0 }),
		"10.0.0.2 address fd00::1":           with(func(p *Peer) { p.From = addr("fd00::1") }),
		"10.0.0.2 node's own":                with(func(p *Peer) { p.From = p.Addr }),
		"10.0.0.2 hold 2s":                   with(func(p *Peer) { p.HoldTime = 2 * time.Second }),
		"10.0.0.2 retry 10ms":                with(func(p *Peer) { p.ConnectRetry = 10 * time.Millisecond }),
		"10.0.0.2 restart 1h8m16s":           with(func(p *Peer) { p.RestartTime = maxRestartTime + time.Second }),
		"10.0.0.2 password 81":               with(func(p *Peer) { p.Password = strings.Repeat("x", 81) }),
		"10.0.0.2 prefixes -1":               with(func(p *Peer) { p.MaxPrefixes = -1 }),
		`originated prefix "10.0.0.1/26"`:    checkOriginated(Path{Prefix: prefix("10.0.0.1/26")}),
		`originated prefix "invalid Prefix"`: checkOriginated(Path{}),
		"10.0.0.0/26 fd00::1":                checkOriginated(Path{Prefix: prefix("10.0.0.0/26"), NextHop: addr("fd00::1")}),
		"fd00::/122 10.0.0.1":                checkOriginated(Path{Prefix: prefix("fd00::/122"), NextHop: addr("10.0.0.1")}),
	} {
		if !errtest.Names(err, want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if err := errors.Join(local.validate(), peer.validate(), checkOriginated(Path{Prefix: prefix("10.0.0.0/26")})); err != nil {
		t.Error(err)
	}
}

// Attributes in wire form: flags, type, length, value.
var (
	origin     = []byte{0x40, 1, 1, 0}
	emptyPath  = []byte{0x40, 2, 0}
	asPath     = []byte{0x40, 2, 20, 2, 2, 0, 0, 0xfc, 1, 0, 1, 0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 2}
	nextHop    = []byte{0x40, 3, 4, 10, 0, 0, 2}
	longHop    = []byte{0x50, 3, 0, 4, 10, 0, 0, 2}
	mpReach    = append([]byte{0x80, 14, 21, 0, 2, 1, 16}, append(addr("fd00::2").AsSlice(), 0)...)
	mpReachTwo = append([]byte{0x80, 14, 37, 0, 2, 1, 32}, append(append(addr("fd00::2").AsSlice(), addr("fe80::2").AsSlice()...), 0)...)
)

// said returns the path in an UPDATE from a peer inside of our AS.
func said(t *testing.T, family wire.Family, update []byte) learned {
	t.Helper()
	session := wire.NewSession(wire.Rules{ASN: 64512, LocalASN: 64512, LocalID: addr("10.0.0.1"), Families: 1 << family,
		MaxPrefixes: 9, Source: wire.Internal})
	var passed []byte
	for m := range wire.Messages(slices.Concat(hello, update)) {
		v := session.Check(m)
		if v.Reset != nil || v.Flaw != "" {
			t.Fatalf("%+v", v)
		}
		passed = append([]byte{}, v.Pass...)
	}
	var l learned
	for m := range wire.Messages(passed) {
		if prefix, has := gobgpHas(t, m); prefix.IsValid() {
			l = has
			l.Prefix = prefix
		}
	}
	return l
}

func TestLearned(t *testing.T) {
	v4 := Path{Prefix: prefix("10.1.2.0/26"), NextHop: addr("10.0.0.2"), LocalPref: 100}
	v6 := Path{Prefix: prefix("fd01::/122"), NextHop: addr("fd00::2"), LocalPref: 100}
	far, rich := v4, v4
	far.ASPath = "64513 65536 {1 2}"
	rich.LocalPref, rich.MED, rich.Origin = 200, 7, OriginIncomplete
	rich.Communities = "9:65535 64512:100 1:2:3 64512:1:65536"
	nlri := append([]byte{122}, addr("fd01::").AsSlice()...)
	six := func(head, hops []byte) []byte { // MP_REACH_NLRI with the prefix
		value := slices.Concat(head[3:], hops, []byte{0}, nlri)
		return slices.Concat([]byte{head[0], head[1], byte(len(value))}, value)
	}
	for name, c := range map[string]struct {
		attrs  [][]byte
		want   Path
		length int
	}{
		"IPv4":                     {attrs: [][]byte{origin, emptyPath, nextHop}, want: v4},
		"extended length":          {attrs: [][]byte{origin, emptyPath, longHop}, want: v4},
		"AS path":                  {attrs: [][]byte{origin, asPath, nextHop}, want: far, length: 3},
		"IPv6":                     {attrs: [][]byte{origin, emptyPath, six(mpReach[:7], addr("fd00::2").AsSlice())}, want: v6},
		"IPv6 with link-local hop": {attrs: [][]byte{origin, emptyPath, six(mpReachTwo[:7], mpReachTwo[7:39])}, want: v6},
		"all that is kept": {attrs: [][]byte{
			{0x40, 1, 1, 2}, emptyPath, nextHop, {0x80, 4, 4, 0, 0, 0, 7}, {0x40, 5, 4, 0, 0, 0, 200},
			{0xc0, 8, 12, 0xfc, 0, 0, 100, 0, 9, 0xff, 0xff, 0xfc, 0, 0, 100},
			{0xc0, 32, 24, 0, 0, 0xfc, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3},
		}, want: rich},
	} {
		t.Run(name, func(t *testing.T) {
			family, update := wire.IPv6, update(c.attrs...)
			if c.want.Prefix.Addr().Is4() {
				family, update = wire.IPv4, message(2, update[19:], []byte{26, 10, 1, 2, 0})
			}
			got := said(t, family, update)
			difftest.Want(t, "path", c.want, got.Path)
			difftest.Want(t, "length", c.length, got.length)
		})
	}
}

// from is a path that a peer has announced.
func from(peer string, change ...func(*learned)) learned {
	l := learned{Path: Path{Prefix: prefix("10.1.2.0/26"), From: addr(peer), NextHop: addr(peer), LocalPref: 100}}
	for _, f := range change {
		f(&l)
	}
	return l
}

// notFrom has an objection to the paths of a peer.
type notFrom netip.Addr

func (peer notFrom) Objection(p Path) (o Objection) {
	if p.From == netip.Addr(peer) {
		o = Objection{Path: p, Why: "its peer"}
	}
	return o
}

func TestChoose(t *testing.T) {
	not := func(peer string) Judge { return notFrom(addr(peer)) }
	for name, c := range map[string]struct {
		paths []learned
		judge Judge
		want  string
	}{
		"the preferred one": {[]learned{from("10.0.0.2"), from("10.0.0.3", func(l *learned) { l.MED = 1 })},
			not("10.0.0.4"), "10.0.0.2"},
		"a refused one hides nothing": {[]learned{from("10.0.0.2"), from("10.0.0.3", func(l *learned) { l.MED = 1 })},
			not("10.0.0.2"), "10.0.0.3"},
		"all refused":                          {[]learned{from("10.0.0.2")}, not("10.0.0.2"), ""},
		"a destination that is about to leave": {nil, not("10.0.0.2"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			other := from("10.0.0.9", func(l *learned) { l.Prefix = prefix("10.9.0.0/26") })
			all := table{paths: append(c.paths, other), judge: c.judge}
			got, _ := all.choose(nil)
			if len(got) == 0 || got[len(got)-1] != other.Path {
				t.Fatalf("got %v, which lacks another prefix", got)
			}
			if got = got[:len(got)-1]; (len(got) == 1) != (c.want != "") || (len(got) > 0 && got[0].From != addr(c.want)) {
				t.Errorf("got %v, want the path from %q", got, c.want)
			}
		})
	}
}

func TestChooseEquals(t *testing.T) {
	for name, c := range map[string]struct {
		other learned
		want  string
	}{
		"equals":                  {from("10.0.0.3"), "10.0.0.2 10.0.0.3"},
		"the same next hop":       {from("10.0.0.3", func(l *learned) { l.NextHop = addr("10.0.0.2") }), "10.0.0.2"},
		"less LOCAL_PREF":         {from("10.0.0.3", func(l *learned) { l.LocalPref = 99 }), "10.0.0.2"},
		"MED":                     {from("10.0.0.3", func(l *learned) { l.MED = 1 }), "10.0.0.2"},
		"another origin":          {from("10.0.0.3", func(l *learned) { l.Origin = OriginEGP }), "10.0.0.2"},
		"a longer AS path":        {from("10.0.0.3", func(l *learned) { l.length = 1 }), "10.0.0.2"},
		"from outside":            {from("10.0.0.8", func(l *learned) { l.external = true }), "10.0.0.2"},
		"refused":                 {from("10.0.0.9"), "10.0.0.2"},
		"communities do not rank": {from("10.0.0.3", func(l *learned) { l.Communities = "1:1" }), "10.0.0.2 10.0.0.3"},
	} {
		t.Run(name, func(t *testing.T) {
			all := table{paths: []learned{from("10.0.0.2"), c.other}, judge: notFrom(addr("10.0.0.9"))}
			var hops []string
			chosen, _ := all.choose(nil)
			for _, p := range chosen {
				hops = append(hops, p.NextHop.String())
			}
			if got := strings.Join(hops, " "); got != c.want {
				t.Errorf("next hops %s, want %s", got, c.want)
			}
		})
	}
}

func TestChooseAtMost16(t *testing.T) {
	var all table
	for i := range byte(40) {
		all.paths = append(all.paths, from("10.0.0.2", func(l *learned) { l.NextHop = netip.AddrFrom4([4]byte{10, 0, 1, i}) }))
	}
	if got, _ := all.choose(nil); len(got) != 16 || got[15].NextHop != addr("10.0.1.15") {
		t.Errorf("%d paths, the last to %s", len(got), got[len(got)-1].NextHop)
	}
}

func TestLoggerNeverEndsTheProcess(t *testing.T) {
	var out strings.Builder
	l := &logger{log: slog.New(slog.NewTextHandler(&out, nil)), neighbours: newNeighbours()}
	known := l.neighbours.add(addr("10.0.0.2"))
	l.Panic("code logic bug", bgplog.Fields{"Key": known.alias, "Topic": "Peer"})
	l.Fatal("unknown msg type", nil)
	l.Info("Can't find configuration for a new passive connection", bgplog.Fields{"Key": "127.0.0.66"})
	l.Debug("IdleHoldTimer expired", nil)
	difftest.Contains(t, out.String(), `level=ERROR msg="GoBGP panic: code logic bug" peer=10.0.0.2`,
		`level=ERROR msg="GoBGP fatal: unknown msg type"`)
	if strings.Contains(out.String(), "passive connection") || strings.Contains(out.String(), "Idle") {
		t.Errorf("strangers or GoBGP's inner life fill the log:\n%s", &out)
	}
	if l.GetLevel() != bgplog.InfoLevel {
		t.Error("entries are made that nobody reads")
	}
}

func TestNeighbours(t *testing.T) {
	n := newNeighbours()
	a := n.add(addr("10.0.0.2"))
	b := n.add(addr("10.0.0.3"))
	if a.alias != addr("127.179.1.0") || b.alias != addr("127.179.1.1") || n.get(b.alias) != b.peer || len(n.all) != 2 {
		t.Errorf("%v, %v, %v", a.alias, b.alias, n.all)
	}
	n.remove(a)
	if n.get(a.alias).IsValid() {
		t.Error("it stays")
	}
	n.last = addr("127.255.255.255")
	if c := n.add(addr("10.0.0.2")); c.alias != a.alias {
		t.Errorf("after the last address comes %s", c.alias)
	}
	if d := n.add(addr("10.0.0.4")); d.alias != addr("127.179.1.2") {
		t.Errorf("%s, which is taken or skipped", d.alias)
	}
}

// The changed prefixes are known while each processed message is one that was taken: not after another message, and not
// after too many prefixes.
func TestWindowNames(t *testing.T) {
	update := message(2, []byte{0, 5, 26, 10, 1, 2, 0, 0, byte(len(origin) + len(emptyPath) + len(nextHop))},
		origin, emptyPath, nextHop, []byte{26, 10, 1, 3, 0})
	both := map[netip.Prefix]bool{prefix("10.1.2.0/26"): true, prefix("10.1.3.0/26"): true}
	w := window{names: map[netip.Prefix]bool{}}
	is := func(when string, want map[netip.Prefix]bool, known bool) {
		t.Helper()
		if got, ok := w.changed(); ok != known || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %t, want %v, %t", when, got, ok, want, known)
		}
	}
	take := func() {
		w.take(t.Context())
		w.name(update)
	}
	is("at first", nil, true)
	take()
	is("while it is open", nil, false)
	w.done()
	is("worked in", both, true)
	is("then", nil, true)
	take()
	w.done() // another message
	is("thought to be worked in", both, true)
	w.done()
	is("worked in after all", nil, false)
	take()
	w.done()
	w.forget()
	is("with more than names", both, false)
	w.add(prefix("10.9.0.0/26"))
	is("by a call", map[netip.Prefix]bool{prefix("10.9.0.0/26"): true}, true)
	for i := range mostNames + 1 {
		w.add(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 32))
	}
	take()
	is("too many, and one is open", nil, false)
	w.done()
	is("too many", nil, false)
	w.clear()
	is("given up", nil, false)
}

func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w window
		ctx, cancel := context.WithCancel(t.Context())
		for range windowSize {
			w.take(ctx)
		}
		room := w.try()
		if room == nil {
			t.Fatal("no bound")
		}
		go w.done()
		<-room
		w.take(ctx)
		w.take(ctx) // without done it goes on after windowStall
		cancel()
		for range 2 * windowSize {
			w.take(ctx) // ends with ctx
		}
		w.clear()
		w.clear()
		if w.open != 0 {
			t.Errorf("%d open", w.open)
		}
	})
}

// UPDATEs in progress when a session ends are waited for, and given up if they were dropped.
func TestWindowDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w window
		w.drain(t.Context()) // nothing to wait for
		w.take(t.Context())
		w.take(t.Context())
		drained := false
		go func() { w.drain(t.Context()); drained = true }()
		synctest.Wait()
		w.done()
		if synctest.Wait(); drained {
			t.Fatal("drained with an UPDATE under way")
		}
		w.done()
		if synctest.Wait(); !drained {
			t.Fatal("not drained when all UPDATEs were worked in")
		}
		w.take(t.Context())
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if w.drain(over); w.busy() == nil {
			t.Error("a link that ended gave up the UPDATEs of all")
		}
		start := time.Now()
		w.drain(t.Context())
		if took := time.Since(start); took != windowStall || w.busy() != nil {
			t.Errorf("an UPDATE that is never worked in was given up after %s; busy: %t", took, w.busy() != nil)
		}
	})
}

// A refused connection is tried every few seconds: operators want to know since when.
func TestHistoriesTellSinceWhen(t *testing.T) {
	clock := time.Unix(1000, 0)
	h := NewEnds(func() time.Time { return clock })
	peer := addr("10.0.0.2")
	h.begin(peer)
	for _, step := range []struct {
		failure   string // empty: the session comes up and is lost
		since, at int64
	}{
		{"refused", 1001, 1001}, {"refused", 1001, 1002}, {"timeout", 1003, 1003}, {"refused", 1004, 1004}, {"refused", 1004, 1005},
		{"", 1004, 1005}, {"refused", 1007, 1007}, {"refused", 1007, 1008},
	} {
		clock = clock.Add(time.Second)
		if step.failure == "" {
			h.state(peer, true)
			h.state(peer, false)
		} else {
			h.failed(peer, step.failure)
		}
		if got, _ := h.get(peer); got.errSince.Unix() != step.since || got.errAt.Unix() != step.at {
			t.Errorf("at %d, %q: since %d, at %d; want %d, %d", clock.Unix(), step.failure, got.errSince.Unix(),
				got.errAt.Unix(), step.since, step.at)
		}
	}
}

func TestHistories(t *testing.T) {
	clock := time.Unix(1000, 0)
	h := NewEnds(func() time.Time { return clock })
	peer, stranger := addr("10.0.0.2"), addr("10.0.0.9")
	h.begin(peer)
	began := clock
	clock = clock.Add(time.Second)
	h.state(peer, false)
	if got, up := h.get(peer); up || !got.since.Equal(began) {
		t.Errorf("down since %s, want %s", got.since, began)
	}
	h.state(peer, true)
	h.state(stranger, true)
	if got, up := h.get(peer); !up || !got.since.Equal(clock) {
		t.Errorf("established: %+v", got)
	}
	if h.failed(stranger, "x") {
		t.Error("the failure of a stranger is news")
	}
	if got, up := h.get(stranger); up || got != (history{}) {
		t.Error("a stranger has a history")
	}
	if !h.failed(peer, "x") || h.failed(peer, "x") {
		t.Error("a failure is news once")
	}
	if h.failed(peer, "y") {
		t.Error("a peer that fails in ever new ways fills the log")
	}
	clock = clock.Add(tellPause)
	if !h.failed(peer, "z") {
		t.Error("a later failure is no news")
	}
	if got, _ := h.get(peer); got.err != "z" {
		t.Errorf("the last failure is %q, want z", got.err)
	}
	h.end(peer)
	h.end(peer)
	if got, up := h.get(peer); up || got != (history{}) {
		t.Error("a removed peer has a history")
	}
}

// TestWhatIsKnownOfAPeer: the reason that keeps a session from coming up stays, and is not replaced by events of the
// paths of the session before.
func TestWhatIsKnownOfAPeer(t *testing.T) {
	const dropped, wrong = "no TCP answer on port 179: a firewall drops", "it connected to our address 10.0.0.8 but we speak from 10.0.0.1"
	clock := time.Unix(1000, 0)
	h := NewEnds(func() time.Time { return clock })
	peer := addr("10.0.0.2")
	h.begin(peer)
	for _, c := range []struct {
		reasons []string
		want    string
	}{
		{[]string{relay.NotBack}, relay.NotBack},
		{[]string{relay.LostKept, relay.NotBack}, relay.NotBack},
		{[]string{dropped, relay.NotBack}, dropped},
		{[]string{relay.LostKept, dropped, relay.NotBack, dropped}, dropped},
		{[]string{relay.LostKept, relay.NotBack, relay.Neither + dropped}, relay.Neither + dropped},
		{[]string{relay.LostKept, relay.Neither + dropped, relay.NotBack, relay.Neither + dropped}, relay.Neither + dropped},
		{[]string{wrong, relay.Neither + dropped, relay.NotBack}, wrong},
		{[]string{relay.Neither + dropped, wrong, relay.Neither + dropped}, wrong},
	} {
		h.state(peer, true)
		clock = clock.Add(time.Minute)
		h.state(peer, false)
		for _, reason := range c.reasons {
			h.failed(peer, reason)
		}
		if got, _ := h.get(peer); got.err != c.want || got.class != classOf(c.want) {
			t.Errorf("%q: %q, %q", c.reasons, got.err, got.class)
		}
	}
}

func TestListenError(t *testing.T) {
	for err, want := range map[error]string{
		syscall.EADDRINUSE:    "BIRD port",
		syscall.EACCES:        "NET_BIND_SERVICE",
		syscall.EADDRNOTAVAIL: "interface",
		syscall.EMFILE:        "address port",
	} {
		e := &ListenError{Addr: "10.0.0.1:179", Err: err}
		if !errtest.Names(e, "10.0.0.1:179 "+want) || !errors.Is(e, err) {
			t.Errorf("%v: %q, want %q", err, e, want)
		}
	}
}

// TestClassesOfFailures: a class contains nothing that the peer chooses, so that it cannot make new ones.
func TestClassesOfFailures(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.1")
	h := NewEnds(time.Now)
	h.begin(peer)
	b := behind{Server: &Server{ends: h, log: slog.New(slog.DiscardHandler)},
		place: &place{neighbour: neighbour{peer: peer}}}
	for _, c := range []struct {
		end  relay.End
		want string
	}{
		{relay.End{Reason: "connect failed: odd"}, "connect failed"},
		{relay.End{By: relay.ByConnection, Reason: "connection lost", Error: "reset"}, "connection lost"},
		{relay.End{By: relay.ByUs, Reason: "peer is AS 65001, configured 64512", Sent: "OPEN Message Error/Bad Peer AS"},
			"closed by this node: OPEN Message Error/Bad Peer AS"},
		{relay.End{By: relay.ByPeer, Reason: relay.ClosedByPeer + "Error 77/13"}, "closed by the peer: an error without a name"},
		{relay.End{By: relay.ByPeer, Reason: relay.ClosedByPeer + "Cease/Administrative Shutdown: ticket 5: odd"},
			"closed by the peer: Cease/Administrative Shutdown"},
		{relay.End{Reason: "TCP refused on port 179: no BGP speaker"},
			"TCP refused on port 179; before that, closed by the peer: Cease/Administrative Shutdown"},
	} {
		c.end.Failure = true
		b.Ended(c.end)
		if got, _ := h.get(peer); got.class != c.want {
			t.Errorf("%s: %q, want %q", c.end.Reason, got.class, c.want)
		}
	}
	if got := classOf(noSession + "it has a password, and: odd"); got != noSession+"it has a password, and: odd" {
		t.Error(got)
	}
}
