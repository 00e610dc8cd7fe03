package netlinkx

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Servers returns, each once, the endpoints that answer tracked TCP connections to an address with DNAT, such as a
// Service's. Connections that were tracked before the DNAT rule was lost are included. Without connection tracking
// there are none.
func (c *Conn) Servers(of netip.AddrPort) (all []netip.AddrPort, err error) {
	err = c.tracked(dumpTime, func(t tracker, _ int) error {
		_, err := t.list(FamilyOf(of.Addr()), nil, func(f flow, attrs []byte) bool {
			public := f.public(attrs)
			server := netip.AddrPortFrom(public.Server, public.Port)
			if public.Protocol == unix.IPPROTO_TCP && tupleTarget(nlmsg.Find(attrs, ctaTupleOrig)) == of && server != of &&
				!slices.Contains(all, server) {
				all = append(all, server)
			}
			return false
		})
		return err
	})
	return all, err
}

// Destinations in a tuple: linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaIPv4Dst      = 2
	ctaIPv6Dst      = 4
	ctaProtoDstPort = 3
)

func tupleTarget(tuple []byte) netip.AddrPort {
	ip := nlmsg.Find(tuple, ctaTupleIP)
	b := nlmsg.Find(ip, ctaIPv4Dst)
	if b == nil {
		b = nlmsg.Find(ip, ctaIPv6Dst)
	}
	addr, _ := netip.AddrFromSlice(b)
	port := nlmsg.Find(nlmsg.Find(tuple, ctaTupleProto), ctaProtoDstPort)
	if len(port) != 2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port))
}
