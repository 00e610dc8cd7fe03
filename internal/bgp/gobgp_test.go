package bgp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// message builds a BGP message of any type around a body.
func message(kind byte, body ...[]byte) []byte {
	m := append(bytes.Repeat([]byte{0xff}, 16), 0, 0, kind)
	m = append(m, slices.Concat(body...)...)
	binary.BigEndian.PutUint16(m[16:], uint16(len(m)))
	return m
}

// update is an UPDATE with nothing but attributes.
func update(attributes ...[]byte) []byte {
	all := slices.Concat(attributes...)
	return message(2, []byte{0, 0}, binary.BigEndian.AppendUint16(nil, uint16(len(all))), all)
}

// hello is the handshake of a peer in AS 64512 with both families.
var hello = slices.Concat(
	message(1, []byte{4, 0xfc, 0, 0, 90, 10, 0, 0, 2, 22, 2, 20, 1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1, 65, 4, 0, 0, 0xfc, 0, 2, 0}),
	message(4))

// killers made GoBGP panic when they came from a peer's address: a message of an unknown type, and an MP_REACH_NLRI
// that ends in the middle.
var killers = [][]byte{
	message(77),
	update(origin, emptyPath, []byte{0x80, 14, 4, 0, 2, 1, 16}),
	update([]byte{0x80, 14, 0}),
}

// FuzzGoBGP: GoBGP's decoder and validator accept all output of wire without a panic and without an objection, which
// would be a NOTIFICATION of GoBGP's. This keeps the process alive whatever a peer sends.
func FuzzGoBGP(f *testing.F) {
	for _, m := range append(slices.Clone(killers), update(origin, asPath, mpReach), update(origin, emptyPath, mpReachTwo),
		message(2, []byte{0, 0, 0, 0}), message(2, []byte{0, 0, 0, 14}, origin, emptyPath, nextHop, []byte{26, 10, 1, 2, 0}),
		message(3, []byte{6, 2, 1, 'x'}), message(5, []byte{0, 1, 0, 1})) {
		f.Add(false, slices.Concat(hello, m))
		f.Add(true, slices.Concat(hello, m))
	}
	for _, a := range Advisories {
		f.Add(false, slices.Concat(a.First, hello, a.Message))
	}
	f.Fuzz(func(t *testing.T, six bool, stream []byte) {
		rules := wire.Rules{ASN: 64512, LocalASN: 64512, LocalID: addr("10.0.0.1"), Families: wire.OnlyIPv4,
			MaxPrefixes: 1000, Source: wire.External}
		family := bgp.RF_IPv4_UC
		if six {
			rules.Families, family = wire.OnlyIPv6, bgp.RF_IPv6_UC
		}
		session := wire.NewSession(rules)
		r, buf := bytes.NewReader(stream), make([]byte, wire.MaxLen)
		for {
			m, err := wire.Read(r, buf)
			if err != nil {
				return
			}
			v := session.Check(m)
			if v.Reset != nil {
				return
			}
			for part := range wire.Messages(v.Pass) {
				gobgpTakes(t, part, family)
				if prefix, l := gobgpHas(t, part); prefix.IsValid() && rules.Source != 0 && !l.NextHop.IsValid() {
					t.Error("a path without a next hop")
				}
			}
		}
	})
}

// gobgpHas returns the last prefix that a message announces, and its path as read from GoBGP's table; invalid: none.
func gobgpHas(t *testing.T, raw []byte) (prefix netip.Prefix, l learned) {
	t.Helper()
	m, err := bgp.ParseBGPMessage(raw)
	if err != nil {
		t.Fatalf("% x: %v", raw, err)
	}
	u, ok := m.Body.(*bgp.BGPUpdate)
	if !ok {
		return prefix, l
	}
	announced := u.NLRI
	var text []byte
	for _, a := range u.PathAttributes {
		if reach, ok := a.(*bgp.PathAttributeMpReachNLRI); ok {
			for _, nlri := range reach.Value {
				prefix = netip.MustParsePrefix(nlri.String())
			}
		}
		one, err := a.Serialize()
		if err != nil {
			t.Fatalf("% x: %v", raw, err)
		}
		text = wire.AppendPath(text, [][]byte{one})
	}
	for _, nlri := range announced {
		prefix = netip.MustParsePrefix(nlri.String())
	}
	if a, ok := wire.ReadPath(text, 64512); ok {
		l = newLearned(a)
	}
	return prefix, l
}

// gobgpTakes processes a message as GoBGP's fsm does.
func gobgpTakes(t *testing.T, raw []byte, family bgp.RouteFamily) {
	t.Helper()
	var header bgp.BGPHeader
	if err := header.DecodeFromBytes(raw[:bgp.BGP_HEADER_LENGTH]); err != nil {
		t.Fatalf("header of % x: %v", raw, err)
	}
	m, err := bgp.ParseBGPBody(&header, raw[bgp.BGP_HEADER_LENGTH:])
	if err != nil {
		t.Fatalf("body of % x: %v", raw, err)
	}
	if err := bgp.ValidateBGPMessage(m); err != nil {
		t.Fatalf("% x: %v", raw, err)
	}
	switch body := m.Body.(type) {
	case *bgp.BGPOpen:
		if _, err := bgp.ValidateOpenMsg(body, 64512, 64512, addr("10.0.0.1").AsSlice()); err != nil {
			t.Fatalf("OPEN % x: %v", raw, err)
		}
	case *bgp.BGPUpdate:
		for _, external := range []bool{false, true} {
			if ok, err := bgp.ValidateUpdateMsg(body, map[bgp.RouteFamily]bgp.BGPAddPathMode{family: 0}, external, false, false); !ok {
				t.Fatalf("UPDATE % x: %v", raw, err)
			}
		}
		if _, err := m.Serialize(); err != nil {
			t.Fatalf("UPDATE % x can't be written: %v", raw, err)
		}
	}
}

// The message of an advisory never reaches GoBGP: the relay ends the session, or passes something else on, to which
// GoBGP does not object.
func TestAdvisoriesStayOutside(t *testing.T) {
	rules := wire.Rules{ASN: 64513, LocalASN: 64512, LocalID: addr("10.0.0.1"), Families: wire.OnlyIPv4,
		MaxPrefixes: 1000, Source: wire.External}
	open := bytes.ReplaceAll(hello, []byte{0xfc, 0}, []byte{0xfc, 1})
	for _, a := range Advisories {
		session := wire.NewSession(rules)
		stream := bytes.NewReader(slices.Concat(a.First, open, a.Message))
		for buf := make([]byte, wire.MaxLen); ; {
			m, err := wire.Read(stream, buf)
			if err != nil {
				break // the end, or not BGP
			}
			v := session.Check(m)
			if v.Reset != nil {
				break
			}
			if a.Message != nil && bytes.Contains(v.Pass, a.Message[bgp.BGP_HEADER_LENGTH:]) {
				t.Errorf("%s: GoBGP gets it as it is", a.ID)
			}
			for part := range wire.Messages(v.Pass) {
				if wire.TypeOf(part) == wire.Update {
					gobgpTakes(t, part, bgp.RF_IPv4_UC)
				}
			}
		}
		if up := session.Established(); up != (a.First == nil) {
			t.Errorf("%s: the session is up: %t", a.ID, up)
		}
	}
}
