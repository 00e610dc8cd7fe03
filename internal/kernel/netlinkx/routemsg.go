package netlinkx

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// rtaNHID names an object of the kernel's own table of next hops: linux/rtnetlink.h.
const rtaNHID = 30

// parseRoute reads the body of an RTM_NEWROUTE: rtnetlink(7). ok is false if Route does not cover the entry: one of the
// kernel's cache, of another family, or an IPv6 route for some sources only.
func parseRoute(body []byte) (r Route, ok bool, err error) {
	if len(body) < unix.SizeofRtMsg {
		return r, false, fmt.Errorf("%w: route of %d bytes", nlmsg.ErrMalformed, len(body))
	}
	family, bits, sourceBits := body[0], int(body[1]), body[2]
	flags := binary.NativeEndian.Uint32(body[8:])
	addr := zeroAddr(family)
	if !addr.IsValid() || flags&unix.RTM_F_CLONED != 0 || sourceBits != 0 {
		return r, false, nil
	}
	r = Route{
		TOS: body[3], Table: int(body[4]), Protocol: Protocol(body[5]), Scope: Scope(body[6]), Type: RouteType(body[7]),
		Onlink: flags&unix.RTNH_F_ONLINK != 0,
	}
	for rest := body[unix.SizeofRtMsg:]; len(rest) > 0; {
		var kind uint16
		var value []byte
		if kind, value, rest, err = nlmsg.NextAttribute(rest); err != nil {
			return Route{}, false, err
		}
		if kind == unix.RTA_DST {
			addr, err = addrFromBytes(value, addr)
		} else {
			err = r.readAttribute(kind, value)
		}
		if err != nil {
			return Route{}, false, err
		}
	}
	if r.Dst, err = addr.Prefix(bits); err != nil {
		return Route{}, false, fmt.Errorf("%w: route: %w", nlmsg.ErrMalformed, err)
	}
	return r.tidy(), true, nil
}

// zeroAddr returns the address of a default route, invalid for a family that is not IP.
func zeroAddr(family uint8) netip.Addr {
	switch Family(family) {
	case IPv4:
		return netip.IPv4Unspecified()
	case IPv6:
		return netip.IPv6Unspecified()
	}
	return netip.Addr{}
}

// addrFromBytes reads an address, which must be of the family of like.
func addrFromBytes(b []byte, like netip.Addr) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.Is4() != like.Is4() {
		return like, fmt.Errorf("%w: address of %d bytes", nlmsg.ErrMalformed, len(b))
	}
	return a, nil
}

func (r *Route) readAttribute(kind uint16, value []byte) (err error) {
	switch kind {
	case unix.RTA_GATEWAY, unix.RTA_VIA:
		r.Via, err = readNextHop(kind, value)
		return err
	case unix.RTA_PREFSRC:
		var ok bool
		if r.Src, ok = netip.AddrFromSlice(value); !ok {
			return fmt.Errorf("%w: route with an address of %d bytes", nlmsg.ErrMalformed, len(value))
		}
	case unix.RTA_OIF, unix.RTA_TABLE, unix.RTA_PRIORITY:
		if len(value) != 4 {
			return fmt.Errorf("%w: attribute %d of %d bytes", nlmsg.ErrMalformed, kind, len(value))
		}
		r.readNumber(kind, binary.NativeEndian.Uint32(value))
	case unix.RTA_MULTIPATH:
		return r.readHops(value)
	case rtaNHID:
		r.Object = true
	case unix.RTA_METRICS, unix.RTA_FLOW, unix.RTA_ENCAP:
		r.More = true
	}
	return nil
}

// readNextHop reads an address. In an RTA_VIA, the IPv6 next hop of an IPv4 route (RFC 5549), it follows two bytes of
// family.
func readNextHop(kind uint16, value []byte) (netip.Addr, error) {
	if kind == unix.RTA_VIA {
		if len(value) < 2 {
			return netip.Addr{}, fmt.Errorf("%w: next hop of %d bytes", nlmsg.ErrMalformed, len(value))
		}
		via, _ := netip.AddrFromSlice(value[2:])
		return via, nil
	}
	via, ok := netip.AddrFromSlice(value)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%w: route with a next hop of %d bytes", nlmsg.ErrMalformed, len(value))
	}
	return via, nil
}

// readHops reads an RTA_MULTIPATH: for each next hop a struct rtnexthop, with attributes of its own.
func (r *Route) readHops(b []byte) error {
	for len(b) > 0 {
		if len(b) < unix.SizeofRtNexthop {
			return fmt.Errorf("%w: next hop of %d bytes", nlmsg.ErrMalformed, len(b))
		}
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			return fmt.Errorf("%w: next hop length %d of %d bytes", nlmsg.ErrMalformed, size, len(b))
		}
		// Other flags are the link's state, not part of the route.
		h := Hop{Onlink: b[2]&unix.RTNH_F_ONLINK != 0, Weight: int(b[3]) + 1, Dev: int(int32(binary.NativeEndian.Uint32(b[4:])))}
		for rest := b[unix.SizeofRtNexthop:size]; len(rest) > 0; {
			kind, value, after, err := nlmsg.NextAttribute(rest)
			if err == nil {
				err = r.readHopAttribute(&h, kind, value)
			}
			if err != nil {
				return err
			}
			rest = after
		}
		r.Hops, b = append(r.Hops, h), b[min(nlmsg.Aligned(size), len(b)):]
	}
	return nil
}

func (r *Route) readHopAttribute(h *Hop, kind uint16, value []byte) (err error) {
	switch kind {
	case unix.RTA_GATEWAY, unix.RTA_VIA:
		h.Via, err = readNextHop(kind, value)
	case unix.RTA_FLOW, unix.RTA_ENCAP:
		r.More = true
	}
	return err
}

func (r *Route) readNumber(kind uint16, value uint32) {
	switch kind {
	case unix.RTA_OIF:
		r.Dev = int(value)
	case unix.RTA_TABLE:
		r.Table = int(value)
	case unix.RTA_PRIORITY:
		r.Metric = value
	}
}

// tidy clears fields without meaning.
func (r Route) tidy() Route {
	if r.Type != Unicast { // IPv6 shows routes that discard as going through lo
		r.Dev = 0
	}
	if r.Object { // the kernel lists the object's hops, but a request cannot name them
		r.Hops = nil
	}
	if r.Object || len(r.Hops) > 0 { // IPv6 shows the first next hop's flags as the route's, too
		r.Dev, r.Via, r.Onlink = 0, netip.Addr{}, false
	}
	return r
}

// appendRequest encodes a request to add, replace or delete the route.
func (r Route) appendRequest(b []byte, kind, flags uint16, seq uint32) []byte {
	from := len(b)
	if kind == unix.RTM_NEWROUTE {
		r.Protocol = cmp.Or(r.Protocol, ProtocolBoot)
	}
	b = nlmsg.Begin(b, kind, flags, seq)
	b = append(b, uint8(FamilyOf(r.Dst.Addr())), uint8(r.Dst.Bits()), 0, r.TOS,
		unix.RT_TABLE_UNSPEC, // the attribute has room for all numbers
		uint8(r.Protocol), uint8(r.Scope), uint8(cmp.Or(r.Type, Unicast)))
	var bits uint32
	if r.Onlink {
		bits = unix.RTNH_F_ONLINK
	}
	b = binary.NativeEndian.AppendUint32(b, bits)
	b = nlmsg.AppendUint32(b, unix.RTA_TABLE, uint32(cmp.Or(r.Table, TableMain)))
	b = appendAddr(b, unix.RTA_DST, r.Dst.Addr())
	if r.Via.IsValid() {
		b = appendNextHop(b, r.Via, r.Dst.Addr())
	}
	if r.Src.IsValid() {
		b = appendAddr(b, unix.RTA_PREFSRC, r.Src)
	}
	if r.Dev != 0 {
		b = nlmsg.AppendUint32(b, unix.RTA_OIF, uint32(r.Dev))
	}
	if r.Metric != 0 {
		b = nlmsg.AppendUint32(b, unix.RTA_PRIORITY, r.Metric)
	}
	if len(r.Hops) > 0 {
		b = appendHops(b, r.Hops, r.Dst.Addr())
	}
	return nlmsg.Finish(b, from)
}

// appendHops appends an RTA_MULTIPATH.
func appendHops(b []byte, hops []Hop, dst netip.Addr) []byte {
	attribute := len(b)
	b = append(b, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(b[attribute+2:], unix.RTA_MULTIPATH)
	for _, h := range hops {
		from := len(b)
		flags := byte(0)
		if h.Onlink {
			flags = unix.RTNH_F_ONLINK
		}
		b = append(b, 0, 0, flags, byte(cmp.Or(h.Weight, 1)-1))
		b = binary.NativeEndian.AppendUint32(b, uint32(h.Dev))
		if h.Via.IsValid() {
			b = appendNextHop(b, h.Via, dst)
		}
		binary.NativeEndian.PutUint16(b[from:], uint16(len(b)-from))
	}
	binary.NativeEndian.PutUint16(b[attribute:], uint16(len(b)-attribute))
	return b
}

func appendAddr(b []byte, kind uint16, a netip.Addr) []byte {
	if a.Is4() {
		bytes := a.As4()
		return nlmsg.AppendAttribute(b, kind, bytes[:])
	}
	bytes := a.As16()
	return nlmsg.AppendAttribute(b, kind, bytes[:])
}

func appendNextHop(b []byte, via, dst netip.Addr) []byte {
	if via.Is4() == dst.Is4() {
		return appendAddr(b, unix.RTA_GATEWAY, via)
	}
	value := binary.NativeEndian.AppendUint16(nil, uint16(FamilyOf(via)))
	return nlmsg.AppendAttribute(b, unix.RTA_VIA, append(value, via.AsSlice()...))
}

// dump lists routes of one family, and calls add with each. Kernels with strict checking filter by the fields of the
// request; others ignore them.
func (f RouteFilter) dump(s *nlmsg.Socket, family Family, add func(Route)) error {
	b := []byte{uint8(family), 0, 0, 0, unix.RT_TABLE_UNSPEC, uint8(f.Protocol), 0, 0, 0, 0, 0, 0}
	b = nlmsg.AppendUint32(b, unix.RTA_TABLE, uint32(cmp.Or(f.Table, TableMain)))
	if f.Dev != 0 {
		b = nlmsg.AppendUint32(b, unix.RTA_OIF, uint32(f.Dev))
	}
	err := s.Execute(nlmsg.Message{Kind: unix.RTM_GETROUTE, Flags: unix.NLM_F_DUMP, Body: b}, func(m nlmsg.Message) error {
		r, ok, err := parseRoute(m.Body)
		if ok && f.selects(r) {
			add(r)
		}
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT): // there is no such table: the kernel makes one with its first route
		return nil
	case f.Dev != 0 && errors.Is(err, unix.ENODEV): // the link has gone, and its routes with it
		return nil
	}
	return err
}

// selects reports whether f selects a route, whether the kernel has filtered or not. Only the kernel knows the links of
// a next hop object.
func (f RouteFilter) selects(r Route) bool {
	return r.Table == cmp.Or(f.Table, TableMain) && (f.Protocol == 0 || f.Protocol == r.Protocol) &&
		(f.Dev == 0 || r.Leaves(f.Dev) || r.Object)
}
