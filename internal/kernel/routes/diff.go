package routes

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// wanted holds the desired routes by key, and the links that they need.
type wanted struct {
	opts   Options
	routes []Route
	at     map[key]int // index in routes
	links  map[string]link
	held   map[int]bool // routes that cannot be programmed now
	errs   []error      // the reasons
}

func newWanted(desired []Route, opts Options) (*wanted, error) {
	w := &wanted{opts: opts, routes: desired, at: make(map[key]int, len(desired)), held: map[int]bool{}}
	for i, r := range desired {
		if w.at[r.key()] = i; len(w.at) == i {
			other := slices.IndexFunc(desired, func(o Route) bool { return o.key() == r.key() })
			return nil, fmt.Errorf("two routes with one destination and metric: %s, and %s", desired[other], r)
		}
	}
	return w, nil
}

// resolve fills held and errs: routes in the place of held ones are left alone.
func (w *wanted) resolve() {
	missing := map[string]int{}
	for i, r := range w.routes {
		err := r.validate()
		if dev, ok := w.absent(r); err == nil && ok {
			if missing[dev]++; missing[dev] == 1 {
				err = fmt.Errorf("route %s: there is no device %s", r, dev)
			}
			w.held[i] = true
		}
		if err != nil {
			w.held[i] = true
			w.errs = append(w.errs, err)
		}
	}
	for _, dev := range slices.Sorted(maps.Keys(missing)) {
		if n := missing[dev]; n > 1 {
			w.errs = append(w.errs, fmt.Errorf("%d more routes need the device %s", n-1, dev))
		}
	}
}

// absent returns the name of a missing device if none of the route's devices exists.
func (w *wanted) absent(r Route) (dev string, ok bool) {
	for _, h := range r.Hops {
		if _, ok := w.links[h.Dev]; ok {
			return "", false
		}
		dev = h.Dev
	}
	return dev, len(r.Hops) > 0
}

// hops returns the route's hops for the kernel, in the order of sortHops. Of several, hops by missing links or links
// without carrier are left out: the kernel would refuse the whole route, or continue to use the link without carrier.
func (w *wanted) hops(r Route) []netlinkx.Hop {
	var hops, doubtful []netlinkx.Hop
	for _, h := range r.Hops {
		l, ok := w.links[h.Dev]
		k := netlinkx.Hop{Via: h.Via, Dev: l.index, Onlink: h.Onlink, Weight: cmp.Or(h.Weight, 1)}
		switch {
		case !ok:
		case l.down:
			doubtful = append(doubtful, k)
		default:
			hops = append(hops, k)
		}
	}
	if len(hops) == 0 {
		hops = doubtful
	}
	sortHops(hops)
	return hops
}

// sortHops sorts hops: IPv6 lists them in another order than requested.
func sortHops(hops []netlinkx.Hop) {
	slices.SortFunc(hops, func(a, b netlinkx.Hop) int { return cmp.Or(a.Via.Compare(b.Via), cmp.Compare(a.Dev, b.Dev)) })
}

// destinations returns the destinations of the routes that can be programmed.
func (w *wanted) destinations() map[netip.Prefix]bool {
	reached := make(map[netip.Prefix]bool, len(w.routes))
	for i, r := range w.routes {
		if !w.held[i] {
			reached[r.Dst] = true
		}
	}
	return reached
}

// kernel returns a route as the kernel will list it, but with sorted hops, so that a listed one can be compared.
func (w *wanted) kernel(i int) netlinkx.Route {
	r := w.routes[i]
	k := netlinkx.Route{
		Dst: r.Dst, Table: w.opts.Table, Protocol: w.opts.Protocol, Type: cmp.Or(r.Type, netlinkx.Unicast), Src: r.Src, Metric: r.key().metric,
	}
	if len(r.Hops) == 1 { // the usual case
		h := r.Hops[0]
		k.Via, k.Dev, k.Onlink = h.Via, w.links[h.Dev].index, h.Onlink
	} else if hops := w.hops(r); len(hops) == 1 {
		k.Via, k.Dev, k.Onlink = hops[0].Via, hops[0].Dev, hops[0].Onlink
	} else {
		k.Hops = hops
	}
	// IPv4 only: a destination on the link itself has link scope, and IPv6 routes have no scope.
	onLink := k.Type == netlinkx.Unicast && !k.Via.IsValid() &&
		!slices.ContainsFunc(k.Hops, func(h netlinkx.Hop) bool { return h.Via.IsValid() })
	if onLink && r.Dst.Addr().Is4() {
		k.Scope = netlinkx.ScopeLink
	}
	return k
}

// plan holds the changes, each list in the order of its routes' destinations.
type plan struct {
	add, replace, remove []netlinkx.Route
	kept                 int
}

// The states of a desired route's place in the kernel.
const (
	absent = iota
	differs
	right
)

// diff compares by key, and overwrites actual. Of several actual routes with one key (made by another program that uses
// our protocol number) it keeps or replaces one, and removes the others.
func (w *wanted) diff(actual []netlinkx.Route) plan {
	for _, r := range actual {
		sortHops(r.Hops)
	}
	place := make([]uint8, len(w.routes))
	for _, r := range actual {
		if i, ok := w.at[keyOf(r.Dst, r.Metric)]; ok && place[i] != right {
			place[i] = differs
			if r.Equal(w.kernel(i)) {
				place[i] = right
			}
		}
	}
	p := plan{remove: actual[:0]}
	stays := make([]bool, len(w.routes)) // one of its actual routes has been passed over
	for _, r := range actual {
		i, ok := w.at[keyOf(r.Dst, r.Metric)]
		switch {
		case ok && w.held[i]:
		case ok && !stays[i] && (place[i] == differs || r.Equal(w.kernel(i))):
			stays[i] = true
		default:
			p.remove = append(p.remove, r)
		}
	}
	p.add = make([]netlinkx.Route, 0, bytes.Count(place, []byte{absent}))
	for i := range w.routes {
		switch {
		case w.held[i]:
		case place[i] == absent:
			p.add = append(p.add, w.kernel(i))
		case place[i] == differs:
			p.replace = append(p.replace, w.kernel(i))
		default:
			p.kept++
		}
	}
	for _, list := range [][]netlinkx.Route{p.add, p.replace, p.remove} {
		slices.SortFunc(list, func(a, b netlinkx.Route) int {
			return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()), cmp.Compare(a.Metric, b.Metric))
		})
	}
	return p
}
