package wire

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var (
	placeholder4 = join([]byte{0x40, 3, 4}, Placeholder4.AsSlice())
	placeholder6 = Placeholder6.AsSlice()
	extended     = join([]byte{capExtendedNextHop, 6}, ipv4OverIPv6)
)

// A session by link-local addresses has the families that the peer offers, IPv4 only with IPv6 next hops.
func TestOpenLinkLocal(t *testing.T) {
	four, six := usual(IPv4, 64512), usual(IPv6, 64512)
	restart := func(tuples ...byte) []byte {
		return join([]byte{capGracefulRestart, byte(2 + len(tuples)), 0x40, 120}, tuples)
	}
	kept4, kept6 := []byte{0, 1, 1, 0x80}, []byte{0, 2, 1, 0}
	for name, c := range map[string]struct {
		caps     []byte
		want     Families
		graceful bool
		reason   string
	}{
		"both":                        {caps: join(four, six, extended, restart(join(kept4, kept6)...)), want: BothFamilies, graceful: true},
		"IPv6 keeps":                  {caps: join(four, six, extended, restart(kept6...)), want: BothFamilies},
		"IPv4 alone":                  {caps: join(four, extended, restart(kept4...)), want: OnlyIPv4, graceful: true},
		"IPv6 alone":                  {caps: six, want: OnlyIPv6},
		"no such next hops":           {caps: join(four, six, restart(join(kept4, kept6)...)), want: OnlyIPv6, graceful: true},
		"next hops of another family": {caps: join(four, []byte{capExtendedNextHop, 6, 0, 2, 0, 1, 0, 1}), reason: "IPv6 RFC 8950"},
		"none":                        {caps: nil, reason: "IPv6 RFC 8950"},
	} {
		t.Run(name, func(t *testing.T) {
			offer, fault := ParseOpen(openOf(4, 64512, 90, "10.0.0.2", c.caps), near)
			if c.reason != "" {
				if fault == nil || !errtest.Has(fault.Error(), c.reason) {
					t.Errorf("%v, want %q", fault, c.reason)
				}
				return
			}
			if fault != nil || offer.Families() != c.want || offer.Graceful() != c.graceful {
				t.Errorf("%v, families %b, graceful %v", fault, offer.Families(), offer.Graceful())
			}
			// The speaker behind gets both families, and no extended next hop capability.
			inner := NewSession(Rules{ASN: 64512, LocalASN: 1, Families: BothFamilies, MaxPrefixes: 1})
			pass := NewSession(near).Check(openOf(4, 64512, 90, "10.0.0.2", c.caps)).Pass
			if v := inner.Check(pass); v.Reset != nil || inner.Offer().Families() != BothFamilies || inner.Offer().extended {
				t.Errorf("passed on: %+v, %+v", v, inner.Offer())
			}
		})
	}
	ours, fault := ParseOpen(LocalOpen{ASN: 64512, ID: netip.MustParseAddr("10.0.0.2"), HoldTime: 90}.Bytes(BothFamilies, true), near)
	if fault != nil || ours.Families() != BothFamilies || !ours.Graceful() {
		t.Errorf("our OPEN: %v, %+v", fault, ours)
	}
}

// Next hops of both families can be link-local. The speaker behind gets placeholders.
func TestUpdateLinkLocal(t *testing.T) {
	anno4, anno6 := updateOf(nil, join(origin, noPath, placeholder4),
		block), updateOf(nil, join(origin, noPath, reach(2, placeholder6, block6)), nil)
	gone4, gone6 := updateOf(block, nil, nil), updateOf(nil, unreach(2, block6), nil)
	for name, c := range map[string]struct {
		message []byte
		pass    []byte
		hop     []byte // of the announced prefixes
		flaw    string
	}{
		"IPv4": {message: updateOf(nil, join(origin, noPath, reach(1, hopLL, block)), nil), pass: anno4, hop: hopLL},
		"IPv4, two": {message: updateOf(nil, join(origin, noPath, reach(1, join(hop6, hopLL), block)), nil),
			pass: anno4, hop: hopLL},
		"IPv4, twice the same": {message: updateOf(nil, join(origin, noPath, reach(1, join(hopLL, hopLL), block)), nil),
			pass: anno4, hop: hopLL},
		"IPv4 by its own next hop": {message: updateOf(nil, minimal, block), pass: updateOf(nil, minimal, block), hop: []byte{10, 0, 0, 2}},
		"IPv4, global": {message: updateOf(nil, join(origin, noPath, reach(1, hop6, block)), nil), pass: gone4,
			flaw: "IPv6 link-local"},
		"IPv6": {message: updateOf(nil, join(origin, noPath, reach(2, hopLL, block6)), nil), pass: anno6, hop: hopLL},
		"IPv6, two": {message: updateOf(nil, join(origin, noPath, reach(2, join(hop6, hopLL), block6)), nil),
			pass: anno6, hop: hopLL},
		"IPv6, two global ones": {message: updateOf(nil, join(origin, noPath, reach(2, join(hop6, hop6), block6)), nil),
			pass: updateOf(nil, join(origin, noPath, reach(2, hop6, block6)), nil), hop: hop6},
		"IPv6, beside no IPv4": {message: updateOf(nil, join(origin, noPath, []byte{0x40, 3, 4, 0, 0, 0, 0}, reach(2, hopLL, block6)),
			nil), pass: anno6, hop: hopLL},
		"both go":                    {message: updateOf(block, unreach(2, block6), nil), pass: join(gone4, gone6)},
		"IPv4 goes, in the new form": {message: updateOf(nil, unreach(1, block), nil), pass: gone4},
		"one comes, the other goes": {message: updateOf(nil, join(origin, noPath, reach(1, hopLL, block), unreach(2, block6)), nil),
			pass: join(anno4, gone6), hop: hopLL},
		"both, by one flawed attribute": {message: updateOf(nil, join([]byte{0x40, 1, 1, 3}, noPath, hop, reach(2, hopLL, block6)), block),
			pass: join(gone4, gone6), flaw: "ORIGIN"},
		"an impossible next hop": {message: updateOf(nil, join(origin, noPath, reach(1, make([]byte, 16), block)), nil),
			pass: gone4, flaw: "next hop"},
		"in the form of IPv6": {message: updateOf(nil,
			join(origin, noPath, reach(1, netip.MustParseAddr("::ffff:169.254.1.1").AsSlice(), block)), nil), pass: gone4, flaw: "next hop"},
		"any router's": {message: updateOf(nil, join(origin, noPath, reach(1, AnyRouter.AsSlice(), block)), nil),
			pass: gone4, flaw: "next hop"},
	} {
		t.Run(name, func(t *testing.T) {
			s := up(t, near)
			v := s.Check(c.message)
			if v.Reset != nil || !errtest.Has(v.Flaw, c.flaw) || (c.flaw == "") != (v.Flaw == "") {
				t.Fatalf("%+v", v)
			}
			difftest.Want(t, "", c.pass, v.Pass)
			for _, what := range s.announced {
				if what == (Said{}) {
					continue
				}
				if hop, _ := what.parts(); !bytes.Equal(hop, c.hop) {
					t.Errorf("next hop % x, want % x", hop, c.hop)
				}
			}
			var again []byte
			for message := range s.Table(0, func(netip.Prefix) bool { return true }) {
				again = append(again, message...)
			}
			if c.hop != nil && !bytes.HasPrefix(c.pass, again) {
				t.Errorf("once more: % x, want % x", again, c.pass)
			}
		})
	}
	if v := up(t, inside6).Check(updateOf(nil, join(origin, noPath, reach(2, hopLL, block6)), nil)); !bytes.Equal(v.Pass, gone6) ||
		!errtest.Has(v.Flaw, "link-local") {
		t.Errorf("a link-local next hop of another session: %+v", v)
	}
	if v := up(t, near).Check(updateOf(nil, join(origin, noPath, reach(2, hopLL[:4], block6)), nil)); v.Reset == nil {
		t.Errorf("an IPv6 prefix with a next hop of four octets: %+v", v)
	}
}

// The table has ended with End-of-RIB of all the peer's families. The speaker behind then gets the others', too.
func TestEndLinkLocal(t *testing.T) {
	end4, end6 := updateOf(nil, nil, nil), updateOf(nil, unreach(2, nil), nil)
	s := up(t, near)
	if v := s.Check(end6); v.End || v.Ended != OnlyIPv6 || !bytes.Equal(v.Pass, end6) {
		t.Errorf("after IPv6: %+v", v)
	}
	if v := s.Check(end4); !v.End || v.Ended != OnlyIPv4 || !bytes.Equal(v.Pass, end4) {
		t.Errorf("after both: %+v", v)
	}
	s = NewSession(near)
	for _, m := range [][]byte{openOf(4, 64512, 90, "10.0.0.2", usual(IPv6, 64512)), raw(Keepalive)} {
		s.Check(m)
	}
	if v := s.Check(end6); !v.End || !bytes.Equal(v.Pass, join(end6, end4)) {
		t.Errorf("of a peer without IPv4: %+v", v)
	}
	if v := s.Check(updateOf(nil, minimal, block)); v.Pass != nil || v.Reset != nil || s.Prefixes() != 0 {
		t.Errorf("IPv4, which it has not offered: %+v", v)
	}
}

// Announcements of our own speaker go to the peer with our link-local address as next hop. Other messages stay.
func TestExtend(t *testing.T) {
	self := netip.AddrFrom16([16]byte(hopLL))
	community := []byte{0xc0, 8, 4, 0, 1, 0, 2}
	inner := updateOf(nil, join(origin, noPath, placeholder4, community), block)
	outer := updateOf(nil, join(origin, noPath, community, reach(1, hopLL, block)), nil)
	for name, c := range map[string]struct{ in, want []byte }{
		"announcement": {inner, outer},
		"with another": {updateOf([]byte{24, 10, 2, 3}, join(origin, noPath, placeholder4, community), block),
			join(updateOf([]byte{24, 10, 2, 3}, nil, nil), outer)},
		"its own hop": {updateOf(nil, minimal, block), updateOf(nil, minimal, block)},
		"withdrawal":  {updateOf(block, nil, nil), updateOf(block, nil, nil)},
		"end":         {updateOf(nil, nil, nil), updateOf(nil, nil, nil)},
		"IPv6": {updateOf(nil, join(origin, noPath, reach(2, hopLL, block6)), nil),
			updateOf(nil, join(origin, noPath, reach(2, hopLL, block6)), nil)},
		"another message": {raw(Keepalive), raw(Keepalive)},
	} {
		if got := slices.Concat(Extend(c.in, self)...); !bytes.Equal(got, c.want) {
			t.Errorf("%s: % x, want % x", name, got, c.want)
		}
	}
	if got := Plain(outer); !bytes.Equal(got, updateOf(nil, join(origin, noPath, community, placeholder4), block)) {
		t.Errorf("plain: % x", got)
	}
	for _, same := range [][]byte{inner, updateOf(nil, unreach(2, block6), nil), updateOf(nil, nil, nil), raw(Keepalive),
		updateOf(nil, reach(2, hopLL, block6), nil)} {
		if got := Plain(same); !bytes.Equal(got, same) {
			t.Errorf("plain: % x, want % x", got, same)
		}
	}

	// A message full of attributes has no room for a prefix.
	tight := updateOf(nil, join(origin, noPath, placeholder4, []byte{0xd0, 8, 0x0f, 0xcc}, make([]byte, 0x0fcc)), []byte{32, 10, 1, 2, 3})
	if got := slices.Concat(Extend(tight, self)...); !bytes.Equal(got, updateOf([]byte{32, 10, 1, 2, 3}, nil, nil)) {
		t.Errorf("a message of %d bytes became one of %d", len(tight), len(got))
	}

	// A message full of prefixes is split in two.
	full := updateOf(nil, join(origin, noPath, placeholder4), bytes.Repeat([]byte{32, 10, 1, 2, 3}, (MaxLen-headerLen-4-14)/5))
	parts, prefixes := Extend(full, self), 0
	for _, part := range parts {
		if len(part) > MaxLen {
			t.Errorf("a message of %d bytes", len(part))
		}
		prefixes += bytes.Count(part, []byte{32, 10, 1, 2, 3})
	}
	if len(parts) != 2 || prefixes != bytes.Count(full, []byte{32, 10, 1, 2, 3}) {
		t.Errorf("%d messages with %d prefixes", len(parts), prefixes)
	}
}
