package wire

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var (
	far      = netip.MustParseAddr("10.0.0.9")
	far6     = netip.MustParseAddr("fd00::9")
	internet = Community{A: 64512, B: 100}
	large    = Community{Large: true, A: 64512, B: 1, C: 2}
	own26    = []byte{26, 10, 1, 2, 0}
	other26  = []byte{26, 10, 1, 2, 64}
	pod32    = []byte{32, 10, 1, 2, 7}
	other64  = []byte{64, 0xfd, 2, 0, 0, 0, 0, 0, 0}
)

// standard and larges return attributes of communities.
func standard(numbers ...byte) []byte {
	return append([]byte{0xc0, 8, byte(len(numbers))}, numbers...)
}

func larges(numbers ...byte) []byte {
	return append([]byte{0xc0, 32, byte(len(numbers))}, numbers...)
}

// to returns a decision that is the same for every prefix.
func to(c Change) func(netip.Prefix) Change { return func(netip.Prefix) Change { return c } }

// but returns a decision with an exception for one prefix.
func but(text string, c, rest Change) func(netip.Prefix) Change {
	return func(p netip.Prefix) Change {
		if p == netip.MustParsePrefix(text) {
			return c
		}
		return rest
	}
}

func TestEdit(t *testing.T) {
	base := join(origin, path, hop)
	large1 := []byte{0, 0, 0xfc, 0, 0, 0, 0, 1, 0, 0, 0, 2}
	for name, c := range map[string]struct {
		family  Family
		own     int
		message []byte
		decide  func(netip.Prefix) Change
		want    [][]byte
	}{
		"all are refused": {message: updateOf(nil, base, join(own26, pod32)),
			decide: to(Change{Withdraw: true, SetLocalPref: true, LocalPref: 3}),
			want:   [][]byte{updateOf(join(own26, pod32), nil, nil)}},
		"one is refused": {message: updateOf(nil, base, join(own26, pod32, other26)),
			decide: but("10.1.2.7/32", Change{Withdraw: true}, Change{}),
			want:   [][]byte{updateOf(pod32, nil, nil), updateOf(nil, base, join(own26, other26))}},
		"withdrawals stay": {message: updateOf(pod32, base, own26), decide: to(Change{Withdraw: true}),
			want: [][]byte{updateOf(join(pod32, own26), nil, nil)}},
		"withdrawals come first": {message: updateOf(pod32, base, own26), decide: to(Change{SetLocalPref: true, LocalPref: 7}),
			want: [][]byte{updateOf(pod32, nil, nil), updateOf(nil, join(base, []byte{0x40, 5, 4, 0, 0, 0, 7}), own26)}},
		"LOCAL_PREF is replaced": {message: updateOf(nil, join(origin, pref, path, hop), own26),
			decide: to(Change{SetLocalPref: true, LocalPref: 7}),
			want:   [][]byte{updateOf(nil, join(origin, []byte{0x40, 5, 4, 0, 0, 0, 7}, path, hop), own26)}},
		"a priority for one": {message: updateOf(nil, join(base, pref), join(own26, pod32)),
			decide: but("10.1.2.7/32", Change{SetLocalPref: true, LocalPref: 7}, Change{}),
			want:   [][]byte{updateOf(nil, join(base, pref), own26), updateOf(nil, join(base, []byte{0x40, 5, 4, 0, 0, 0, 7}), pod32)}},
		"communities are new": {message: updateOf(nil, base, own26), decide: to(Change{Add: []Community{large, internet}}),
			want: [][]byte{updateOf(nil, join(base, standard(0xfc, 0, 0, 100), larges(large1...)), own26)}},
		"communities are sorted": {message: updateOf(nil, join(standard(0xff, 0xff, 0, 0, 0, 1, 0, 1), base), own26),
			decide: to(Change{Add: []Community{internet}}),
			want:   [][]byte{updateOf(nil, join(standard(0, 1, 0, 1, 0xfc, 0, 0, 100, 0xff, 0xff, 0, 0), base), own26)}},
		"one of both kinds is new": {message: updateOf(nil, join(standard(0xff, 0xff, 0, 0, 0xfc, 0, 0, 100), base), own26),
			decide: to(Change{Add: []Community{internet, large}}),
			want:   [][]byte{updateOf(nil, join(standard(0xff, 0xff, 0, 0, 0xfc, 0, 0, 100), base, larges(large1...)), own26)}},
		"duplicates go when one is added": {message: updateOf(nil, join(standard(0, 9, 0, 9, 0, 9, 0, 9), base), own26),
			decide: to(Change{Add: []Community{internet}}),
			want:   [][]byte{updateOf(nil, join(standard(0, 9, 0, 9, 0xfc, 0, 0, 100), base), own26)}},
		"partial stays": {message: updateOf(nil, join(base, []byte{0xe0, 8, 4, 0, 1, 0, 1}), own26),
			decide: to(Change{Add: []Community{internet}}),
			want:   [][]byte{updateOf(nil, join(base, []byte{0xe0, 8, 8, 0, 1, 0, 1, 0xfc, 0, 0, 100}), own26)}},
		"prepended": {message: updateOf(nil, base, own26), decide: to(Change{Prepend: []uint32{7, 8}}),
			want: [][]byte{updateOf(nil, join(origin, []byte{0x40, 2, 14, 2, 3, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0xfc, 1}, hop), own26)}},
		"prepended behind our own": {own: 1, message: updateOf(nil, base, own26), decide: to(Change{Prepend: []uint32{7}}),
			want: [][]byte{updateOf(nil, join(origin, []byte{0x40, 2, 10, 2, 2, 0, 0, 0xfc, 1, 0, 0, 0, 7}, hop), own26)}},
		"prepended to nothing": {message: updateOf(nil, join(origin, noPath, hop), own26), decide: to(Change{Prepend: []uint32{7}}),
			want: [][]byte{updateOf(nil, join(origin, []byte{0x40, 2, 6, 2, 1, 0, 0, 0, 7}, hop), own26)}},
		"prepended to a set": {message: updateOf(nil, join(origin, []byte{0x40, 2, 6, 1, 1, 0, 0, 0xfc, 1}, hop), own26),
			decide: to(Change{Prepend: []uint32{7}}),
			want:   [][]byte{updateOf(nil, join(origin, []byte{0x40, 2, 12, 2, 1, 0, 0, 0, 7, 1, 1, 0, 0, 0xfc, 1}, hop), own26)}},
		"next hop": {message: updateOf(nil, base, own26), decide: to(Change{NextHop: far}),
			want: [][]byte{updateOf(nil, join(origin, path, []byte{0x40, 3, 4, 10, 0, 0, 9}), own26)}},
		"what is unknown stays": {message: updateOf(nil, join(base, []byte{0xd0, 241, 0, 2, 1, 2}), own26),
			decide: to(Change{SetLocalPref: true, LocalPref: 7}),
			want:   [][]byte{updateOf(nil, join(base, []byte{0xd0, 241, 0, 2, 1, 2}, []byte{0x40, 5, 4, 0, 0, 0, 7}), own26)}},

		"IPv6, all are refused": {family: IPv6, message: updateOf(nil, join(origin, path, reach(2, hop6, block6)), nil),
			decide: to(Change{Withdraw: true}),
			want:   [][]byte{updateOf(nil, unreach(2, block6), nil)}},
		"IPv6, one is refused": {family: IPv6,
			message: updateOf(nil, join(origin, path, reach(2, hop6, join(block6, other64)), unreach(2, []byte{0})), nil),
			decide:  but("fd02::/64", Change{Withdraw: true}, Change{}),
			want: [][]byte{updateOf(nil, unreach(2, join([]byte{0}, other64)), nil),
				updateOf(nil, join(origin, path, reach(2, hop6, block6)), nil)}},
		"IPv6, next hop": {family: IPv6, message: updateOf(nil, join(reach(2, join(hop6, hopLL), block6), origin, path), nil),
			decide: to(Change{NextHop: far6}),
			want:   [][]byte{updateOf(nil, join(origin, path, reach(2, far6.AsSlice(), block6)), nil)}},
		"IPv6, a priority": {family: IPv6, message: updateOf(nil, join(origin, path, reach(2, hop6, block6)), nil),
			decide: to(Change{SetLocalPref: true, LocalPref: 7}),
			want:   [][]byte{updateOf(nil, join(origin, path, []byte{0x40, 5, 4, 0, 0, 0, 7}, reach(2, hop6, block6)), nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			e := Editor{Family: c.family, OwnAS: c.own}
			if c.family == 0 {
				e.Family = IPv4
			}
			got, err := e.Edit(c.message, func(p netip.Prefix, _ *Attributes) Change { return c.decide(p) })
			errtest.Must(t, err)
			difftest.Want(t, "", c.want, got)
		})
	}
}

// A change without an effect returns the message itself: it is the same memory.
func TestEditLeavesAlone(t *testing.T) {
	tagged := updateOf(nil, join(origin, path, hop, pref, standard(0xfc, 0, 0, 100, 0, 1, 0, 1)), join(own26, pod32))
	for name, c := range map[string]struct {
		family  Family
		message []byte
		change  Change
	}{
		"nothing to do": {IPv4, tagged, Change{}},
		"it has all": {IPv4, tagged,
			Change{SetLocalPref: true, LocalPref: 100, Add: []Community{internet}, NextHop: netip.MustParseAddr("10.0.0.2")}},
		"no place for a number": {IPv4, tagged, Change{LocalPref: 7}},
		"IPv6": {IPv6, updateOf(nil, join(origin, path, reach(2, hop6, block6)), nil),
			Change{NextHop: netip.MustParseAddr("fd00::2")}},
		"withdrawal":           {IPv4, updateOf(own26, nil, nil), Change{Withdraw: true}},
		"IPv6 withdrawal":      {IPv6, updateOf(nil, unreach(2, block6), nil), Change{Withdraw: true}},
		"end of the table":     {IPv4, updateOf(nil, nil, nil), Change{Withdraw: true}},
		"end of IPv6":          {IPv6, updateOf(nil, unreach(2, nil), nil), Change{Withdraw: true}},
		"end, in the new form": {IPv4, updateOf(nil, unreach(1, nil), nil), Change{Withdraw: true}},
		"keepalive":            {IPv4, raw(Keepalive), Change{Withdraw: true}},
		"notification":         {IPv4, raw(Notify, 6, 2), Change{Withdraw: true}},
	} {
		e := Editor{Family: c.family}
		got, err := e.Edit(c.message, func(netip.Prefix, *Attributes) Change { return c.change })
		if err != nil || len(got) != 1 || &got[0][0] != &c.message[0] || len(got[0]) != len(c.message) {
			t.Errorf("%s: % x, %v", name, got, err)
		}
	}
}

// The decision receives the prefixes and their attributes.
func TestEditShows(t *testing.T) {
	message := updateOf([]byte{8, 10}, join([]byte{0x40, 1, 1, 2}, []byte{0x40, 2, 10, 2, 2, 0, 0, 0, 9, 0, 0, 0xfc, 1}, hop,
		[]byte{0x80, 4, 4, 0, 0, 0, 5}, pref, standard(0xff, 0xff, 0, 0), larges(0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3)),
		[]byte{26, 10, 1, 2, 63, 32, 10, 9, 9, 9})
	var seen []netip.Prefix
	e := Editor{Family: IPv4, OwnAS: 1, Via: far}
	_, err := e.Edit(message, func(p netip.Prefix, a *Attributes) Change {
		seen = append(seen, p)
		if a.Origin != 2 || a.Path.String() != "64513" || a.NextHop.String() != "10.0.0.2" || a.Via != far || !a.HasMED || a.MED != 5 ||
			!a.HasLocalPref || a.LocalPref != 100 {
			t.Errorf("%s: %+v", p, a)
		}
		if a.Communities.String() != "65535:0 1:2:3" || !a.Communities.Has(GracefulShutdown) || a.Communities.Has(NoExport) {
			t.Errorf("%s: communities %s", p, a.Communities)
		}
		return Change{}
	})
	want := []netip.Prefix{netip.MustParsePrefix("10.1.2.0/26"), netip.MustParsePrefix("10.9.9.9/32")}
	if d := cmp.Diff(want, seen, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	e6 := Editor{Family: IPv6}
	_, err = e6.Edit(updateOf(nil, join(origin, path, reach(2, join(hop6, hopLL), block6)), nil), func(p netip.Prefix, a *Attributes) Change {
		if p.String() != "fd01::/64" || a.NextHop.String() != "fd00::2" || a.Via != a.NextHop || a.HasMED ||
			a.HasLocalPref || !a.Communities.Empty() {
			t.Errorf("%s: %+v", p, a)
		}
		return Change{}
	})
	if err != nil {
		t.Error(err)
	}
}

// Messages of other forms than those of Check and the speaker behind are refused, without a decision on prefixes.
func TestEditRefuses(t *testing.T) {
	base := join(origin, path, hop)
	for name, c := range map[string]struct {
		family  Family
		message []byte
		want    string
	}{
		"withdrawn routes":     {IPv4, raw(Update, 0, 9, 0, 0), "withdrawn"},
		"attributes":           {IPv4, raw(Update, 0, 0, 0, 9, 1), "attributes"},
		"cut attribute":        {IPv4, updateOf(nil, []byte{0x40, 1, 9}, own26), "malformed"},
		"origin":               {IPv4, updateOf(nil, []byte{0x40, 1, 1, 9}, own26), "ORIGIN"},
		"AS path":              {IPv4, updateOf(nil, join(origin, []byte{0x40, 2, 3, 2, 1, 0}), own26), "AS_PATH"},
		"next hop":             {IPv4, updateOf(nil, join(origin, []byte{0x40, 3, 3, 1, 2, 3}), own26), "NEXT_HOP"},
		"communities":          {IPv4, updateOf(nil, join(base, standard(1, 2, 3)), own26), "COMMUNITIES"},
		"prefix":               {IPv4, updateOf(nil, base, []byte{33, 1, 2, 3, 4, 5}), "prefix longer"},
		"cut prefix":           {IPv4, updateOf(nil, base, []byte{32, 1, 2}), "prefix cut"},
		"withdrawn prefix":     {IPv4, updateOf([]byte{32, 1, 2}, base, own26), "prefix cut"},
		"IPv4 in the new form": {IPv4, updateOf(nil, join(origin, path, reach(1, []byte{10, 0, 0, 2}, own26)), nil), "MP_REACH_NLRI"},
		"IPv4 on IPv6":         {IPv6, updateOf(nil, base, own26), "IPv4 IPv6"},
		"other family":         {IPv6, updateOf(nil, join(origin, reach(1, []byte{10, 0, 0, 2}, own26)), nil), "MP_REACH_NLRI"},
		"short next hop":       {IPv6, updateOf(nil, join(origin, reach(2, hop6[:8], block6)), nil), "MP_REACH_NLRI"},
		"cut MP_UNREACH":       {IPv6, updateOf(nil, []byte{0x80, 15, 2, 0, 2}, nil), "MP_UNREACH_NLRI"},
	} {
		e := Editor{Family: c.family}
		_, err := e.Edit(c.message, func(netip.Prefix, *Attributes) Change { return Change{} })
		if !errors.Is(err, errNotEdited) || !errtest.Names(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := Editor{Family: IPv4}
	if _, err := e.Edit(updateOf(nil, base, own26), func(netip.Prefix, *Attributes) Change { return Change{NextHop: far6} }); err == nil ||
		!strings.Contains(err.Error(), "fd00::9") {
		t.Errorf("a next hop of IPv6: %v", err)
	}
}

// An UPDATE that grows too long is split. Prefixes whose attributes do not fit into a message are withdrawn.
func TestEditSplits(t *testing.T) {
	pods := bytes.Repeat(pod32, (MaxLen-headerLen-4-len(origin)-len(path)-len(hop))/len(pod32))
	e := Editor{Family: IPv4}
	add := func(netip.Prefix, *Attributes) Change {
		return Change{Add: []Community{internet, large}, Prepend: []uint32{1, 2, 3}}
	}
	got, err := e.Edit(updateOf(nil, join(origin, path, hop), pods), add)
	if err != nil || len(got) != 2 || e.TooLong != 0 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	prefixes := 0
	for _, m := range got {
		u, err := cutUpdate(m, IPv4)
		if err != nil || len(m) > MaxLen {
			t.Errorf("%d bytes, %v", len(m), err)
		}
		prefixes += countPrefixes(u.announced)
	}
	if prefixes*len(pod32) != len(pods) {
		t.Errorf("%d prefixes of %d", prefixes, len(pods)/len(pod32))
	}
	full := join(origin, path, hop, []byte{0xd0, 99, 0x0f, 0xb0}, make([]byte, 4016))
	got, err = e.Edit(updateOf(pod32, full, own26), add)
	if d := cmp.Diff([][]byte{updateOf(join(pod32, own26), nil, nil)}, got); d != "" || err != nil || e.TooLong != 1 {
		t.Errorf("%d too long, %v (-want +got):\n%s", e.TooLong, err, d)
	}
}

// A segment of an AS_PATH has 255 numbers at most.
func TestPrependLongPath(t *testing.T) {
	numbers := make([]uint32, 254)
	for i := range numbers {
		numbers[i] = uint32(1000 + i)
	}
	for own, want := range map[int]string{0: "7 8 9 1000 1001 ", 2: "7 8 9 1002 1003 "} {
		p := NewASPath(numbers...)
		p.own = own
		got := p.prepend([]uint32{7, 8, 9})
		if !wholeSegments(got.segments) || got.segments[1] != 2 || got.segments[2+2*4+1] != maxSegment ||
			!strings.HasPrefix(got.String(), want) || got.Count(1253) != 1 {
			t.Errorf("%d own: %s", own, got)
		}
	}
	if got := NewASPath(make([]uint32, 510)...).segments; len(got) != 2*2+510*4 || got[1] != maxSegment {
		t.Errorf("two full segments: %d bytes, the first of %d numbers", len(got), got[1])
	}
}

func TestASPath(t *testing.T) {
	set := ASPath{segments: join([]byte{2, 2, 0, 0, 0, 1, 0, 0, 0, 2}, []byte{1, 2, 0, 0, 0, 3, 0, 0, 0, 4}, []byte{2, 1, 0, 0, 0, 5})}
	for _, c := range []struct {
		path  ASPath
		want  []uint32
		match bool
	}{
		{NewASPath(1, 2, 3), []uint32{1}, true},
		{NewASPath(1, 2, 3), []uint32{1, 2, 3}, true},
		{NewASPath(1, 2, 3), []uint32{1, 2, 3, 4}, false},
		{NewASPath(1, 2, 3), []uint32{2}, false},
		{NewASPath(), []uint32{1}, false},
		{NewASPath(), nil, true},
		{set, []uint32{1, 2, 4, 5}, true},
		{set, []uint32{1, 2, 3, 5}, true},
		{set, []uint32{1, 2, 5}, false},
		{ASPath{segments: set.segments, own: 1}, []uint32{2, 3}, true},
		{ASPath{segments: set.segments, own: 1}, []uint32{1}, false},
		{ASPath{segments: NewASPath(1).segments, own: 1}, []uint32{1}, false},
	} {
		if got := c.path.StartsWith(c.want); got != c.match {
			t.Errorf("%s begins with %d: %t", c.path, c.want, got)
		}
	}
	if got := set.String(); got != "1 2 {3 4} 5" {
		t.Error(got)
	}
	if got := (ASPath{segments: set.segments, own: 3}).String(); got != "{3 4} 5" {
		t.Error(got)
	}
	if set.Count(4) != 1 || set.Count(6) != 0 || NewASPath(9, 9, 1).Count(9) != 2 {
		t.Error("numbers are counted wrong")
	}
}

func TestCommunity(t *testing.T) {
	for text, want := range map[string]Community{
		"64512:100": internet, "64512:1:2": large, "65535:65281": NoExport, "0:0": {}, "65535:0": GracefulShutdown,
		"4294967295:0:4294967295": {Large: true, A: 1<<32 - 1, C: 1<<32 - 1},
	} {
		got, err := ParseCommunity(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"": `""`, "1": `"1"`, "1:2:3:4": `"1:2:3:4"`, "65536:1": `"65536"`, "1:65536": `"65536"`,
		"1:": `""`, "1:-1": `"-1"`, "+1:1": `"+1"`, "a:1": `"a"`, "1:1:4294967296": `"4294967296"`, " 1:2": `" 1"`, "0x1:2": `"0x1"`,
	} {
		if _, err := ParseCommunity(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	all := NewCommunities(large, NoExport, internet, internet)
	if got := all.String(); got != "64512:100 65535:65281 64512:1:2" || !all.Has(large) || all.Empty() || all.Has(Community{Large: true}) {
		t.Error(got)
	}
	if d := cmp.Diff([]Community{internet, NoExport, large}, all.List()); d != "" {
		t.Error(d)
	}
}

// An agent's relay sees an UPDATE of this kind for every block of every node.
func BenchmarkEdit(b *testing.B) {
	one := updateOf(nil, join(origin, path, hop, pref, standard(0xfc, 0, 0, 100)), own26)
	many := updateOf(nil, join(origin, path, hop, pref), bytes.Repeat(pod32, 800))
	for name, c := range map[string]struct {
		message []byte
		change  Change
	}{
		"nothing changes":              {one, Change{}},
		"nothing changes, 800":         {many, Change{}},
		"has the community":            {one, Change{Add: []Community{internet}}},
		"gets a community":             {one, Change{Add: []Community{large}}},
		"gets a priority, 800":         {many, Change{SetLocalPref: true, LocalPref: 7}},
		"is refused, 800":              {many, Change{Withdraw: true}},
		"gets a path of 3 numbers":     {one, Change{Prepend: []uint32{1, 2, 3}}},
		"gets the next hop of another": {one, Change{NextHop: far}},
	} {
		b.Run(name, func(b *testing.B) {
			e := Editor{Family: IPv4}
			b.ReportAllocs()
			for range b.N {
				if _, err := e.Edit(c.message, func(netip.Prefix, *Attributes) Change { return c.change }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzEditAnything: an unchecked message is edited or refused, and the results can be edited again.
func FuzzEditAnything(f *testing.F) {
	f.Add(false, updateOf(pod32, join(origin, path, hop, pref), join(own26, other26))[headerLen:])
	f.Add(true, updateOf(nil, join(origin, path, reach(2, hop6, block6), unreach(2, other64)), nil)[headerLen:])
	f.Add(false, updateOf([]byte{32, 1, 2}, join(origin, path, hop), own26)[headerLen:])
	f.Fuzz(func(t *testing.T, six bool, text []byte) {
		if len(text) < 4 || len(text) > MaxLen-headerLen {
			return
		}
		e, again := Editor{Family: IPv4}, Editor{Family: IPv4}
		if six {
			e.Family, again.Family = IPv6, IPv6
		}
		changes := []Change{{}, {Withdraw: true}, {SetLocalPref: true, LocalPref: 9},
			{Add: []Community{large, internet}, Prepend: []uint32{1, 2}}}
		n := 0
		edited, err := e.Edit(raw(Update, text...), func(netip.Prefix, *Attributes) Change {
			n++
			return changes[n%len(changes)]
		})
		if err != nil {
			return
		}
		for _, m := range edited {
			if n > 0 && len(m) > MaxLen {
				t.Fatalf("a message of %d bytes", len(m))
			}
			if _, err := again.Edit(m, func(netip.Prefix, *Attributes) Change { return Change{} }); err != nil {
				t.Fatalf("% x: %v", m, err)
			}
		}
	})
}
