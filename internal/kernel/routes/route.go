package routes

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// MaxHops is the maximum number of a route's next hops. More are of no use, and each packet's hop is chosen among all.
const MaxHops = 16

// Route is a desired route.
type Route struct {
	Dst  netip.Prefix
	Type netlinkx.RouteType // 0: unicast

	// Hops are the next hops that the traffic is spread over, in any order: at least one and at most MaxHops for a unicast
	// route, none for another.
	Hops   []Hop
	Src    netip.Addr
	Metric uint32
}

// Hop is a next hop.
type Hop struct {
	// Via is an address of the destination's family, or for an IPv4 destination an IPv6 link-local address on Dev's link
	// (fe80::/10, without a zone; RFC 8950). Invalid: the destination is on Dev's link.
	Via netip.Addr

	// Dev is the output link's name. Each Sync looks it up: a link that was made anew has another index.
	Dev string

	Onlink bool // don't require a route to Via; tunnels need it, as Via is the outer destination
	// Weight is the hop's share among several, from 1 to 256; 0 means 1.
	Weight int
}

// To returns the route to a destination by one next hop.
func To(dst netip.Prefix, hop Hop) Route { return Route{Dst: dst, Hops: []Hop{hop}} }

// Equal reports whether two values mean the same route.
func (r Route) Equal(other Route) bool {
	return r.Dst == other.Dst && cmp.Or(r.Type, netlinkx.Unicast) == cmp.Or(other.Type, netlinkx.Unicast) && r.Src == other.Src &&
		r.key() == other.key() && slices.Equal(sortedHops(r.Hops), sortedHops(other.Hops))
}

// sortedHops returns the hops sorted, with explicit weights.
func sortedHops(hops []Hop) []Hop {
	hops = slices.Clone(hops)
	for i := range hops {
		hops[i].Weight = cmp.Or(hops[i].Weight, 1)
	}
	slices.SortFunc(hops, func(a, b Hop) int {
		return cmp.Or(a.Via.Compare(b.Via), cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Weight, b.Weight))
	})
	return hops
}

// String returns the route in ip-route's syntax.
func (r Route) String() string {
	s := r.Dst.String()
	if t := cmp.Or(r.Type, netlinkx.Unicast); t != netlinkx.Unicast {
		s = t.String() + " " + s
	}
	if len(r.Hops) == 1 {
		s += r.Hops[0].towards(r.Dst)
	}
	if r.Metric != 0 {
		s += fmt.Sprint(" metric ", r.Metric)
	}
	if len(r.Hops) == 1 && r.Hops[0].Onlink {
		s += " onlink"
	}
	if len(r.Hops) > 1 {
		for _, h := range r.Hops {
			s += fmt.Sprint(" nexthop", h.towards(r.Dst), " weight ", cmp.Or(h.Weight, 1))
			if h.Onlink {
				s += " onlink"
			}
		}
	}
	return s
}

// towards returns the hop of a route to dst in ip-route's syntax, with a space before, without weight and flags.
func (h Hop) towards(dst netip.Prefix) string {
	s := netlinkx.Via(h.Via, dst)
	if h.Dev != "" {
		s += " dev " + h.Dev
	}
	return s
}

// validate rejects routes that the kernel would refuse or misunderstand.
func (r Route) validate() error {
	unicast := cmp.Or(r.Type, netlinkx.Unicast) == netlinkx.Unicast
	switch {
	case !r.Dst.IsValid():
		return errors.New("route without a destination")
	case r.Dst != r.Dst.Masked():
		return fmt.Errorf("route %s: destination has bits beyond its length, want %s", r, r.Dst.Masked())
	case unicast && len(r.Hops) == 0:
		return fmt.Errorf("route %s: no next hop and no device", r)
	case !unicast && len(r.Hops) > 0:
		return fmt.Errorf("route %s: a route that drops has no next hop", r)
	case len(r.Hops) > MaxHops:
		return fmt.Errorf("route %s: %d next hops, want %d at most", r.Dst, len(r.Hops), MaxHops)
	case r.Src.IsValid() && r.Src.Is4() != r.Dst.Addr().Is4():
		return fmt.Errorf("route %s: %s is of the other address family", r, r.Src)
	}
	for i, h := range r.Hops {
		if err := r.validateHop(h); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Hops[:i], func(o Hop) bool { return o.Via == h.Via && o.Dev == h.Dev }) {
			return fmt.Errorf("route %s: a next hop is named twice:%s", r, h.towards(r.Dst))
		}
	}
	return nil
}

func (r Route) validateHop(h Hop) error {
	switch {
	case h.Dev == "":
		return fmt.Errorf("route %s: no device", r)
	case h.Onlink && !h.Via.IsValid():
		return fmt.Errorf("route %s: onlink without a next hop", r)
	case h.Via.Zone() != "":
		return fmt.Errorf("route %s: next hop %s has a zone: name the device instead", r, h.Via)
	case h.Via.IsValid() && h.Via.Is4() != r.Dst.Addr().Is4() && (h.Via.Is4() || h.Via.Is4In6() || !h.Via.IsLinkLocalUnicast()):
		return fmt.Errorf("route %s: %s is of the other address family", r, h.Via)
	case h.Weight < 0 || h.Weight > 256:
		return fmt.Errorf("route %s: weight %d, want 1 to 256", r, h.Weight)
	}
	return nil
}

// key holds the fields that identify a route in the kernel.
type key struct {
	dst    netip.Prefix
	metric uint32
}

// ipv6DefaultMetric is the kernel's metric for an IPv6 route without one.
const ipv6DefaultMetric = 1024

func (r Route) key() key { return keyOf(r.Dst, r.Metric) }

func keyOf(dst netip.Prefix, metric uint32) key {
	if metric == 0 && dst.Addr().Is6() {
		metric = ipv6DefaultMetric
	}
	return key{dst, metric}
}
