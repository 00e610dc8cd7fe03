package netlinkx

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// TableMain is the routing table that every packet consults.
const TableMain = unix.RT_TABLE_MAIN

// RouteType is a route's action on a packet. The zero value is no type; in an added route it means Unicast.
type RouteType uint8

// The types used here. Other values are the kernel's RTN_ constants.
const (
	Unicast     RouteType = unix.RTN_UNICAST
	Blackhole   RouteType = unix.RTN_BLACKHOLE   // drop silently
	Unreachable RouteType = unix.RTN_UNREACHABLE // drop, with ICMP "host unreachable"
	Prohibit    RouteType = unix.RTN_PROHIBIT    // drop, with ICMP "administratively prohibited"
	Throw       RouteType = unix.RTN_THROW       // leave the table: the next rule decides
)

func (t RouteType) String() string {
	switch t {
	case 0, Unicast:
		return "unicast"
	case Blackhole:
		return "blackhole"
	case Unreachable:
		return "unreachable"
	case Prohibit:
		return "prohibit"
	case Throw:
		return "throw"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Protocol identifies the program that made a route, its owner.
type Protocol uint8

// Protocols with a meaning of their own. Other numbers are in /etc/iproute2/rt_protos.
const (
	ProtocolKernel Protocol = unix.RTPROT_KERNEL
	ProtocolBoot   Protocol = unix.RTPROT_BOOT // the default of a request; Calico's pod routes have it
	ProtocolRA     Protocol = unix.RTPROT_RA   // router advertisements
	ProtocolBIRD   Protocol = unix.RTPROT_BIRD
	ProtocolFelix  Protocol = 80
)

// HostProtocols are the protocols of routes by people and by a host's network setup; routing daemons use others.
var HostProtocols = []Protocol{ProtocolBoot, unix.RTPROT_STATIC, unix.RTPROT_RA, unix.RTPROT_DHCP}

func (p Protocol) String() string { return netlink.RouteProtocol(p).String() }

// Hop is one of several next hops of a route.
type Hop struct {
	Via    netip.Addr // invalid: the destination is on Dev's link
	Dev    int
	Onlink bool
	// Weight is its share of the traffic, from 1 to 256; 0 means 1. A listed hop always has its weight.
	Weight int
}

// Route is one entry of a routing table. Two routes that are Equal forward alike, unless they have More.
type Route struct {
	Dst      netip.Prefix // masked; a default route is 0.0.0.0/0 or ::/0
	Via      netip.Addr   // next hop, if any
	Dev      int          // index of the output link; 0 for types other than Unicast
	Table    int          // 0: main
	Protocol Protocol     // 0: boot
	Scope    Scope
	Type     RouteType // 0: Unicast
	Onlink   bool      // the kernel treats the next hop as on Dev's link even without a route to it
	Src      netip.Addr
	Metric   uint32
	TOS      uint8 // IPv4: for packets of this type of service only, which makes it another route

	// Hops are the next hops of a route that has several; then Via, Dev and Onlink are zero. They are listed in the
	// kernel's order, which for IPv6 differs from the order of the request.
	Hops []Hop

	// Object marks a listed route by way of a next hop object (ip nexthop), which the fields do not show. It can be
	// deleted, but not added.
	Object bool
	// More marks a listed route with attributes that the fields do not show: metrics (a locked MTU), a realm, an
	// encapsulation. It can be deleted by its fields.
	More bool
}

// Equal reports whether all fields are equal.
func (r Route) Equal(o Route) bool {
	return r.Dst == o.Dst && r.Via == o.Via && r.Dev == o.Dev && r.Onlink == o.Onlink && r.Src == o.Src &&
		r.Table == o.Table && r.Protocol == o.Protocol && r.Scope == o.Scope && r.Type == o.Type && r.Metric == o.Metric && r.TOS == o.TOS &&
		r.Object == o.Object && r.More == o.More && slices.Equal(r.Hops, o.Hops)
}

// Leaves reports whether the route, or a part of its traffic, leaves by the link with this index.
func (r Route) Leaves(dev int) bool {
	return dev != 0 && (r.Dev == dev || slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Dev == dev }))
}

// String returns the route in ip-route's syntax; links appear by index.
func (r Route) String() string { return r.Text(nil) }

// Text returns the route in ip-route's syntax, with the names of links by index; links without a name appear by index.
func (r Route) Text(names map[int]string) string {
	name := func(dev int) string { return cmp.Or(names[dev], fmt.Sprint("#", dev)) }
	var b strings.Builder
	if r.Type != Unicast && r.Type != 0 {
		fmt.Fprintf(&b, "%s ", r.Type)
	}
	b.WriteString(r.Dst.String())
	b.WriteString(Via(r.Via, r.Dst))
	if r.Dev != 0 {
		fmt.Fprintf(&b, " dev %s", name(r.Dev))
	}
	if r.Table != 0 && r.Table != TableMain {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	if r.TOS != 0 {
		fmt.Fprintf(&b, " tos %#x", r.TOS)
	}
	fmt.Fprintf(&b, " proto %s", cmp.Or(r.Protocol, ProtocolBoot))
	for _, h := range r.Hops {
		b.WriteString(" nexthop" + Via(h.Via, r.Dst))
		fmt.Fprintf(&b, " dev %s weight %d", name(h.Dev), cmp.Or(h.Weight, 1))
	}
	if r.Object {
		b.WriteString(" (a next hop object)")
	}
	if r.More {
		b.WriteString(" (and more)")
	}
	return b.String()
}

// Via returns the next hop of a route to dst in ip-route's syntax, with a space before; empty if there is none.
func Via(via netip.Addr, dst netip.Prefix) string {
	switch {
	case !via.IsValid():
		return ""
	case via.Is6() && dst.Addr().Is4():
		return " via inet6 " + via.String()
	}
	return " via " + via.String()
}

// RouteFilter selects routes to list; zero fields select everything but tables other than main. The kernel applies it,
// so a node with many foreign routes does not pay for them.
type RouteFilter struct {
	Family   Family
	Table    int // 0: main
	Protocol Protocol
	Dev      int
}

// Routes lists the routes that the filter selects, without the kernel's cache of exceptions, and without IPv6 routes
// that are for some sources only. 10,000 take 5 ms.
func (c *Conn) Routes(f RouteFilter) ([]Route, error) {
	families := []Family{f.Family}
	if f.Family == FamilyAll {
		families = []Family{IPv4, IPv6}
	}
	return retryDump("routes", func() (routes []Route, err error) {
		err = c.direct.with(c.ns, func(s *nlmsg.Socket) error {
			for _, family := range families {
				err := f.dump(s, family, func(r Route) {
					if len(routes) == cap(routes) {
						routes = slices.Grow(routes, len(routes)) // append grows thousands by a quarter, and copies them each time
					}
					routes = append(routes, r)
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		return routes, err
	})
}

// AddRoute adds a route; IsExist holds for the error if the table has one with the same destination and metric,
// whatever its owner.
func (c *Conn) AddRoute(r Route) error { return c.AddRoutes([]Route{r})[0] }

// ReplaceRoute adds a route, in place of the first one with the same destination and metric if there is one, whatever
// its owner. At no moment is the table without both.
func (c *Conn) ReplaceRoute(r Route) error { return c.ReplaceRoutes([]Route{r})[0] }

// DeleteRoute deletes the route that equals r in every field, but a Protocol of 0 matches all; IsNotExist holds for the
// error if there is none.
func (c *Conn) DeleteRoute(r Route) error { return c.DeleteRoutes([]Route{r})[0] }
