package wire

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// through passes an UPDATE through this node: it is stamped on the way in, and the stamp is taken on the way out.
func through(t *testing.T, rules Rules, message []byte, keepMED bool) (inside, out []byte, stamp Stamp) {
	t.Helper()
	v := up(t, rules).Check(message)
	if v.Reset != nil {
		t.Fatal(v.Reset)
	}
	inside = bytes.Clone(v.Pass)
	out, stamp = TakeStamp(new([]byte), inside, keepMED)
	return inside, out, stamp
}

func TestStamp(t *testing.T) {
	external, internal := outside, inside
	external.Source, internal.Source = External, Client
	six := inside6
	six.Source = Internal
	linked, onLink := near, netip.MustParseAddr("fe80::2%eth0")
	linked.Source = Internal
	path := []byte{0x40, 2, 6, 2, 1, 0, 0, 0xfc, 1}
	med := []byte{0x80, 4, 4, 0, 0, 0, 9}
	clusters := []byte{0x80, 10, 8, 10, 0, 0, 7, 10, 0, 0, 8}
	for name, c := range map[string]struct {
		rules   Rules
		message []byte
		keepMED bool
		want    []byte
		stamp   Stamp
	}{
		"from outside": {external, updateOf(nil, join(origin, path, hop, med), block), true,
			updateOf(nil, join(origin, path, hop, med), block),
			Stamp{Source: External, HasMED: true, MED: 9, NextHop: netip.MustParseAddr("10.0.0.2")}},
		"towards outside": {external, updateOf(nil, join(origin, path, hop, med), block), false,
			updateOf(nil, join(origin, path, hop), block), Stamp{Source: External, HasMED: true, MED: 9, NextHop: netip.MustParseAddr("10.0.0.2")}},
		"no MED": {internal, updateOf(nil, minimal, block), true,
			updateOf(nil, join(origin, noPath, hop), block), Stamp{Source: Client, NextHop: netip.MustParseAddr("10.0.0.2")}},
		"a rank is no MED": {internal, updateOf(nil, join(minimal, clusters), block), true,
			updateOf(nil, join(origin, noPath, clusters, hop), block), Stamp{Source: Client, NextHop: netip.MustParseAddr("10.0.0.2")}},
		"IPv6": {six, updateOf(nil, join(origin, noPath, reach(2, hop6, block6)), nil), true,
			updateOf(nil, join(origin, noPath, reach(2, hop6, block6)), nil), Stamp{Source: Internal, NextHop: netip.MustParseAddr("fd00::2")}},
		"IPv6 on a link": {linked, updateOf(nil, join(origin, noPath, reach(2, hopLL, block6)), nil), true,
			updateOf(nil, join(origin, noPath, reach(2, placeholder6, block6)), nil), Stamp{Source: Internal, NextHop: onLink}},
		"IPv4 on a link": {linked, updateOf(nil, join(origin, noPath, reach(1, hopLL, block)), nil), true,
			updateOf(nil, join(origin, noPath, placeholder4), block), Stamp{Source: Internal, NextHop: onLink}},
	} {
		t.Run(name, func(t *testing.T) {
			inside, out, stamp := through(t, c.rules, c.message, c.keepMED)
			difftest.Want(t, "stamp", c.stamp, stamp)
			if got, want := attributeSet(t, out), attributeSet(t, c.want); !slices.Equal(got, want) {
				t.Errorf("% x\nwant\n% x", out, c.want)
			}
			if bytes.Equal(inside, out) {
				t.Error("it was not stamped")
			}
		})
	}
	own := updateOf(nil, minimal, block)
	if out, stamp := TakeStamp(new([]byte), own, true); &out[0] != &own[0] || stamp.Source != Own {
		t.Errorf("our own path: %+v", stamp)
	}
}

// attributeSet returns a message's attributes in a fixed order, and the rest of the message.
func attributeSet(t *testing.T, message []byte) []string {
	t.Helper()
	b, from := attributesOf(message)
	set := []string{string(message[from+len(b):])}
	for len(b) > 0 {
		_, _, _, rest, ok := cutAttribute(b)
		if !ok {
			t.Fatalf("% x", message)
		}
		set, b = append(set, string(b[:len(b)-len(rest)])), rest
	}
	slices.Sort(set)
	return set
}

// A stamp sent by a peer is left out, like all unknown attributes.
func TestForgedStamp(t *testing.T) {
	rules := inside
	rules.Source = Internal
	forged := Stamp{Source: Own, Epoch: 3}.append(nil)
	_, _, stamp := through(t, rules, updateOf(nil, join(minimal, forged), block), true)
	if stamp.Source != Internal {
		t.Errorf("%+v", stamp)
	}
}

func TestRank(t *testing.T) {
	order := []uint32{rank(0, 0), rank(0, 1), rank(0, 15), rank(1, 0), rank(1, 3), rank(mostRank, 0), rank(1<<32-1, 1)}
	if !slices.IsSorted(order) || rank(0, 99) != rank(0, 15) || rank(mostRank, 2) != rank(1<<32-1, 2) {
		t.Error(order)
	}
}

// Reflected paths that return to where they were are refused, and withdraw an earlier one.
func TestReflectionLoops(t *testing.T) {
	rules := inside
	rules.ClusterID = netip.MustParseAddr("10.9.9.9")
	for name, attribute := range map[string][]byte{
		"our cluster": {0x80, 10, 8, 10, 0, 0, 7, 10, 9, 9, 9},
		"our own":     {0x80, 9, 4, 10, 0, 0, 1},
	} {
		s := up(t, rules)
		s.Check(updateOf(nil, minimal, block))
		v := s.Check(updateOf(nil, join(minimal, attribute), block))
		if v.Refusal == "" || len(v.Refused) != 1 || s.Prefixes() != 1 {
			t.Errorf("%s: %+v, %d prefixes", name, v, s.Prefixes())
		}
		difftest.Want(t, name, updateOf(block, nil, nil), v.Pass)
		for message := range s.Table(0, func(netip.Prefix) bool { return true }) {
			t.Errorf("%s: it is in the table: % x", name, message)
		}
	}
}

func TestTable(t *testing.T) {
	rules := inside
	rules.MaxPrefixes, rules.Source = 5000, Internal
	s := up(t, rules)
	want := make(map[netip.Prefix]bool)
	for i := range 20 {
		var list []byte
		for j := range 100 {
			list = append(list, 24, 10, byte(i), byte(j))
			want[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j), 0}), 24)] = true
		}
		s.Check(updateOf(nil, join(minimal, []byte{0xc0, 8, 4, 0, byte(i % 2), 0, 2}), list))
	}
	s.Check(updateOf([]byte{24, 10, 3, 3}, nil, nil))
	delete(want, netip.MustParsePrefix("10.3.3.0/24"))
	s.SetSource(Client)
	again := up(t, rules)
	again.SetSource(Internal)
	messages := 0
	for message := range s.Table(3, func(p netip.Prefix) bool { return want[p] }) {
		messages++
		plain, stamp := TakeStamp(new([]byte), message, true)
		if stamp.Epoch != 3 || stamp.Source != Client || stamp.NextHop != netip.MustParseAddr("10.0.0.2") {
			t.Fatalf("%+v", stamp)
		}
		if v := again.Check(plain); v.Reset != nil || v.Flaw != "" {
			t.Fatalf("%v, %q", v.Reset, v.Flaw)
		}
	}
	if len(again.announced) != len(want) || messages > 4 {
		t.Errorf("%d prefixes in %d messages, want %d in few", len(again.announced), messages, len(want))
	}
	for p, what := range s.announced {
		if again.announced[p] != what {
			t.Fatalf("%s came back as % x", p, again.announced[p].Value())
		}
	}
}

func TestNarrow(t *testing.T) {
	wide := []byte{0x40, 2, 12, 2, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 7}
	narrow := []byte{0x40, 2, 8, 2, 1, 0x5b, 0xa0, 1, 1, 0, 7}
	four := append([]byte{0xc0, 17, 12}, wide[3:]...)
	fits := []byte{0x40, 2, 6, 2, 1, 0, 0, 0xfc, 1}
	for _, c := range []struct{ in, want []byte }{
		{updateOf(nil, join(origin, wide, hop), block), updateOf(nil, join(origin, narrow, four, hop), block)},
		{updateOf(nil, join(origin, fits, hop), block), updateOf(nil, join(origin, []byte{0x40, 2, 4, 2, 1, 0xfc, 1}, hop), block)},
		{updateOf(nil, join(minimal, aggregator), block),
			updateOf(nil, join(minimal, []byte{0xc0, 7, 6, 0x5b, 0xa0, 10, 0, 0, 2, 0xc0, 18, 8, 0, 1, 0, 0, 10, 0, 0, 2}), block)},
		{updateOf(block, nil, nil), updateOf(block, nil, nil)},
		{raw(Keepalive), raw(Keepalive)},
	} {
		difftest.Want(t, "", [][]byte{c.want}, Narrow(c.in, IPv4))
	}
}

// A repeated announcement keeps the link of its next hop.
func TestTableOnLink(t *testing.T) {
	rules := near
	rules.Source = Internal
	s := up(t, rules)
	s.Check(updateOf(nil, join(origin, noPath, reach(1, hopLL, block)), nil))
	s.SetSource(Client)
	want := Stamp{Source: Client, NextHop: netip.MustParseAddr("fe80::2%eth0"), Epoch: 3}
	var got []Stamp
	for message := range s.Table(3, func(netip.Prefix) bool { return true }) {
		_, stamp := TakeStamp(new([]byte), message, true)
		got = append(got, stamp)
	}
	difftest.Want(t, "stamps", []Stamp{want}, got)
}
