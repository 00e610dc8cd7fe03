package relay

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestKeysOf(t *testing.T) {
	a, b, six := addr("10.0.0.2"), addr("10.0.0.3"), addr("fd00::2")
	for name, c := range map[string]struct {
		listener  string
		passwords map[netip.Addr]string
		want      map[netip.Prefix]string
	}{
		"no peers":         {"10.0.0.1", nil, map[netip.Prefix]string{}},
		"no passwords":     {"10.0.0.1", map[netip.Addr]string{a: "", b: ""}, map[netip.Prefix]string{}},
		"one for all":      {"10.0.0.1", map[netip.Addr]string{a: "x", b: "x", six: "y"}, map[netip.Prefix]string{prefix("0.0.0.0/0"): "x"}},
		"one for all, six": {"fd00::1", map[netip.Addr]string{a: "x", six: "y"}, map[netip.Prefix]string{prefix("::/0"): "y"}},
		"two": {"10.0.0.1", map[netip.Addr]string{a: "x", b: "y"},
			map[netip.Prefix]string{prefix("10.0.0.2/32"): "x", prefix("10.0.0.3/32"): "y"}},
		"one without": {"10.0.0.1", map[netip.Addr]string{a: "x", b: ""}, map[netip.Prefix]string{prefix("10.0.0.2/32"): "x"}},
		"of two links": {"fe80::9%eth0", map[netip.Addr]string{addr("fe80::1%eth0"): "", addr("fe80::2%eth0"): "x", addr("fe80::1%eth1"): "y",
			six: "z"}, map[netip.Prefix]string{prefix("fe80::2/128"): "x"}},
		"of no link": {"fd00::9", map[netip.Addr]string{addr("fe80::1%eth0"): "x", six: ""}, map[netip.Prefix]string{}},
		"of all links": {"::", map[netip.Addr]string{addr("fe80::1%eth0"): "x", six: ""},
			map[netip.Prefix]string{prefix("fe80::1/128"): "x"}},
	} {
		difftest.Want(t, name, c.want, keysOf(addr(c.listener), peersOf(addr(c.listener), c.passwords)))
	}
}

// The kernel accepts the keys, and their removal.
func TestSetKeys(t *testing.T) {
	for _, local := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := listen(t.Context(), netip.MustParseAddrPort(local))
		errtest.Must(t, err)
		defer l.Close()
		any := netip.PrefixFrom(anyOf(l.self), 0)
		host := netip.PrefixFrom(l.self, l.self.BitLen())
		for _, want := range []map[netip.Prefix]string{{any: "one"}, {host: "two"}, {host: "three", any: "one"}, {}} {
			if err := l.setMD5(want); err != nil {
				t.Fatalf("%s, %v: %v", local, want, err)
			}
			difftest.Want(t, local, want, l.keys)
		}
	}
	if err := CheckMD5(); err != nil {
		t.Errorf("this kernel: %v", err)
	}
}

func TestDamping(t *testing.T) {
	now := time.Unix(1000, 0)
	var d damping
	var waits []time.Duration
	for range freeFlaps + 5 {
		d = d.after(time.Second, now, 5*time.Second)
		waits = append(waits, max(0, d.until.Sub(now)))
	}
	const ms = time.Millisecond
	if want := append(make([]time.Duration, freeFlaps), 400*ms, 800*ms, 1600*ms, 3200*ms, 5000*ms); !slices.Equal(waits, want) {
		t.Errorf("%s, want %s", waits, want)
	}
	if d = d.after(stable, now, 5*time.Second); d != (damping{}) {
		t.Errorf("after a good time: %+v", d)
	}
}

func TestHold(t *testing.T) {
	now := time.Unix(1000, 0)
	var h hold
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		h = h.strike(now, time.Minute, 10*time.Minute)
		if h.last != want*time.Minute || !h.until.Equal(now.Add(h.last)) {
			t.Errorf("strike %d: %+v, want %d min", i, h, want)
		}
		now = h.until.Add(9 * time.Minute)
	}
	if h = h.strike(h.until.Add(10*time.Minute), time.Minute, 10*time.Minute); h.last != time.Minute {
		t.Errorf("after a good time: %s", h.last)
	}
}

func TestRetryWait(t *testing.T) {
	for tries, want := range map[int]time.Duration{0: 400, 1: 440, 10: 1037, 20: 2690, 1000: 5000} {
		if got := retryWait(tries, 5*time.Second); got.Truncate(time.Millisecond) != want*time.Millisecond {
			t.Errorf("after %d: %s, want %s", tries, got, want)
		}
	}
}

// heard returns an incoming session that has read the peer's OPEN.
func heard(t *testing.T, l *Link, id string, restarted bool) *session {
	t.Helper()
	s := newSession(l, nil, false)
	flags := byte(0)
	if restarted {
		flags = 0x80
	}
	router := addr(id).As4()
	open := []byte{4, 0xfc, 0, 0, 90, router[0], router[1], router[2], router[3], 18, 2, 16, 1, 4, 0, 1, 0, 1, 64, 2, flags,
		120, 65, 4, 0, 0, 0xfc, 0}
	open[9], open[11] = byte(len(open)-10), byte(len(open)-12)
	message := append([]byte(strings.Repeat("\xff", 16)), 0, byte(19+len(open)), 1)
	if v := s.wire.Check(append(message, open...)); v.Reset != nil {
		t.Fatal(v.Reset)
	}
	return s
}

func TestBeats(t *testing.T) {
	clock := time.Unix(1000, 0)
	r := New(slog.New(slog.DiscardHandler), func() time.Time { return clock }, Config{})
	l := &Link{relay: r, peer: Peer{RouterID: addr("10.0.0.5"), Addr: addr("10.0.0.2"), ASN: 64512, MaxPrefixes: 10}}
	l.rules.Store(&Rules{Base: &policy.Base{}, Session: policy.Session{LocalASN: 64512, PeerASN: 64512}})
	for name, c := range map[string]struct {
		id        string
		outgoing  bool          // the rival
		up        time.Duration // how long the rival is up; 0: in its handshake
		restarted bool
		want      bool
	}{
		"ours, and our ID is higher":          {id: "10.0.0.2", outgoing: true, want: false},
		"ours, and its ID is higher":          {id: "10.0.0.9", outgoing: true, want: true},
		"its own, given up":                   {id: "10.0.0.2", want: true},
		"just up, so it crossed":              {id: "10.0.0.9", outgoing: true, up: time.Second, want: false},
		"up for a while: it lost its end":     {id: "10.0.0.2", outgoing: true, up: crossing + 1, want: true},
		"just up, but it says that it is new": {id: "10.0.0.2", up: time.Second, restarted: true, want: true},
	} {
		rival := newSession(l, nil, c.outgoing)
		if c.up > 0 {
			rival.upSince.Store(clock.Add(-c.up).UnixNano())
		}
		if got := heard(t, l, c.id, c.restarted).beats(rival); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestWords(t *testing.T) {
	p := Peer{Addr: addr("10.0.0.7"), From: addr("10.0.0.1"), Port: 1790}
	secret := p
	secret.Password = "sesame"
	op := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)} }
	for _, c := range []struct {
		peer    Peer
		err     error
		refused bool
		want    string
	}{
		{p, op(syscall.ECONNREFUSED), false, "TCP refused on port 1790: "},
		{p, op(syscall.ETIMEDOUT), false, "no TCP answer on port 1790: the node is down, a firewall drops, or it expects an MD5 password"},
		{p, context.DeadlineExceeded, false, "no TCP answer on port 1790: "},
		{secret, op(syscall.ETIMEDOUT), false,
			"no TCP answer on port 1790: MD5 password wrong or missing on one side, the node is down, or a firewall drops"},
		{secret, op(syscall.ETIMEDOUT), true,
			"no TCP answer on port 1790, and this kernel refuses segments for their MD5 signature: MD5 password wrong or missing on one side"},
		{p, op(syscall.EHOSTUNREACH), false, "host unreachable: "},
		{p, op(syscall.ENETUNREACH), false, "network unreachable: "},
		{p, op(syscall.EADDRNOTAVAIL), false, "our own address 10.0.0.1 is not on this node"},
		{p, op(syscall.EPERM), false, "this node's own firewall"},
		{p, io.ErrUnexpectedEOF, false, "connect failed: unexpected EOF"},
	} {
		if got := dialFailure(c.peer, c.err, c.refused); !strings.HasPrefix(got, c.want) || strings.Contains(got, "sesame") {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
	if got := unsigned(p); !strings.Contains(got, "where none is configured") {
		t.Error(got)
	}
	if got := unsigned(secret); !strings.Contains(got, "wrong or missing") {
		t.Error(got)
	}
}

func TestLost(t *testing.T) {
	r := New(slog.New(slog.DiscardHandler), time.Now, Config{})
	l := &Link{relay: r, peer: Peer{RouterID: addr("10.0.0.5"), Addr: addr("10.0.0.2"), ASN: 64512, MaxPrefixes: 10}}
	l.rules.Store(&Rules{Base: &policy.Base{}, Session: policy.Session{LocalASN: 64512, PeerASN: 64512}})
	silent, opened, up := newSession(l, nil, true), heard(t, l, "10.0.0.2", false), heard(t, l, "10.0.0.2", false)
	up.wire.Check(append([]byte(strings.Repeat("\xff", 16)), 0, 19, 4))
	for want, got := range map[string]string{
		"sent no OPEN on":     lost(silent, os.ErrDeadlineExceeded),
		"did not accept ours": lost(opened, os.ErrDeadlineExceeded),
		"during the handshake: is this node a peer there": lost(silent, io.EOF),
		"fell silent":     lost(opened, syscall.ETIMEDOUT),
		"connection lost": lost(up, syscall.ECONNRESET),
		"could not send":  lost(up, errSendTimeout),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A loss of BFD that was Up during a session ends it. A loss of BFD that ended with the previous session does not.
func TestLossConcerns(t *testing.T) {
	var none time.Time
	over := time.Unix(1000, 0)
	up := over.Add(time.Second)
	for _, c := range []struct {
		name               string
		begun, alive, over time.Time
		want               bool
	}{
		{"first session, heard since", up.Add(-3), up.Add(1), none, true},
		{"first session, silent at once", up.Add(-3), up.Add(-1), none, true},
		{"heard since", over.Add(-3), up.Add(1), over, true},
		{"silent at once", over.Add(1), up.Add(-1), over, true},
		{"ended with the session before", over.Add(-3), over.Add(1), over, false},
		{"of a former process, heard since", none, up.Add(1), none, true},
		{"of a former process, ended with its session", none, up.Add(-1), none, false},
	} {
		if got := (Loss{Begun: c.begun, Alive: c.alive}).concerns(up, c.over); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestStrangers(t *testing.T) {
	var s unknownSources
	now := time.Unix(1000, 0)
	told := []int{}
	for range 1000 {
		if n := s.seen(now); n > 0 {
			told = append(told, n)
		}
	}
	told = append(told, s.seen(now.Add(time.Hour)))
	difftest.Want(t, "", []int{1, 1000}, told)
}

// A path with this node as its next hop is refused, and one with a placeholder.
func TestNextHops(t *testing.T) {
	r := &Rules{Base: &policy.Base{}, Session: policy.Session{LocalASN: 64512, PeerASN: 64512}}
	self := addr("fe80::9")
	for hop, want := range map[netip.Addr]string{addr("fe80::1"): "", self: policy.ReasonOwnHop, wire.Placeholder4: policy.ReasonNoHop,
		wire.Placeholder6: policy.ReasonNoHop} {
		change, reason := r.imports(prefix("10.1.0.0/26"), &wire.Attributes{NextHop: wire.Placeholder4, Via: hop}, self)
		if reason != want || change.Withdraw != (want != "") {
			t.Errorf("next hop %s: %+v, %q, want %q", hop, change, reason, want)
		}
	}
}

// Peers in our own AS receive paths by the source of the paths.
func TestPassesInside(t *testing.T) {
	all := []wire.Source{wire.Own, wire.External, wire.Internal, wire.Client}
	for _, c := range []struct {
		rules Rules
		want  []wire.Source
	}{
		{Rules{}, all[:2]},
		{Rules{Reflects: true}, []wire.Source{wire.Own, wire.External, wire.Client}},
		{Rules{Reflects: true, Client: true}, all},
	} {
		var got []wire.Source
		for _, source := range all {
			if c.rules.passesInside(source) {
				got = append(got, source)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("reflects %v, client %v: %v, want %v", c.rules.Reflects, c.rules.Client, got, c.want)
		}
	}
}

// A peer receives its own aggregates only, and no blocks that they cover; its rules apply to the aggregates.
func TestAggregates(t *testing.T) {
	base := &policy.Base{Transit: []netip.Prefix{prefix("10.0.0.0/8")},
		Tags: []policy.Tag{{Prefix: prefix("10.1.0.0/16"), Communities: []policy.Community{{A: 1, B: 2}}}}}
	rules := &Rules{Base: base, Session: policy.Session{LocalASN: 64512, PeerASN: 65000},
		Aggregates: policy.Aggregates{{Prefix: prefix("10.1.0.0/16"), Live: true}}}
	filtered, none := *rules, *rules
	filtered.Export, none.Aggregates = policy.Within([]netip.Prefix{prefix("10.1.2.0/24")}, "not in there"), nil
	if rules.SameExports(&none) {
		t.Error("other aggregates are the same")
	}
	for _, c := range []struct {
		rules  *Rules
		prefix string
		source wire.Source
		told   bool
	}{
		{rules, "10.1.0.0/16", wire.Aggregate, true},
		{&none, "10.1.0.0/16", wire.Aggregate, false},
		{&filtered, "10.1.0.0/16", wire.Aggregate, false},
		{rules, "10.2.0.0/16", wire.Aggregate, false},
		{rules, "10.1.2.0/26", wire.Own, false},
		{rules, "10.1.2.0/26", wire.Internal, false},
		{&filtered, "10.1.2.0/26", wire.Internal, false},
		{&none, "10.1.2.0/26", wire.Internal, true},
		{rules, "10.1.2.3/32", wire.Own, true},
	} {
		change := c.rules.exports(prefix(c.prefix), &wire.Attributes{NextHop: wire.Placeholder4}, wire.Stamp{Source: c.source}, addr("10.0.0.1"))
		if change.Withdraw == c.told || c.told && (change.NextHop != addr("10.0.0.1") || c.rules == rules && len(change.Add) != 1) {
			t.Errorf("%s by source %d: %+v", c.prefix, c.source, change)
		}
	}
}
