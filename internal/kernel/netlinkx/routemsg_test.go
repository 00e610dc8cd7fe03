package netlinkx

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// everyField are routes; each of their fields can be read back from the request.
var everyField = []Route{
	{Dst: netip.MustParsePrefix("10.1.2.0/26"), Via: netip.MustParseAddr("10.0.0.2"), Dev: 7, Onlink: true, Metric: 9, Protocol: 84,
		Type: Unicast, Table: TableMain},
	{Dst: netip.MustParsePrefix("0.0.0.0/0"), Dev: 70000, Scope: ScopeLink, Src: netip.MustParseAddr("10.0.0.1"), Type: Unicast,
		Table: 100000, Protocol: ProtocolBoot},
	{Dst: netip.MustParsePrefix("10.1.2.64/26"), Type: Unreachable, Protocol: 84, Table: 7, TOS: 4},
	{Dst: netip.MustParsePrefix("10.1.2.0/25"), Via: netip.MustParseAddr("fe80::1"), Dev: 3, Type: Unicast, Protocol: 84, Table: TableMain},
	{Dst: netip.MustParsePrefix("fd00::/122"), Via: netip.MustParseAddr("fd01::2"), Dev: 2, Src: netip.MustParseAddr("fd01::1"), Type: Unicast,
		Protocol: 84, Table: TableMain},
	{Dst: netip.MustParsePrefix("10.1.3.0/26"), Type: Unicast, Protocol: 84, Table: TableMain, Metric: 1024, Hops: []Hop{
		{Via: netip.MustParseAddr("10.0.0.2"), Dev: 2, Weight: 1},
		{Via: netip.MustParseAddr("10.0.0.3"), Dev: 3, Onlink: true, Weight: 256}, {Dev: 9, Weight: 7},
	}},
	{Dst: netip.MustParsePrefix("fd00:1::/122"), Type: Unicast, Protocol: 84, Table: TableMain, Metric: 1024, Hops: []Hop{
		{Via: netip.MustParseAddr("fe80::2"), Dev: 2, Weight: 1}, {Via: netip.MustParseAddr("fd01::2"), Dev: 2, Weight: 2},
	}},
	{Dst: netip.MustParsePrefix("::/0"), Type: Blackhole, Protocol: 12, Table: TableMain, Metric: 1<<32 - 1},
}

// FuzzParseRoute: any message is parsed or refused, and a parsed route makes sense.
func FuzzParseRoute(f *testing.F) {
	for _, r := range everyField {
		f.Add(r.appendRequest(nil, unix.RTM_NEWROUTE, 0, 1))
	}
	f.Add(nlmsg.Finish(append(nlmsg.Begin(nil, unix.NLMSG_DONE, 0, 1), 0, 0, 0, 0), 0))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		for len(datagram) > 0 {
			m, rest, err := nlmsg.Next(datagram)
			if err != nil {
				return
			}
			if len(rest) >= len(datagram) {
				t.Fatal("no end")
			}
			datagram = rest
			_ = m.Err()
			r, ok, err := parseRoute(m.Body)
			if err != nil || !ok {
				if ok || r.Dst.IsValid() && err != nil {
					t.Fatalf("%+v, %v, %v", r, ok, err)
				}
				continue
			}
			if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || (r.Object || len(r.Hops) > 0) && (r.Via.IsValid() || r.Dev != 0) {
				t.Fatalf("%+v", r)
			}
			_ = r.String()
		}
	})
}

func TestMalformedMessages(t *testing.T) {
	good := everyField[0].appendRequest(nil, unix.RTM_NEWROUTE, 0, 1)
	for name, spoil := range map[string]func([]byte) []byte{
		"cut in the header":         func(b []byte) []byte { return b[:9] },
		"length beyond the end":     func(b []byte) []byte { b[0]++; return b },
		"length below the header's": func(b []byte) []byte { b[0] = 15; return b },
	} {
		if _, _, err := nlmsg.Next(spoil(append([]byte(nil), good...))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	body := good[unix.SizeofNlMsghdr:]
	for name, spoil := range map[string]func([]byte) []byte{
		"cut in the route":            func(b []byte) []byte { return b[:11] },
		"cut in an attribute":         func(b []byte) []byte { return b[:len(b)-1] },
		"prefix too long":             func(b []byte) []byte { b[1] = 33; return b },
		"attribute of no length":      func(b []byte) []byte { b[12] = 0; return b },
		"destination of other family": func(b []byte) []byte { return appendAddr(b, unix.RTA_DST, netip.MustParseAddr("fd00::1")) },
		"link of two bytes":           func(b []byte) []byte { return nlmsg.AppendAttribute(b, unix.RTA_OIF, []byte{1, 2}) },
		"gateway of two bytes":        func(b []byte) []byte { return nlmsg.AppendAttribute(b, unix.RTA_GATEWAY, []byte{1, 2}) },
		"next hops of three bytes":    func(b []byte) []byte { return nlmsg.AppendAttribute(b, unix.RTA_MULTIPATH, []byte{1, 2, 3}) },
		"next hop of no length":       func(b []byte) []byte { return nlmsg.AppendAttribute(b, unix.RTA_MULTIPATH, make([]byte, 8)) },
		"next hop beyond the end": func(b []byte) []byte {
			return nlmsg.AppendAttribute(b, unix.RTA_MULTIPATH, []byte{9, 0, 0, 0, 1, 0, 0, 0})
		},
		"next hop's cut attribute": func(b []byte) []byte {
			return nlmsg.AppendAttribute(b, unix.RTA_MULTIPATH, []byte{10, 0, 0, 0, 1, 0, 0, 0, 4, 0})
		},
		"via of one byte": func(b []byte) []byte { return nlmsg.AppendAttribute(b, unix.RTA_VIA, []byte{1}) },
	} {
		if r, ok, err := parseRoute(spoil(append([]byte(nil), body...))); err == nil || ok {
			t.Errorf("%s: %+v, %v, %v", name, r, ok, err)
		}
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"another family":  func(b []byte) []byte { b[0] = unix.AF_MPLS; return b },
		"for some source": func(b []byte) []byte { b[2] = 64; return b },
		"from the cache":  func(b []byte) []byte { b[9] |= unix.RTM_F_CLONED >> 8; return b },
	} {
		if r, ok, err := parseRoute(spoil(append([]byte(nil), body...))); err != nil || ok {
			t.Errorf("%s: %+v, %v, %v; want it left out", name, r, ok, err)
		}
	}
}
