package policy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

var (
	mesh   = Session{LocalASN: 64512, PeerASN: 64512}
	router = Session{LocalASN: 64512, PeerASN: 65001}
	base   = &Base{
		Transit: []netip.Prefix{p("10.244.0.0/16"), p("fd00:10::/48")},
		Hidden:  []netip.Prefix{p("10.244.128.0/17")},
		Served:  []netip.Prefix{p("203.0.113.0/24"), p("10.244.64.0/20")},
		Refuse:  []netip.Prefix{p("192.0.2.1/32"), p("2001:db8::1/128")},
		Own:     []netip.Prefix{p("10.244.5.0/26")},
		Links:   []Link{{p("0.0.0.0/0"), "eth0"}, {p("192.0.2.0/24"), "eth1"}, {p("192.0.0.0/16"), "eth2"}},
		Tags: []Tag{
			{p("10.244.0.0/16"), []Community{{A: 64512, B: 1}}},
			{p("10.244.1.0/24"), []Community{{A: 64512, B: 2}, {Large: true, A: 1, B: 2, C: 3}}},
		},
		Normal6: 500,
	}
)

// said returns the attributes of a path with these AS numbers and communities.
func said(hop string, communities string, path ...uint32) *wire.Attributes {
	out := &wire.Attributes{NextHop: a(hop), Via: a(hop), Path: wire.NewASPath(path...)}
	var list []Community
	for _, text := range strings.Fields(communities) {
		c, err := ParseCommunity(text)
		if err != nil {
			panic(err)
		}
		list = append(list, c)
	}
	out.Communities = wire.NewCommunities(list...)
	return out
}

func withPref(a *wire.Attributes, pref uint32) *wire.Attributes {
	a.LocalPref, a.HasLocalPref = pref, true
	return a
}

const normalPref = 2147483647 - 1024

func TestImport(t *testing.T) {
	accept := `{"action":"Accept"}`
	for name, c := range map[string]struct {
		session Session
		rules   []string
		prefix  string
		a       *wire.Attributes
		reason  string
		pref    uint32 // 0: stays
	}{
		"block":                      {session: mesh, prefix: "10.244.0.0/26", a: said("192.0.2.2", "")},
		"LOCAL_PREF stays in our AS": {session: mesh, prefix: "10.244.0.0/26", a: withPref(said("192.0.2.2", ""), 7)},
		"from a router":              {session: router, prefix: "198.51.100.0/24", a: said("192.0.2.254", "", 65001, 3)},
		"normal for IPv6":            {session: router, prefix: "2001:db8:1::/48", a: said("2001:db8::2", "", 65001)},
		"default route":              {session: router, prefix: "0.0.0.0/0", a: said("192.0.2.254", "", 65001)},
		"half of all":                {session: router, prefix: "0.0.0.0/1", a: said("192.0.2.254", "", 65001)},
		"default route of IPv6":      {session: router, prefix: "::/0", a: said("2001:db8::2", "", 65001)},

		"this network": {session: mesh, prefix: "0.1.0.0/16", a: said("192.0.2.2", ""), reason: "martian"},
		"loopback":     {session: mesh, prefix: "127.0.0.0/8", a: said("192.0.2.2", ""), reason: "martian"},
		"a loopback": {session: router, rules: []string{accept}, prefix: "127.1.2.3/32",
			a: said("192.0.2.2", "", 65001), reason: "martian"},
		"metadata service": {session: mesh, prefix: "169.254.169.254/32", a: said("192.0.2.2", ""), reason: "martian"},
		"multicast":        {session: mesh, prefix: "239.0.0.0/8", a: said("192.0.2.2", ""), reason: "martian"},
		"class E":          {session: mesh, prefix: "240.0.0.0/4", a: said("192.0.2.2", ""), reason: "martian"},
		"broadcast":        {session: mesh, prefix: "255.255.255.255/32", a: said("192.0.2.2", ""), reason: "martian"},
		"loopback of IPv6": {session: mesh, prefix: "::1/128", a: said("2001:db8::2", ""), reason: "martian"},
		"mapped":           {session: mesh, prefix: "::ffff:10.0.0.0/104", a: said("2001:db8::2", ""), reason: "martian"},
		"link-local":       {session: mesh, prefix: "fe80::/64", a: said("2001:db8::2", ""), reason: "martian"},
		"multicast IPv6":   {session: mesh, prefix: "ff02::/16", a: said("2001:db8::2", ""), reason: "martian"},

		"our address":       {session: mesh, rules: []string{accept}, prefix: "192.0.2.1/32", a: said("192.0.2.2", ""), reason: "own address"},
		"our address, IPv6": {session: mesh, prefix: "2001:db8::1/128", a: said("2001:db8::2", ""), reason: "own address"},
		"our block": {session: router, rules: []string{accept}, prefix: "10.244.5.0/26",
			a: said("192.0.2.2", "", 65001), reason: "own block"},
		"borrowed of us":   {session: mesh, prefix: "10.244.5.7/32", a: said("192.0.2.2", "")},
		"around our block": {session: mesh, prefix: "10.244.0.0/16", a: said("192.0.2.2", "")},
		"our network":      {session: router, prefix: "192.0.2.0/24", a: said("192.0.2.2", "", 65001)},
		"we are the hop":   {session: mesh, prefix: "10.244.0.0/26", a: said("192.0.2.1", ""), reason: "next hop is this node"},

		"path of another AS": {session: router, rules: []string{accept}, prefix: "198.51.100.0/24",
			a: said("192.0.2.254", "", 65002, 65001), reason: reasonForeign},
		"empty path": {session: router, prefix: "198.51.100.0/24", a: said("192.0.2.254", ""), reason: reasonForeign},
		"loop": {session: router, prefix: "198.51.100.0/24", a: said("192.0.2.254", "", 65001, 64512),
			reason: "own AS in its path"},
		"loop in our AS": {session: mesh, prefix: "198.51.100.0/24", a: said("192.0.2.254", "", 64512), reason: "own AS in its path"},
		"one is allowed": {session: Session{LocalASN: 64512, PeerASN: 65001, AllowOwnASN: 1}, prefix: "198.51.100.0/24",
			a: said("192.0.2.254", "", 65001, 64512)},
		"two are not": {session: Session{LocalASN: 64512, PeerASN: 65001, AllowOwnASN: 1}, prefix: "198.51.100.0/24",
			a: said("192.0.2.254", "", 65001, 64512, 64512), reason: "own AS in its path"},

		"rejected by a rule": {session: mesh, rules: []string{accept[:1] + `"priority":1024,` + accept[1:], `{"action":"Reject"}`},
			prefix: "10.244.0.0/26", a: withPref(said("192.0.2.2", ""), 7), reason: "filter f rule 2"},
		"the default is normal": {session: mesh, rules: []string{`{"priority":1024,"action":"Reject"}`}, prefix: "10.244.0.0/26",
			a: withPref(said("192.0.2.2", ""), 100), reason: "filter f rule 1"},
		"worse than normal": {session: router, rules: []string{`{"action":"Accept","operations":[{"setPriority":{"value":1027}}]}`},
			prefix: "10.9.0.0/16", a: said("192.0.2.2", "", 65001), pref: 95},
		"set to normal": {session: mesh, rules: []string{`{"action":"Accept","operations":[{"setPriority":{"value":1024}}]}`},
			prefix: "10.9.0.0/16", a: withPref(said("192.0.2.2", ""), 7), pref: 100},
		"normal of IPv6": {session: router,
			rules: []string{`{"priority":500,"action":"Accept","operations":[{"setPriority":{"value":500}}]}`}, prefix: "fd09::/64",
			a: said("2001:db8::2", "", 65001), pref: 100},
		"normal priority": {session: mesh, rules: []string{`{"priority":1024,"action":"Reject"}`}, prefix: "10.244.0.0/26",
			a: withPref(said("192.0.2.2", ""), normalPref), reason: "filter f rule 1"},
		"no priority is normal": {session: router, rules: []string{`{"priority":1024,"action":"Reject"}`}, prefix: "10.244.0.0/26",
			a: said("192.0.2.2", "", 65001), reason: "filter f rule 1"},
		"a priority is set": {session: router, rules: []string{`{"action":"Accept","operations":[{"setPriority":{"value":512}}]}`},
			prefix: "10.9.0.0/16", a: said("192.0.2.2", "", 65001), pref: 2147483647 - 512},
		"by its interface": {session: router, rules: []string{`{"interface":"eth1","action":"Reject"}`}, prefix: "10.9.0.0/16",
			a: said("192.0.2.2", "", 65001), reason: "filter f rule 1"},
		"by another interface": {session: router, rules: []string{`{"interface":"eth1","action":"Reject"}`}, prefix: "10.9.0.0/16",
			a: said("198.51.100.1", "", 65001)},
		"source is redundant": {session: mesh, rules: []string{`{"source":"RemotePeers","action":"Reject"}`}, prefix: "10.9.0.0/16",
			a: said("192.0.2.2", ""), reason: "filter f rule 1"},

		"graceful shutdown": {session: router, prefix: "10.9.0.0/16", a: said("192.0.2.2", "65535:0", 65001), pref: zero},
		"graceful shutdown, but": {session: router, rules: []string{`{"action":"Accept","operations":[{"setPriority":{"value":512}}]}`},
			prefix: "10.9.0.0/16", a: said("192.0.2.2", "65535:0", 65001), pref: 2147483647 - 512},
		"graceful shutdown in our AS":  {session: mesh, prefix: "10.9.0.0/16", a: withPref(said("192.0.2.2", "65535:0"), 5)},
		"blackhole is nothing special": {session: mesh, prefix: "10.9.0.0/32", a: said("192.0.2.2", "65535:666")},
		"what is not to be passed on":  {session: mesh, prefix: "10.9.0.0/16", a: said("192.0.2.2", "65535:65282")},
	} {
		out := base.Import(c.session, rulesOf(t, wire.FamilyOf(p(c.prefix).Addr()), c.rules...), p(c.prefix), c.a)
		want := wire.Change{Withdraw: c.reason != "", SetLocalPref: c.pref != 0, LocalPref: c.pref}
		if c.pref == zero {
			want.LocalPref = 0
		}
		if out.Reason != c.reason || !out.Change.Equal(want) || (out.Verdict == Reject) != (c.reason != "") || out.Verdict == NoMatch {
			t.Errorf("%s: %+v, want %q, %+v", name, out, c.reason, want)
		}
	}
}

// zero stands for a LOCAL_PREF of 0.
const zero = 1<<32 - 1

func TestExport(t *testing.T) {
	accept := `{"action":"Accept"}`
	tag1, tag2 := Community{A: 64512, B: 1}, Community{A: 64512, B: 2}
	tag3 := Community{Large: true, A: 1, B: 2, C: 3}
	for name, c := range map[string]struct {
		session Session
		own     bool
		keeps   bool // its next hop
		rules   []string
		prefix  string
		a       *wire.Attributes
		reason  string
		want    wire.Change
	}{
		"own block": {session: mesh, own: true, prefix: "10.244.0.0/26", a: said("192.0.2.1", ""),
			want: wire.Change{Add: []Community{tag1}}},
		"own block to a router": {session: router, own: true, prefix: "10.244.1.0/26", a: said("192.0.2.1", ""),
			want: wire.Change{Add: []Community{tag1, tag2, tag3}}},
		"own, in no pool": {session: router, own: true, prefix: "198.51.100.7/32", a: said("192.0.2.1", "")},
		"own, hidden": {session: router, own: true, prefix: "10.244.128.0/26", a: said("192.0.2.1", ""),
			reason: "in a pool with disableBGPExport"},
		"own, hidden, accepted": {session: router, own: true, rules: []string{accept}, prefix: "10.244.128.0/26", a: said("192.0.2.1", "")},
		"accepted has no tags":  {session: router, own: true, rules: []string{accept}, prefix: "10.244.1.0/26", a: said("192.0.2.1", "")},
		"own, no export":        {session: router, own: true, prefix: "10.9.0.0/26", a: said("192.0.2.1", "65535:65281")},
		"learned, in a pool": {session: router, prefix: "10.244.0.0/26", a: said("192.0.2.2", ""),
			want: wire.Change{Add: []Community{tag1}}},
		"learned, hidden": {session: router, prefix: "10.244.200.0/26", a: said("192.0.2.2", ""),
			reason: "in a pool with disableBGPExport"},
		"learned, elsewhere":     {session: mesh, prefix: "198.51.100.0/24", a: said("192.0.2.254", "", 65001), reason: "not in transit pools"},
		"learned, around a pool": {session: mesh, prefix: "10.0.0.0/8", a: said("192.0.2.254", "", 65001), reason: "not in transit pools"},
		"learned, accepted":      {session: mesh, rules: []string{accept}, prefix: "198.51.100.0/24", a: said("192.0.2.254", "", 65001)},
		"own Service":            {session: router, own: true, rules: []string{accept}, prefix: "203.0.113.8/32", a: said("192.0.2.1", "")},
		"range of Services":      {session: router, rules: []string{accept}, prefix: "203.0.113.0/24", a: said("192.0.2.2", "")},
		"another's Service": {session: router, rules: []string{accept}, prefix: "203.0.113.8/32",
			a: said("192.0.2.2", ""), reason: reasonServed},
		"its next hop stays": {session: router, keeps: true, rules: []string{accept}, prefix: "203.0.113.8/32", a: said("192.0.2.2", "")},
		"to our AS": {session: mesh, rules: []string{accept}, prefix: "203.0.113.8/32",
			a: said("192.0.2.2", ""), reason: reasonServed},
		"Service in a pool": {session: router, prefix: "10.244.64.8/32", a: said("192.0.2.2", ""), reason: reasonServed},
		"pod, in no range":  {session: router, rules: []string{accept}, prefix: "203.0.114.8/32", a: said("192.0.2.2", "")},
		"no advertise": {session: mesh, rules: []string{accept}, prefix: "10.244.0.0/26", a: said("192.0.2.2", "65535:65282"),
			reason: "community forbids to pass it on"},
		"no export, our AS": {session: mesh, prefix: "10.244.0.0/26", a: said("192.0.2.2", "65535:65281"),
			want: wire.Change{Add: []Community{tag1}}},
		"no export": {session: router, rules: []string{accept}, prefix: "10.244.0.0/26", a: said("192.0.2.2", "1:1 65535:65281"),
			reason: "community forbids to pass it on"},
		"no export subconfed": {session: router, prefix: "10.244.0.0/26", a: said("192.0.2.2", "65535:65283"),
			reason: "community forbids to pass it on"},
		"no peer is nothing": {session: router, prefix: "10.244.0.0/26", a: said("192.0.2.2", "65535:65284"),
			want: wire.Change{Add: []Community{tag1}}},
		"rejected": {session: router, own: true, rules: []string{accept[:1] + `"source":"RemotePeers",` + accept[1:],
			`{"action":"Reject"}`}, prefix: "10.244.0.0/26", a: said("192.0.2.1", ""), reason: "filter f rule 2"},
		"own is of no peer": {session: router, own: true, rules: []string{`{"source":"RemotePeers","action":"Reject"}`},
			prefix: "198.51.100.7/32", a: said("192.0.2.1", "")},
		"own has normal priority": {session: mesh, own: true, rules: []string{`{"priority":1024,"action":"Reject"}`}, prefix: "10.244.0.0/26",
			a: withPref(said("192.0.2.1", ""), 100), reason: "filter f rule 1"},
		"own has no interface": {session: mesh, own: true, rules: []string{`{"interface":"eth*","action":"Reject"}`},
			prefix: "198.51.100.7/32", a: said("192.0.2.9", "")},
		"its interface": {session: mesh, rules: []string{`{"interface":"eth1","action":"Reject"}`}, prefix: "10.244.0.0/26",
			a: said("192.0.2.9", ""), reason: "filter f rule 1"},
		"priority in our AS": {session: mesh, rules: []string{`{"action":"Accept","operations":[{"setPriority":{"value":512}}]}`},
			prefix: "10.244.0.0/26", a: said("192.0.2.9", ""),
			want: wire.Change{SetLocalPref: true, LocalPref: 2147483647 - 512}},
		"priority is not told to another AS": {session: router,
			rules:  []string{`{"action":"Accept","operations":[{"setPriority":{"value":512}},{"prependASPath":{"prefix":[64512]}}]}`},
			prefix: "10.244.0.0/26", a: said("192.0.2.9", ""),
			want: wire.Change{Prepend: []uint32{64512}}},
	} {
		out := base.Export(c.session, rulesOf(t, wire.IPv4, c.rules...),
			Offer{Prefix: p(c.prefix), Attributes: c.a, Own: c.own, Attracts: !c.own && !c.keeps})
		if c.reason != "" {
			c.want.Withdraw = true
		}
		if out.Reason != c.reason || !out.Change.Equal(c.want) || (out.Verdict == Reject) != (c.reason != "") || out.Verdict == NoMatch {
			t.Errorf("%s: %+v, want %q, %+v", name, out, c.reason, c.want)
		}
	}
	if out := (&Base{}).Export(mesh, nil,
		Offer{Prefix: p("10.244.0.0/26"), Attributes: said("192.0.2.2", "")}); out.Reason != "not in transit pools" {
		t.Errorf("without pools nothing is passed on: %+v", out)
	}
}

// A change for one direction does not affect the other.
func TestBaseEqual(t *testing.T) {
	for name, c := range map[string]struct {
		change           func(*Base)
		imports, exports bool
	}{
		"nothing":   {func(*Base) {}, true, true},
		"transit":   {func(b *Base) { b.Transit = b.Transit[:1] }, true, false},
		"hidden":    {func(b *Base) { b.Hidden = nil }, true, false},
		"served":    {func(b *Base) { b.Served = b.Served[:1] }, true, false},
		"refuse":    {func(b *Base) { b.Refuse = nil }, false, true},
		"own":       {func(b *Base) { b.Own = nil }, false, true},
		"tags":      {func(b *Base) { b.Tags = []Tag{b.Tags[0], {b.Tags[1].Prefix, b.Tags[1].Communities[:1]}} }, true, false},
		"tag's":     {func(b *Base) { b.Tags = []Tag{b.Tags[0], {p("10.0.0.0/8"), b.Tags[1].Communities}} }, true, false},
		"links":     {func(b *Base) { b.Links = b.Links[1:] }, false, false},
		"priority":  {func(b *Base) { b.Normal4 = 5 }, false, false},
		"priority6": {func(b *Base) { b.Normal6 = 5 }, false, false},
	} {
		other := *base
		c.change(&other)
		if base.EqualImport(&other) != c.imports || base.EqualExport(&other) != c.exports || other.EqualImport(base) != c.imports ||
			other.EqualExport(base) != c.exports {
			t.Errorf("%s: %t, %t", name, base.EqualImport(&other), base.EqualExport(&other))
		}
	}
}

func TestPriority(t *testing.T) {
	for pref, want := range map[uint32]uint32{2147482623: 1024, 2147483135: 512, 100: 2147483547, 2147483647: 0,
		4294967295: 0, 0: 2147483647} {
		if got := Priority(pref); got != want {
			t.Errorf("LOCAL_PREF %d has the priority %d, not %d", pref, got, want)
		}
	}
	for _, n := range []uint32{1, 512, 1024, 2147483646} {
		if Priority(LocalPref(n)) != n {
			t.Errorf("priority %d becomes %d", n, Priority(LocalPref(n)))
		}
	}
}

// A lower priority is never less preferred, whatever is normal, and the default lies between.
func TestLevel(t *testing.T) {
	for _, normal := range []uint32{1, 500, 1024, maxPriority - 1} {
		list := []uint32{1, 2, 3, 499, 500, 501, 1023, 1024, 1025, 1026, 1027, 1028, 1030, 1040, 1100, 2000, 3000, 65535, 1 << 20, 1 << 30,
			maxPriority - 2, maxPriority - 1}
		for i, n := range list {
			got := level(n, normal)
			if n < normal && got <= defaultLocalPref || n == normal && got != defaultLocalPref ||
				n > normal && (got >= defaultLocalPref || got == 0) {
				t.Errorf("%d, when %d is normal: %d", n, normal, got)
			}
			if i > 0 && got > level(list[i-1], normal) {
				t.Errorf("%d is preferred to %d", n, list[i-1])
			}
		}
	}
	if level(1025, 1024) <= level(1026, 1024) || level(1100, 1024) <= level(2000, 1024) || level(2000, 1024) <= level(3000, 1024) {
		t.Error("different priorities are equal")
	}
}

// An agent decides this for every path of every peer.
func BenchmarkImport(b *testing.B) {
	a := said("192.0.2.2", "64512:100")
	rules := rulesOf(b, wire.IPv4, `{"cidr":"172.16.0.0/12","matchOperator":"In","action":"Reject"}`,
		`{"communities":{"values":["1:1"]},"action":"Reject"}`, `{"asPathPrefix":[65001],"action":"Reject"}`)
	prefix := p("10.244.0.0/26")
	b.ReportAllocs()
	for range b.N {
		if out := base.Import(mesh, rules, prefix, a); out.Verdict != Accept {
			b.Fatal(out)
		}
	}
}

func BenchmarkExport(b *testing.B) {
	a := said("192.0.2.2", "64512:100")
	prefix := p("10.244.0.0/26")
	b.ReportAllocs()
	for range b.N {
		if out := base.Export(router, nil, Offer{Prefix: prefix, Attributes: a, Attracts: true}); out.Verdict != Accept {
			b.Fatal(out)
		}
	}
}
