package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var (
	inside  = Rules{ASN: 64512, LocalASN: 64512, LocalID: netip.MustParseAddr("10.0.0.1"), Families: OnlyIPv4, MaxPrefixes: 4}
	outside = Rules{ASN: 64513, LocalASN: 64512, LocalID: netip.MustParseAddr("10.0.0.1"), Families: OnlyIPv4, MaxPrefixes: 4}
	inside6 = Rules{ASN: 64512, LocalASN: 64512, LocalID: netip.MustParseAddr("10.0.0.1"), Families: OnlyIPv6, MaxPrefixes: 4}
	near    = Rules{ASN: 64512, LocalASN: 64512, LocalID: netip.MustParseAddr("10.0.0.1"), Families: BothFamilies,
		Link: "eth0", MaxPrefixes: 4}
)

// raw builds a message of any type around a body.
func raw(kind Type, body ...byte) []byte { return end(append(begin(kind), body...)) }

// usual returns the capabilities of a usual peer.
func usual(family Family, asn uint32) []byte {
	caps := append(capabilities(1<<family), capRouteRefresh, 0, capFourOctetAS, 4)
	return binary.BigEndian.AppendUint32(caps, asn)
}

// usualOf returns the capabilities of a peer for a session with such rules.
func usualOf(rules Rules) (caps []byte) {
	if rules.Link != "" {
		caps = join([]byte{capExtendedNextHop, 6}, ipv4OverIPv6)
	}
	for _, family := range rules.Families.All() {
		caps = append(caps, usual(family, rules.ASN)...)
	}
	return caps
}

// openOf builds an OPEN with one parameter that holds caps.
func openOf(version byte, as, hold uint16, id string, caps []byte) []byte {
	addr := netip.MustParseAddr(id).As4()
	body := append([]byte{version, byte(as >> 8), byte(as), byte(hold >> 8), byte(hold)}, addr[:]...)
	if caps == nil {
		return raw(Open, append(body, 0)...)
	}
	return raw(Open, append(append(body, byte(len(caps)+2), optCapabilities, byte(len(caps))), caps...)...)
}

func updateOf(withdrawn, attributes, reachable []byte) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	body = append(body, withdrawn...)
	body = binary.BigEndian.AppendUint16(body, uint16(len(attributes)))
	return raw(Update, append(append(body, attributes...), reachable...)...)
}

// up returns a session that is established.
func up(t testing.TB, rules Rules) *Session {
	t.Helper()
	s := NewSession(rules)
	for _, m := range [][]byte{openOf(4, asTrans, 90, "10.0.0.2", usualOf(rules)), raw(Keepalive)} {
		if v := s.Check(m); v.Reset != nil || v.Pass == nil {
			t.Fatalf("handshake: %+v", v)
		}
	}
	return s
}

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

var (
	origin  = []byte{0x40, 1, 1, 0}
	noPath  = []byte{0x40, 2, 0}
	path    = []byte{0x40, 2, 6, 2, 1, 0, 0, 0xfc, 1}
	hop     = []byte{0x40, 3, 4, 10, 0, 0, 2}
	pref    = []byte{0x40, 5, 4, 0, 0, 0, 100}
	block   = []byte{26, 10, 1, 2, 0}
	block6  = []byte{64, 0xfd, 1, 0, 0, 0, 0, 0, 0}
	hop6    = netip.MustParseAddr("fd00::2").AsSlice()
	hopLL   = netip.MustParseAddr("fe80::2").AsSlice()
	minimal = join(origin, noPath, hop)
)

func reach(family byte, hop, prefixes []byte) []byte {
	value := join([]byte{0, family, 1, byte(len(hop))}, hop, []byte{0}, prefixes)
	return append([]byte{0x80, 14, byte(len(value))}, value...)
}

func unreach(family byte, prefixes []byte) []byte {
	return append([]byte{0x80, 15, byte(3 + len(prefixes)), 0, family, 1}, prefixes...)
}

func TestRead(t *testing.T) {
	bad := func(change func([]byte)) []byte {
		m := raw(Keepalive)
		change(m)
		return m
	}
	for name, c := range map[string]struct {
		in      []byte
		want    string
		subcode uint8
		data    []byte
	}{
		"marker":            {in: bad(func(m []byte) { m[3] = 0 }), want: "Connection Not Synchronized", subcode: 1},
		"unknown type":      {in: bad(func(m []byte) { m[18] = 9 }), want: "Bad Message Type", subcode: 3, data: []byte{9}},
		"type 0":            {in: bad(func(m []byte) { m[18] = 0 }), want: "Bad Message Type", subcode: 3, data: []byte{0}},
		"shorter than any":  {in: bad(func(m []byte) { m[17] = 18 }), want: "Bad Message Length", subcode: 2, data: []byte{0, 18}},
		"long keepalive":    {in: bad(func(m []byte) { m[17] = 20 }), want: "Bad Message Length", subcode: 2, data: []byte{0, 20}},
		"short open":        {in: bad(func(m []byte) { m[18] = 1 }), want: "Bad Message Length", subcode: 2, data: []byte{0, 19}},
		"short update":      {in: bad(func(m []byte) { m[18] = 2 }), want: "Bad Message Length", subcode: 2, data: []byte{0, 19}},
		"short notify":      {in: bad(func(m []byte) { m[18] = 3 }), want: "Bad Message Length", subcode: 2, data: []byte{0, 19}},
		"longer than any":   {in: bad(func(m []byte) { m[16], m[18] = 0x20, 2 }), want: "Bad Message Length", subcode: 2, data: []byte{0x20, 19}},
		"HTTP on this port": {in: []byte("GET / HTTP/1.1\r\nHost: x\r\n"), want: "Connection Not Synchronized", subcode: 1},
	} {
		_, err := Read(bytes.NewReader(c.in), make([]byte, MaxLen))
		var n *Notification
		if !errors.As(err, &n) || n.Code != HeaderError || n.Subcode != c.subcode || !bytes.Equal(n.Data, c.data) ||
			!strings.Contains(n.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	stream := join(raw(Keepalive), updateOf(nil, minimal, block))
	r, buf := bytes.NewReader(stream), make([]byte, MaxLen)
	for _, want := range []Type{Keepalive, Update} {
		if m, err := Read(r, buf); err != nil || TypeOf(m) != want {
			t.Errorf("%v, %v, want type %d", m, err, want)
		}
	}
	if _, err := Read(r, buf); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if _, err := Read(bytes.NewReader(stream[:40]), buf); err != nil {
		t.Error(err)
	}
	if _, err := Read(bytes.NewReader(stream[19:40]), buf); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
}

func TestOpen(t *testing.T) {
	restart := func(flags byte, tuple ...byte) []byte {
		return join(usual(IPv4, 64512), []byte{capGracefulRestart, byte(2 + len(tuple)), flags, 120}, tuple)
	}
	both := join(capabilities(OnlyIPv6), usual(IPv4, 64512))
	wide := join(capabilities(OnlyIPv4), []byte{capFourOctetAS, 4, 0, 0, 0xfc, 0})
	for name, c := range map[string]struct {
		message []byte
		rules   Rules
		pass    []byte
		subcode uint8
		reason  string
	}{
		"usual": {message: openOf(4, asTrans, 90, "10.0.0.2", usual(IPv4, 64512)), rules: inside,
			pass: openOf(4, 64512, 90, "10.0.0.2", usual(IPv4, 64512))},
		"what is not ours is left out": {message: openOf(4, 64512, 90, "10.0.0.2",
			join(both, []byte{69, 4, 0, 1, 1, 3, 73, 1, 'x', 5, 3, 0, 1, 0})), rules: inside,
			pass: openOf(4, 64512, 90, "10.0.0.2", usual(IPv4, 64512))},
		"restarted": {message: openOf(4, 64512, 90, "10.0.0.2", restart(0xc0, 0, 2, 1, 0x80, 0, 1, 1, 0x80)), rules: inside,
			pass: openOf(4, 64512, 90, "10.0.0.2", restart(0xc0, 0, 1, 1, 0x80))},
		"helper only": {message: openOf(4, 64512, 90, "10.0.0.2", restart(0)), rules: inside,
			pass: openOf(4, 64512, 90, "10.0.0.2", restart(0))},
		"two octets": {message: openOf(4, 64512, 90, "10.0.0.2", capabilities(OnlyIPv4)), rules: inside,
			pass: openOf(4, 64512, 90, "10.0.0.2", wide)},
		"no capabilities": {message: openOf(4, 64512, 90, "10.0.0.2", nil), rules: inside,
			pass: openOf(4, 64512, 90, "10.0.0.2", wide)},
		"IPv6": {message: openOf(4, 64512, 90, "10.0.0.2", both), rules: inside6,
			pass: openOf(4, 64512, 90, "10.0.0.2", usual(IPv6, 64512))},
		"extended parameters": {
			message: raw(Open, join([]byte{4, 0xfc, 0, 0, 90, 10, 0, 0, 2, 255, 255, 0, 9, 2, 0, 6}, capabilities(OnlyIPv4))...), rules: inside,
			pass: openOf(4, 64512, 90, "10.0.0.2", wide),
		},
		"version":              {message: openOf(3, 64512, 90, "10.0.0.2", nil), rules: inside, subcode: 1, reason: "3"},
		"AS":                   {message: openOf(4, 64512, 90, "10.0.0.2", usual(IPv4, 64513)), rules: inside, subcode: 2, reason: "64513 64512"},
		"no ID":                {message: openOf(4, 64512, 90, "0.0.0.0", usual(IPv4, 64512)), rules: inside, subcode: 3, reason: "0.0.0.0"},
		"our ID":               {message: openOf(4, 64512, 90, "10.0.0.1", usual(IPv4, 64512)), rules: inside, subcode: 3, reason: "10.0.0.1"},
		"no keepalives":        {message: openOf(4, 64512, 0, "10.0.0.2", usual(IPv4, 64512)), rules: inside, subcode: 6, reason: "0"},
		"other family":         {message: openOf(4, 64512, 90, "10.0.0.2", usual(IPv4, 64512)), rules: inside6, subcode: 7, reason: "IPv6"},
		"only the other":       {message: openOf(4, 64512, 90, "10.0.0.2", usual(IPv6, 64512)), rules: inside, subcode: 7, reason: "IPv4"},
		"parameter":            {message: raw(Open, 4, 0xfc, 0, 0, 90, 10, 0, 0, 2, 2, 1, 0), rules: inside, subcode: 4, reason: "1"},
		"parameters too short": {message: raw(Open, 4, 0xfc, 0, 0, 90, 10, 0, 0, 2, 9, 2, 0), rules: inside, reason: "malformed"},
		"parameter too long":   {message: raw(Open, 4, 0xfc, 0, 0, 90, 10, 0, 0, 2, 2, 2, 9), rules: inside, reason: "malformed"},
		"capability too long":  {message: openOf(4, 64512, 90, "10.0.0.2", []byte{1, 9, 0}), rules: inside, reason: "malformed"},
		"half a parameter":     {message: raw(Open, 4, 0xfc, 0, 0, 90, 10, 0, 0, 2, 1, 2), rules: inside, reason: "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			v := NewSession(c.rules).Check(c.message)
			if c.reason == "" {
				if v.Reset != nil {
					t.Fatal(v.Reset)
				}
				difftest.Want(t, "", c.pass, v.Pass)
				return
			}
			if v.Reset == nil || v.Reset.Code != OpenError || v.Reset.Subcode != c.subcode || !errtest.Has(v.Reset.Error(), c.reason) {
				t.Errorf("%+v, want %q", v.Reset, c.reason)
			}
		})
	}
	// Another AS may have a router ID equal to ours, RFC 6286.
	if v := NewSession(outside).Check(openOf(4, 64513, 90, "10.0.0.1", usual(IPv4, 64513))); v.Reset != nil {
		t.Error(v.Reset)
	}
}

func TestOrder(t *testing.T) {
	hello := openOf(4, 64512, 90, "10.0.0.2", usual(IPv4, 64512))
	for want, messages := range map[uint8][][]byte{
		1: {updateOf(nil, minimal, block)},
		2: {hello, updateOf(nil, minimal, block)},
		3: {hello, raw(Keepalive), hello},
	} {
		s := NewSession(inside)
		var v Verdict
		for _, m := range messages {
			v = s.Check(m)
		}
		if v.Reset == nil || v.Reset.Code != StateError || v.Reset.Subcode != want {
			t.Errorf("%+v, want subcode %d", v, want)
		}
	}
	s := NewSession(inside)
	if v := s.Check(raw(Notify, Cease, ConnectionRejected, 'x')); v.Reset != nil ||
		!bytes.Equal(v.Pass, raw(Notify, Cease, ConnectionRejected)) {
		t.Errorf("NOTIFICATION in place of an OPEN: %+v", v)
	}
}

func TestUpdate(t *testing.T) {
	anno := updateOf(nil, join(origin, noPath, pref, hop), block)
	gone := updateOf(block, nil, nil)
	anno6 := updateOf(nil, join(origin, noPath, reach(2, hop6, block6)), nil)
	gone6 := updateOf(nil, unreach(2, block6), nil)
	for name, c := range map[string]struct {
		rules   Rules
		message []byte
		pass    []byte
		flaw    string
		refusal string // flawed announcements are passed on as withdrawals, and refused as malformed
		reset   string
		subcode uint8
	}{
		"announcement":            {message: updateOf(nil, join(origin, noPath, hop, pref), block), pass: anno},
		"withdrawal":              {message: gone, pass: gone},
		"end of the table":        {message: updateOf(nil, nil, nil), pass: updateOf(nil, nil, nil)},
		"end, in the new form":    {message: updateOf(nil, unreach(1, nil), nil), pass: updateOf(nil, nil, nil)},
		"host bits":               {message: updateOf(nil, join(origin, noPath, pref, hop), []byte{26, 10, 1, 2, 63}), pass: anno},
		"default route":           {message: updateOf([]byte{0}, nil, nil), pass: updateOf([]byte{0}, nil, nil)},
		"withdrawn and announced": {message: updateOf(block, join(origin, noPath, pref, hop), block), pass: anno},
		"IPv4 in the new form":    {message: updateOf(nil, join(origin, noPath, pref, reach(1, []byte{10, 0, 0, 2}, block)), nil), pass: anno},
		"IPv6 next hop":           {message: updateOf(nil, join(origin, noPath, reach(1, hop6, block)), nil), pass: gone, flaw: "IPv6 hop"},
		"communities stay": {message: updateOf(nil, join(minimal, []byte{0xc0, 8, 4, 0, 1, 0, 2}), block),
			pass: updateOf(nil, join(origin, noPath, []byte{0xc0, 8, 4, 0, 1, 0, 2}, hop), block)},
		"unknown ones go": {message: updateOf(nil, join(minimal, []byte{0xc0, 99, 1, 0}), block), pass: updateOf(nil, minimal, block)},
		"aggregator stays": {message: updateOf(nil, join(minimal, aggregator, atomic), block),
			pass: updateOf(nil, join(origin, noPath, aggregator, atomic, hop), block)},
		"odd aggregators go": {message: updateOf(nil, join(minimal, []byte{0xc0, 7, 1, 0}, []byte{0x40, 6, 1, 0}), block),
			pass: updateOf(nil, minimal, block),
			flaw: "AGGREGATOR 1"},
		"twice": {message: updateOf(nil, join(minimal, []byte{0x40, 1, 1, 2}), block),
			pass: updateOf(nil, minimal, block), flaw: "ORIGIN twice"},
		"nothing is left": {message: updateOf(nil, unreach(2, block6), nil), pass: nil},
		"attributes only": {message: updateOf(nil, minimal, nil), pass: nil},

		"no origin":   {message: updateOf(nil, join(noPath, hop), block), pass: gone, flaw: "ORIGIN missing"},
		"no path":     {message: updateOf(nil, join(origin, hop), block), pass: gone, flaw: "AS_PATH missing"},
		"no next hop": {message: updateOf(nil, join(origin, noPath), block), pass: gone, flaw: "NEXT_HOP missing"},
		"origin 3":    {message: updateOf(nil, join([]byte{0x40, 1, 1, 3}, noPath, hop), block), pass: gone, flaw: "ORIGIN 1"},
		"flags":       {message: updateOf(nil, join([]byte{0xc0, 1, 1, 0}, noPath, hop), block), pass: gone, flaw: "0xc0 ORIGIN"},
		"loopback next hop": {message: updateOf(nil, join(origin, noPath, []byte{0x40, 3, 4, 127, 0, 0, 1}), block), pass: gone,
			flaw: "NEXT_HOP 7f 00 00 01"},
		"class E next hop": {message: updateOf(nil, join(origin, noPath, []byte{0x40, 3, 4, 240, 0, 0, 1}), block),
			pass: gone, flaw: "NEXT_HOP"},
		"long next hop": {message: updateOf(nil, join(origin, noPath, []byte{0x40, 3, 5, 10, 0, 0, 1, 1}), block),
			pass: gone, flaw: "NEXT_HOP"},
		"confederation": {message: updateOf(nil, join(origin, []byte{0x40, 2, 6, 3, 1, 0, 0, 0, 1}, hop), block), pass: gone,
			flaw: "AS_PATH malformed"},
		"empty segment":  {message: updateOf(nil, join(origin, []byte{0x40, 2, 2, 2, 0}, hop), block), pass: gone, flaw: "AS_PATH malformed"},
		"AS 0":           {message: updateOf(nil, join(origin, []byte{0x40, 2, 6, 2, 1, 0, 0, 0, 0}, hop), block), pass: gone, flaw: "AS 0"},
		"MED of 3 bytes": {message: updateOf(nil, join(minimal, []byte{0x80, 4, 3, 0, 0, 0}), block), pass: gone, flaw: "MULTI_EXIT_DISC 3"},
		"too much": {message: updateOf(nil, join(minimal, []byte{0xd0, 8, 8, 0}, make([]byte, 2048)), block),
			pass: gone, refusal: "2048"},
		"attribute too long": {message: updateOf(nil, join(minimal, []byte{0x80, 4, 9, 0}), block), pass: gone, flaw: "fit"},

		"LOCAL_PREF from outside": {rules: outside, message: updateOf(nil, join(origin, path, hop, pref), block),
			pass: updateOf(nil, join(origin, path, hop), block)},

		"IPv6": {rules: inside6, message: anno6, pass: anno6},
		"IPv6, two next hops": {rules: inside6,
			message: updateOf(nil, join(origin, noPath, reach(2, join(hop6, hopLL), block6)), nil), pass: anno6},
		"IPv6 withdrawal":  {rules: inside6, message: gone6, pass: gone6},
		"IPv6 end":         {rules: inside6, message: updateOf(nil, unreach(2, nil), nil), pass: updateOf(nil, unreach(2, nil), nil)},
		"no end of IPv4's": {rules: inside6, message: updateOf(nil, nil, nil), pass: nil},
		"IPv4 on IPv6":     {rules: inside6, message: anno, pass: nil},
		"IPv6, no origin": {rules: inside6, message: updateOf(nil, join(noPath, reach(2, hop6, block6)), nil),
			pass: gone6, flaw: "ORIGIN missing"},
		"IPv6 loopback": {rules: inside6,
			message: updateOf(nil, join(origin, noPath, reach(2, netip.IPv6Loopback().AsSlice(), block6)), nil), pass: gone6, flaw: "address"},
		"IPv6, rest too short": {rules: inside6, message: updateOf(nil, join(origin, noPath, reach(2, hop6, block6), []byte{0x40}), nil),
			pass: gone6, flaw: "fit"},

		"withdrawn too long":  {message: raw(Update, 0, 9, 0, 0), reset: "withdrawn", subcode: 1},
		"attributes too long": {message: raw(Update, 0, 0, 0, 9), reset: "attributes", subcode: 1},
		"prefix of 33 bits":   {message: updateOf(nil, minimal, []byte{33, 10, 0, 0, 0, 0}), reset: "prefix", subcode: 10},
		"prefix cut short":    {message: updateOf([]byte{24, 10}, nil, nil), reset: "prefix", subcode: 10},
		"well-known, unknown": {message: updateOf(nil, join(minimal, []byte{0x40, 99, 1, 0}), block), reset: "99", subcode: 2},
		"MP_REACH cut short": {message: updateOf(nil, join(origin, noPath, []byte{0x80, 14, 4, 0, 1, 1, 4}), nil),
			reset: "MP_REACH_NLRI", subcode: 9},
		"MP_REACH of 1 byte": {rules: inside6, message: updateOf(nil, join(origin, noPath, []byte{0x80, 14, 1, 0}), nil),
			reset: "MP_REACH_NLRI", subcode: 9},
		"MP_REACH hop of 5": {rules: inside6, message: updateOf(nil, join(origin, noPath, reach(2, []byte{1, 2, 3, 4, 5}, block6)), nil),
			reset: "hop 5", subcode: 9},
		"MP_REACH prefix": {rules: inside6, message: updateOf(nil, join(origin, noPath, reach(2, hop6, []byte{129})), nil),
			reset: "prefix", subcode: 9},
		"MP_UNREACH cut short": {message: updateOf(nil, []byte{0x80, 15, 2, 0, 1}, nil), reset: "MP_UNREACH_NLRI", subcode: 9},
		"MP_REACH twice": {rules: inside6, message: updateOf(nil, join(reach(2, hop6, block6), reach(2, hop6, block6)), nil),
			reset: "twice", subcode: 1},
		"IPv6 can't be found": {rules: inside6, message: updateOf(nil, []byte{0x40, 1, 9}, nil), reset: "fit", subcode: 1},
	} {
		t.Run(name, func(t *testing.T) {
			rules := c.rules
			if rules.ASN == 0 {
				rules = inside
			}
			session := up(t, rules)
			v := session.Check(c.message)
			if c.reset != "" {
				if v.Reset == nil || v.Reset.Code != UpdateError || v.Reset.Subcode != c.subcode || !errtest.Has(v.Reset.Error(), c.reset) {
					t.Errorf("%+v, want a reset with %q", v, c.reset)
				}
				return
			}
			if v.Reset != nil {
				t.Fatal(v.Reset)
			}
			difftest.Want(t, "", c.pass, v.Pass)
			if (c.flaw == "") != (v.Flaw == "") || !errtest.Has(v.Flaw, c.flaw) {
				t.Errorf("flaw %q, want %q", v.Flaw, c.flaw)
			}
			if c.flaw != "" && (bytes.Equal(c.pass, gone) || bytes.Equal(c.pass, gone6)) {
				c.refusal = malformed
			}
			if c.refusal == "" != (len(v.Refused) == 0) || !errtest.Has(v.Refusal, c.refusal) || len(v.Refused) > session.Prefixes() {
				t.Errorf("%v of %d prefixes refused as %q, want %q", v.Refused, session.Prefixes(), v.Refusal, c.refusal)
			}
		})
	}
}

var (
	aggregator = []byte{0xc0, 7, 8, 0, 1, 0, 0, 10, 0, 0, 2}
	atomic     = []byte{0x40, 6, 0}
)

// A peer without the capability has AS numbers of two octets.
func TestTwoOctets(t *testing.T) {
	s := NewSession(outside)
	s.Check(openOf(4, 64513, 90, "10.0.0.2", capabilities(OnlyIPv4)))
	s.Check(raw(Keepalive))
	short := []byte{0x40, 2, 8, 2, 1, 0xfc, 1, 1, 1, 0, 7}
	long := []byte{0x40, 2, 12, 2, 1, 0, 0, 0xfc, 1, 1, 1, 0, 0, 0, 7}
	v := s.Check(updateOf(nil, join(origin, short, hop), block))
	difftest.Want(t, "", updateOf(nil, join(origin, long, hop), block), v.Pass)
	// A full message with a long path grows too long, and is split in two.
	wide := append([]byte{0x50, 2, 2, 0, 2, 255}, bytes.Repeat([]byte{0, 9}, 255)...)
	room := MaxLen - headerLen - 4 - len(origin) - len(hop) - len(wide)
	v = s.Check(updateOf(nil, join(origin, wide, hop), bytes.Repeat([]byte{8, 10}, room/2)))
	if v.Reset != nil || v.Flaw != "" || len(v.Pass) <= MaxLen || s.Prefixes() != 2 {
		t.Errorf("%d bytes, %q, %v, %d prefixes", len(v.Pass), v.Flaw, v.Reset, s.Prefixes())
	}
	for message := range Messages(v.Pass) {
		if len(message) > MaxLen || TypeOf(message) != Update {
			t.Errorf("a message of %d bytes", len(message))
		}
	}
}

func TestMaxPrefixes(t *testing.T) {
	s := up(t, inside) // 4 are allowed
	one := func(i byte) []byte { return []byte{24, 10, 1, i} }
	for _, list := range [][]byte{join(one(1), one(2), one(1)), one(2), one(3), one(4), one(4)} {
		if v := s.Check(updateOf(nil, minimal, list)); v.Reset != nil {
			t.Fatalf("after %d prefixes: %v", s.Prefixes(), v.Reset)
		}
	}
	if v := s.Check(updateOf(one(1), minimal, one(5))); v.Reset != nil || s.Prefixes() != 4 {
		t.Fatalf("one has gone, one came: %d prefixes, %v", s.Prefixes(), v.Reset)
	}
	v := s.Check(updateOf(nil, minimal, one(6)))
	want := &Notification{Code: Cease, Subcode: MaxPrefixesReached, Data: []byte{0, 1, 1, 0, 0, 0, 4},
		Reason: "maximum number of prefixes reached: it announces more than 4"}
	if d := cmp.Diff(want, v.Reset); d != "" || s.Prefixes() != 4 {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestRefresh(t *testing.T) {
	s := up(t, inside)
	plain := raw(RouteRefresh, 0, 1, 0, 1)
	for name, c := range map[string]struct{ in, want []byte }{
		"plain":        {plain, plain},
		"other family": {raw(RouteRefresh, 0, 2, 0, 1), nil},
		"marker":       {raw(RouteRefresh, 0, 1, 1, 1), nil},
		"with filters": {raw(RouteRefresh, 0, 1, 0, 1, 1, 64, 0, 0), nil},
	} {
		if v := s.Check(c.in); v.Reset != nil || !bytes.Equal(v.Pass, c.want) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestEndsTable(t *testing.T) {
	for name, c := range map[string]struct {
		message []byte
		want    bool
	}{
		"IPv4":            {updateOf(nil, nil, nil), true},
		"IPv6":            {updateOf(nil, unreach(2, nil), nil), true},
		"IPv6 withdrawal": {updateOf(nil, unreach(2, block6), nil), false},
		"withdrawal":      {updateOf(block, nil, nil), false},
		"announcement":    {updateOf(nil, minimal, block), false},
		"cut short":       {updateOf(nil, []byte{0x80, 15, 9}, nil), false},
		"keepalive":       {raw(Keepalive), false},
	} {
		if got := EndsTable(c.message); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestWords(t *testing.T) {
	for want, n := range map[string]Notification{
		"Cease/Administrative Shutdown: rack 4 moves":                   {Code: Cease, Subcode: AdminShutdown, Data: []byte("\x0crack 4 moves")},
		"Cease/Administrative Reset: abc":                               {Code: Cease, Subcode: AdminReset, Data: []byte("\x50a\x1bb\nc")},
		"Cease/Administrative Shutdown":                                 {Code: Cease, Subcode: AdminShutdown, Data: []byte("\x02\xff\xfe")},
		"Cease/Hard Reset for Cease/Maximum Number of Prefixes Reached": {Code: Cease, Subcode: HardReset, Data: []byte{6, 1, 0}},
		"Cease/Hard Reset":                                              {Code: Cease, Subcode: HardReset, Data: []byte{6, 9, 6, 9}},
		"Hold Timer Expired":                                            {Code: HoldTimerExpired},
		"OPEN Message Error/Bad Peer AS":                                {Code: OpenError, Subcode: 2},
		"Cease/77":                                                      {Code: Cease, Subcode: 77},
		"Error 99/1":                                                    {Code: 99, Subcode: 1},
	} {
		if got := n.Words(); got != want {
			t.Errorf("%+v: %q, want %q", n, got, want)
		}
		if back := ParseNotification(n.Bytes()); back.Code != n.Code || back.Subcode != n.Subcode || !bytes.Equal(back.Data, n.Data) {
			t.Errorf("%+v came back as %+v", n, back)
		}
	}
	long := Notification{Code: Cease, Data: make([]byte, 2*MaxLen)}
	if len(long.Bytes()) != MaxLen {
		t.Errorf("%d bytes", len(long.Bytes()))
	}
}

// FuzzSession reads a stream of bytes into a session. Passed messages pass a second session unchanged, and both have
// the same prefixes.
func FuzzSession(f *testing.F) {
	for kind, rules := range []Rules{inside, inside6, near} {
		kind, hello := uint8(kind), join(openOf(4, asTrans, 90, "10.0.0.2", usualOf(rules)), raw(Keepalive))
		f.Add(kind, hello)
		f.Add(kind, join(hello, updateOf(nil, join(minimal, pref, path), block), updateOf(block, nil, nil), updateOf(nil, nil, nil)))
		f.Add(kind, join(hello, updateOf(nil, join(origin, noPath, reach(2, hop6, block6), unreach(2, block6)), nil),
			raw(RouteRefresh, 0, 2, 0, 1)))
		f.Add(kind, join(hello, updateOf(block, join(origin, noPath, reach(1, join(hop6, hopLL), block), unreach(2, block6)), nil),
			updateOf(nil, unreach(1, nil), nil)))
		f.Add(kind, join(hello, raw(Notify, Cease, HardReset, 6, 9)))
	}
	f.Fuzz(func(t *testing.T, kind uint8, stream []byte) {
		rules := []Rules{inside, inside6, near}[kind%3]
		first := NewSession(rules)
		rules.Link = "" // passed messages have no next hops of one link
		second := NewSession(rules)
		r, buf := bytes.NewReader(stream), make([]byte, MaxLen)
		for {
			m, err := Read(r, buf)
			if err != nil {
				return
			}
			v := first.Check(m)
			if v.Reset != nil {
				if v.Reset.Error() == "" || len(v.Reset.Bytes()) > MaxLen {
					t.Fatalf("%+v", v.Reset)
				}
				return
			}
			if v.Pass == nil {
				continue
			}
			for part := range Messages(v.Pass) {
				errtest.Must(t, passesUnchanged(second, part))
			}
			if err := samePrefixes(first, second); err != nil || first.Prefixes() > rules.MaxPrefixes {
				t.Fatalf("%d prefixes: %v", first.Prefixes(), err)
			}
		}
	})
}

// samePrefixes finds a prefix that only one of the sessions counts as announced and not refused.
func samePrefixes(first, second *Session) error {
	passed := 0
	for p, what := range first.announced {
		if what == (Said{}) {
			continue
		}
		passed++
		if _, ok := second.announced[p]; !ok {
			return fmt.Errorf("%s was announced and not passed on", p)
		}
	}
	if passed != second.Prefixes() {
		return fmt.Errorf("%d were passed on, %d are there", passed, second.Prefixes())
	}
	return nil
}

func passesUnchanged(s *Session, message []byte) error {
	again, err := Read(bytes.NewReader(message), make([]byte, MaxLen))
	if err != nil || len(again) != len(message) {
		return fmt.Errorf("% x is no message: %v", message, err)
	}
	v := s.Check(again)
	if v.Reset != nil || v.Flaw != "" || !bytes.Equal(v.Pass, message) {
		return fmt.Errorf("% x came back as % x, %q, %v", message, v.Pass, v.Flaw, v.Reset)
	}
	return nil
}

// BenchmarkCheck measures an UPDATE of one block, as every node sends it for each of its own.
func BenchmarkCheck(b *testing.B) {
	four := join(origin, noPath, pref)
	for name, c := range map[string]struct {
		rules   Rules
		message []byte
	}{
		"IPv4 block":           {inside, updateOf(nil, join(four, hop), block)},
		"IPv4 block withdrawn": {inside, updateOf(block, nil, nil)},
		"IPv6 block":           {inside6, updateOf(nil, join(four, reach(2, hop6, block6)), nil)},
		"both families, IPv4":  {near, updateOf(nil, join(four, reach(1, hopLL, block)), nil)},
	} {
		b.Run(name, func(b *testing.B) {
			c.rules.Source = Internal
			s := up(b, c.rules)
			b.ReportAllocs()
			for b.Loop() {
				if v := s.Check(c.message); v.Reset != nil || v.Flaw != "" {
					b.Fatal(v)
				}
			}
		})
	}
}
