package radv

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// usualGap is this package's advertisement interval, and that of FRR on interfaces of BGP sessions.
	usualGap = 10 * time.Second
	// maxGap is the longest interval that RFC 4861 allows.
	maxGap = 30 * time.Minute
	// silentGaps is after how many intervals of silence another router may replace a router. Random intervals vary from a
	// third of the longest to the longest, so that four of any length exceed the longest.
	silentGaps = 4
	// maxRouters bounds the known routers of a link: two are already too many for a session.
	maxRouters = 2
)

// router is a neighbour that has sent an advertisement.
type router struct {
	addr  netip.Addr
	heard time.Time // last
	// gap is its interval: the last one, or half of the previous gap if that is longer. So it grows at once, and an
	// interruption is soon forgotten.
	gap time.Duration
}

// live reports whether the router has advertised itself recently. The advertised lifetime does not count: it is about
// default routes, and 0 on routers with BGP.
func (r *router) live(now time.Time) bool { return now.Sub(r.heard) <= silentGaps*max(r.gap, usualGap) }

// table has the routers of a link, maxRouters at most.
type table []router

// hear records an advertisement. While the table is full of live routers it ignores others: a sender with many
// addresses changes nothing.
func (t *table) hear(addr netip.Addr, now time.Time) {
	if i := slices.IndexFunc(*t, func(r router) bool { return r.addr == addr }); i >= 0 {
		r := &(*t)[i]
		r.gap = min(max(now.Sub(r.heard), r.gap/2), maxGap)
		r.heard = now
		return
	}
	if len(*t) == maxRouters {
		oldest := 0
		for i, r := range *t {
			if r.heard.Before((*t)[oldest].heard) {
				oldest = i
			}
		}
		if (*t)[oldest].live(now) {
			return
		}
		*t = slices.Delete(*t, oldest, oldest+1)
	}
	*t = append(*t, router{addr: addr, heard: now})
}

// finding is the known router of a link.
type finding struct {
	router, other netip.Addr // both are valid if there are two
}

// find returns the live routers or, if there is none, the last one to advertise: the end of advertisements ends no
// session; BGP's hold time and BFD do.
func (t table) find(now time.Time) (f finding) {
	var last router
	for _, r := range t {
		if r.heard.After(last.heard) {
			last = r
		}
		switch {
		case !r.live(now):
		case !f.router.IsValid():
			f.router = r.addr
		default:
			f.other = r.addr
		}
	}
	if !f.router.IsValid() {
		f.router = last.addr
	}
	return f
}
