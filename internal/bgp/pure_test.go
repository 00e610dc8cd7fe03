package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	api "github.com/osrg/gobgp/v3/api"
	bgplog "github.com/osrg/gobgp/v3/pkg/log"

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
	accept := Within(prefix("10.0.0.0/16"), prefix("fd00::/64"))
	for text, want := range map[string]bool{
		"10.0.0.0/16": true, "10.0.1.0/26": true, "10.0.0.1/32": true, "fd00::/122": true,
		"10.0.0.0/8": false, "10.1.0.0/26": false, "0.0.0.0/0": false, "::/0": false, "fd01::/122": false,
	} {
		if got := accept(Path{Prefix: prefix(text)}); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
	if Within()(Path{Prefix: prefix("10.0.0.0/26")}) {
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
		`peer address "fe80::1%eth0"`:        with(func(p *Peer) { p.Addr = addr("fe80::1%eth0") }),
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

// aliases are peers by what GoBGP calls them.
var aliases = map[netip.Addr]source{
	addr("127.179.1.2"): {addr: addr("10.0.0.2")}, addr("127.179.1.3"): {addr: addr("10.0.0.3")},
	addr("127.179.1.8"): {addr: addr("10.0.0.8"), external: true}, addr("127.179.1.9"): {addr: addr("10.0.0.9")},
}

func TestLearnedPath(t *testing.T) {
	v4 := Path{Prefix: prefix("10.1.2.0/26"), NextHop: addr("10.0.0.2"), From: addr("10.0.0.2"), LocalPref: 100}
	v6 := Path{Prefix: prefix("fd01::/122"), NextHop: addr("fd00::2"), From: addr("10.0.0.2"), LocalPref: 100}
	far, stale, rich := v4, v4, v4
	far.ASPath, stale.Stale = "64513 65536 {1 2}", true
	rich.LocalPref, rich.MED, rich.Origin = 200, 7, OriginIncomplete
	rich.Communities = "9:65535 64512:100 1:2:3 64512:1:65536"
	for name, c := range map[string]struct {
		prefix, from string
		stale        bool
		attrs        [][]byte
		want         Path
		err          string
	}{
		"IPv4":                     {prefix: "10.1.2.0/26", attrs: [][]byte{origin, emptyPath, nextHop}, want: v4},
		"extended length":          {prefix: "10.1.2.0/26", attrs: [][]byte{longHop}, want: v4},
		"host bits":                {prefix: "10.1.2.5/26", attrs: [][]byte{nextHop}, want: v4},
		"stale":                    {prefix: "10.1.2.0/26", attrs: [][]byte{nextHop}, stale: true, want: stale},
		"AS path":                  {prefix: "10.1.2.0/26", attrs: [][]byte{asPath, nextHop}, want: far},
		"IPv6":                     {prefix: "fd01::/122", attrs: [][]byte{origin, mpReach}, want: v6},
		"IPv6 with link-local hop": {prefix: "fd01::/122", attrs: [][]byte{mpReachTwo}, want: v6},
		"all that is kept": {prefix: "10.1.2.0/26", attrs: [][]byte{
			{0x40, 1, 1, 2}, nextHop, {0x80, 4, 4, 0, 0, 0, 7}, {0x40, 5, 4, 0, 0, 0, 200},
			{0xc0, 8, 12, 0xfc, 0, 0, 100, 0, 9, 0xff, 0xff, 0xfc, 0, 0, 100},
			{0xc0, 32, 24, 0, 0, 0xfc, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3},
		}, want: rich},
		"MED of three bytes":     {prefix: "10.1.2.0/26", attrs: [][]byte{nextHop, {0x80, 4, 3, 0, 0, 0}}, err: "10.0.0.2 attribute"},
		"no next hop":            {prefix: "10.1.2.0/26", attrs: [][]byte{origin}, err: "hop invalid"},
		"multicast next hop":     {prefix: "10.1.2.0/26", attrs: [][]byte{{0x40, 3, 4, 224, 0, 0, 1}}, err: "hop 224.0.0.1"},
		"loopback next hop":      {prefix: "10.1.2.0/26", attrs: [][]byte{{0x40, 3, 4, 127, 0, 0, 1}}, err: "hop 127.0.0.1"},
		"next hop of five bytes": {prefix: "10.1.2.0/26", attrs: [][]byte{{0x40, 3, 5, 1, 2, 3, 4, 5}}, err: "5"},
		"attribute cut short":    {prefix: "10.1.2.0/26", attrs: [][]byte{nextHop[:6]}, err: "10.0.0.2 attribute"},
		"segment cut short":      {prefix: "10.1.2.0/26", attrs: [][]byte{{0x40, 2, 3, 2, 1, 0}}, err: "10.0.0.2 attribute"},
		"MP_REACH cut short":     {prefix: "fd01::/122", attrs: [][]byte{{0x80, 14, 4, 0, 2, 1, 16}}, err: "fd01::/122 attribute"},
		"no prefix":              {prefix: "10.1.2.0/33", attrs: [][]byte{nextHop}, err: "10.1.2.0/33"},
		"no peer":                {prefix: "10.1.2.0/26", from: "x", attrs: [][]byte{nextHop}, err: "x"},
		"nobody's alias":         {prefix: "10.1.2.0/26", from: "127.179.0.2", attrs: [][]byte{nextHop}, err: "127.179.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := &api.Path{NeighborIp: "127.179.1.2", PattrsBinary: c.attrs, Stale: c.stale}
			if c.from != "" {
				raw.NeighborIp = c.from
			}
			got, err := learnedPath(c.prefix, raw, aliases)
			if c.err != "" {
				if !errtest.Names(err, c.err) {
					t.Fatalf("got %v, %v, want an error with %q", got, err, c.err)
				}
				return
			}
			errtest.Must(t, err)
			difftest.Want(t, "", c.want, got.Path)
		})
	}
}

func TestChoose(t *testing.T) {
	from := func(peer string) *api.Path {
		return &api.Path{NeighborIp: strings.Replace(peer, "10.0.0.", "127.179.1.", 1), PattrsBinary: [][]byte{nextHop}}
	}
	odd := &api.Path{NeighborIp: "127.179.1.9", PattrsBinary: [][]byte{{0}}}
	own := &api.Path{NeighborIp: "<nil>", PattrsBinary: [][]byte{nextHop}}
	not := func(peer string) Accept { return func(p Path) bool { return p.From != addr(peer) } }
	for name, c := range map[string]struct {
		paths  []*api.Path
		accept Accept
		want   string
	}{
		"the preferred one":                    {[]*api.Path{from("10.0.0.2"), from("10.0.0.3")}, not("10.0.0.4"), "10.0.0.2"},
		"a refused one hides nothing":          {[]*api.Path{from("10.0.0.2"), from("10.0.0.3")}, not("10.0.0.2"), "10.0.0.3"},
		"an odd one hides nothing":             {[]*api.Path{odd, from("10.0.0.3")}, not("10.0.0.2"), "10.0.0.3"},
		"all refused":                          {[]*api.Path{from("10.0.0.2")}, not("10.0.0.2"), ""},
		"own prefix":                           {[]*api.Path{own, from("10.0.0.2")}, not("10.0.0.3"), ""},
		"own prefix that another one covets":   {[]*api.Path{from("10.0.0.2"), own}, not("10.0.0.3"), ""},
		"a destination that is about to leave": {nil, not("10.0.0.2"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var learned table
			learned.add(&api.Destination{Prefix: "10.9.0.0/26", Paths: []*api.Path{from("10.0.0.9")}}, aliases)
			learned.add(&api.Destination{Prefix: "10.1.2.0/26", Paths: c.paths}, aliases)
			got := learned.choose(func(p Path) bool { return p.Prefix == prefix("10.1.2.0/26") && c.accept(p) })
			if (len(got) == 1) != (c.want != "") || (len(got) > 0 && got[0].From != addr(c.want)) {
				t.Errorf("got %v, want the path from %q", got, c.want)
			}
		})
	}
}

func TestChooseEquals(t *testing.T) {
	attrs := func(hop byte, more ...[]byte) [][]byte {
		return append([][]byte{origin, emptyPath, {0x40, 3, 4, 10, 0, 0, hop}}, more...)
	}
	path := func(alias string, attrs [][]byte) *api.Path { return &api.Path{NeighborIp: alias, PattrsBinary: attrs} }
	first := path("127.179.1.2", attrs(2))
	for name, c := range map[string]struct {
		other *api.Path
		want  string
	}{
		"equals":                  {path("127.179.1.3", attrs(3)), "10.0.0.2 10.0.0.3"},
		"the same next hop":       {path("127.179.1.3", attrs(2)), "10.0.0.2"},
		"less LOCAL_PREF":         {path("127.179.1.3", attrs(3, []byte{0x40, 5, 4, 0, 0, 0, 99})), "10.0.0.2"},
		"what LOCAL_PREF is":      {path("127.179.1.3", attrs(3, []byte{0x40, 5, 4, 0, 0, 0, 100})), "10.0.0.2 10.0.0.3"},
		"MED":                     {path("127.179.1.3", attrs(3, []byte{0x80, 4, 4, 0, 0, 0, 1})), "10.0.0.2"},
		"another origin":          {path("127.179.1.3", [][]byte{{0x40, 1, 1, 1}, emptyPath, {0x40, 3, 4, 10, 0, 0, 3}}), "10.0.0.2"},
		"a longer AS path":        {path("127.179.1.3", [][]byte{origin, asPath, {0x40, 3, 4, 10, 0, 0, 3}}), "10.0.0.2"},
		"from outside":            {path("127.179.1.8", attrs(8)), "10.0.0.2"},
		"refused":                 {path("127.179.1.9", attrs(9)), "10.0.0.2"},
		"communities do not rank": {path("127.179.1.3", attrs(3, []byte{0xc0, 8, 4, 0, 1, 0, 1})), "10.0.0.2 10.0.0.3"},
	} {
		t.Run(name, func(t *testing.T) {
			var all table
			all.add(&api.Destination{Prefix: "10.1.2.0/26", Paths: []*api.Path{first, c.other}}, aliases)
			var hops []string
			for _, p := range all.choose(func(p Path) bool { return p.From != addr("10.0.0.9") }) {
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
	var paths []*api.Path
	for i := range byte(40) {
		paths = append(paths, &api.Path{NeighborIp: "127.179.1.2", PattrsBinary: [][]byte{{0x40, 3, 4, 10, 0, 1, i}}})
	}
	all.add(&api.Destination{Prefix: "10.1.2.0/26", Paths: paths}, aliases)
	if got := all.choose(func(Path) bool { return true }); len(got) != 16 || got[15].NextHop != addr("10.0.1.15") {
		t.Errorf("%d paths, the last to %s", len(got), got[len(got)-1].NextHop)
	}
}

// FuzzReadAttribute: whatever attributes GoBGP hands out, a path that is read of them has a unicast next hop.
func FuzzReadAttribute(f *testing.F) {
	for _, seed := range [][]byte{origin, emptyPath, asPath, nextHop, longHop, mpReach, mpReachTwo} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, attr []byte) {
		raw := &api.Path{NeighborIp: "127.179.1.2", PattrsBinary: [][]byte{attr}}
		if p, err := learnedPath("10.1.2.0/26", raw, aliases); err == nil && !p.NextHop.IsGlobalUnicast() {
			t.Errorf("next hop %s", p.NextHop)
		}
	})
}

func TestLoggerNeverEndsTheProcess(t *testing.T) {
	var out strings.Builder
	l := &logger{log: slog.New(slog.NewTextHandler(&out, nil)), hist: newHistories(time.Now), neighbours: newNeighbours()}
	known := l.neighbours.add(addr("10.0.0.2"))
	l.hist.begin(known.peer)
	l.Panic("code logic bug", bgplog.Fields{"Key": known.alias, "Topic": "Peer"})
	l.Fatal("unknown msg type", nil)
	l.Info("Can't find configuration for a new passive connection", bgplog.Fields{"Key": "127.0.0.66"})
	l.Debug("IdleHoldTimer expired", nil)
	difftest.Contains(t, out.String(), `level=ERROR msg="GoBGP panic: code logic bug" peer=10.0.0.2`, `level=ERROR msg="GoBGP fatal: unknown msg type"`)
	if strings.Contains(out.String(), "passive connection") || strings.Contains(out.String(), "Idle") {
		t.Errorf("strangers or GoBGP's inner life fill the log:\n%s", &out)
	}
	if l.GetLevel() != bgplog.InfoLevel {
		t.Error("entries are made that nobody reads")
	}
	l.Warn(timerExpired, bgplog.Fields{"Key": known.alias.String()})
	if got := l.hist.get(known.peer).err; !strings.Contains(got, "its paths are dropped") {
		t.Errorf("after the restart timer: %q", got)
	}
}

func TestNeighbours(t *testing.T) {
	n := newNeighbours()
	a := n.add(addr("10.0.0.2"))
	b := n.add(addr("10.0.0.3"))
	if a.alias != addr("127.179.1.0") || b.alias != addr("127.179.1.1") || n.get(b.alias) != b || len(n.peers()) != 2 {
		t.Errorf("%v, %v, %v", a.alias, b.alias, n.peers())
	}
	n.remove(a)
	if n.get(a.alias) != nil {
		t.Error("it stays")
	}
	n.last = addr("127.255.255.255")
	if c := n.add(addr("10.0.0.2")); c.alias != a.alias {
		t.Errorf("after the last address comes %s", c.alias)
	}
	if d := n.add(addr("10.0.0.4")); d.alias != addr("127.179.1.2") {
		t.Errorf("%s, which is taken or skipped", d.alias)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		b.setActive(false)
		b.setActive(true)
	}()
	if err := b.awaitActive(ctx); err != nil {
		t.Error(err)
	}
	b.setActive(false)
	cancel()
	if err := b.awaitActive(ctx); err == nil {
		t.Error("not active, and no error")
	}
}

func TestWindow(t *testing.T) {
	var w window
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
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
	w.take(ctx) // nobody says done: it goes on after windowStall
	cancel()
	for range 2 * windowSize {
		w.take(ctx) // ends with ctx
	}
	w.clear()
	w.clear()
	if w.open != 0 {
		t.Errorf("%d open", w.open)
	}
}

// What is under way when a session ends is waited for, and given up if it was dropped.
func TestWindowDrains(t *testing.T) {
	var w window
	w.drain(t.Context()) // nothing to wait for
	w.take(t.Context())
	w.take(t.Context())
	drained := make(chan struct{})
	go func() { w.drain(t.Context()); close(drained) }()
	w.done()
	select {
	case <-drained:
		t.Fatal("drained with an UPDATE under way")
	case <-time.After(50 * time.Millisecond):
	}
	w.done()
	<-drained
	w.take(t.Context())
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if w.drain(over); w.busy() == nil {
		t.Error("a link that ended gave up the UPDATEs of all")
	}
	start := time.Now()
	w.drain(t.Context())
	if took := time.Since(start); took < windowStall/2 || w.busy() != nil {
		t.Errorf("an UPDATE that is never worked in was given up after %s; busy: %t", took, w.busy() != nil)
	}
}

// A refused connection is tried every few seconds: people want to know since when.
func TestHistoriesTellSinceWhen(t *testing.T) {
	clock := time.Unix(1000, 0)
	h := newHistories(func() time.Time { return clock })
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
		if got := h.get(peer); got.errSince.Unix() != step.since || got.errAt.Unix() != step.at {
			t.Errorf("at %d, %q: since %d, at %d; want %d, %d", clock.Unix(), step.failure, got.errSince.Unix(), got.errAt.Unix(), step.since, step.at)
		}
	}
}

func TestHistories(t *testing.T) {
	clock := time.Unix(1000, 0)
	h := newHistories(func() time.Time { return clock })
	peer, stranger := addr("10.0.0.2"), addr("10.0.0.9")
	h.begin(peer)
	began := clock
	clock = clock.Add(time.Second)
	if h.state(peer, false) {
		t.Error("a session that was never up has gone down")
	}
	if got := h.get(peer).since; !got.Equal(began) {
		t.Errorf("down since %s, want %s", got, began)
	}
	if !h.state(peer, true) || !h.get(peer).since.Equal(clock) {
		t.Errorf("established: %+v", h.get(peer))
	}
	if h.state(stranger, true) || h.failed(stranger, "x") || h.get(stranger) != (history{}) {
		t.Error("a stranger has a history")
	}
	if !h.failed(peer, "x") || h.failed(peer, "x") {
		t.Error("a failure is news once")
	}
	if h.failed(peer, "y") {
		t.Error("a peer that fails in ever new ways fills the log")
	}
	clock = clock.Add(tellPause)
	if !h.failed(peer, "z") || h.get(peer).err != "z" {
		t.Error("a later failure is no news")
	}
	h.end(peer)
	h.end(peer)
	if h.get(peer) != (history{}) {
		t.Error("a removed peer has a history")
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
