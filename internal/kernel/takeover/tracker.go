package takeover

import (
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// If removed objects come back, their owner's objects are left alone for shortPause, then for twice as long each time,
// up to longPause.
const (
	shortPause = 5 * time.Minute
	longPause  = 2 * time.Hour
	// mostTaken bounds the removed objects that are remembered.
	mostTaken = 1 << 16
)

// Tracker detects whether predecessors still run, by whether their removed routes and rules come back. The zero value
// is an empty Tracker.
type Tracker struct {
	routes map[netlinkx.Protocol]*taken[route]
	rules  taken[struct{}]
}

// route holds the fields that identify a route in the kernel.
type route struct {
	dst    netip.Prefix
	metric uint32
}

// taken holds the removed objects of one predecessor.
type taken[K comparable] struct {
	away  map[K]bool
	pause time.Duration
	until time.Time // end of the pause
}

// take notes removed objects. If one was removed before, its owner has restored it: then a pause begins, twice as long
// each time.
func (t *taken[K]) take(now time.Time, keys ...K) {
	if t.away == nil {
		t.away = map[K]bool{}
	}
	back := false
	for _, k := range keys {
		back = back || t.away[k]
		if len(t.away) < mostTaken {
			t.away[k] = true
		}
	}
	if !back {
		return
	}
	t.pause = min(max(2*t.pause, shortPause), longPause)
	t.until, t.away = now.Add(t.pause), nil
}

func (t *taken[K]) alive(now time.Time) bool { return now.Before(t.until) }

// TookRoutes notes that predecessors' routes were replaced or removed.
func (t *Tracker) TookRoutes(now time.Time, routes []netlinkx.Route) {
	keys := map[netlinkx.Protocol][]route{}
	for _, r := range routes {
		keys[r.Protocol] = append(keys[r.Protocol], route{r.Dst, r.Metric})
	}
	if t.routes == nil {
		t.routes = map[netlinkx.Protocol]*taken[route]{}
	}
	for protocol, keys := range keys {
		if t.routes[protocol] == nil {
			t.routes[protocol] = &taken[route]{}
		}
		t.routes[protocol].take(now, keys...)
	}
}

// Leaves notes that the routes of a protocol's owner are left alone: routes found later may have been there all along.
func (t *Tracker) Leaves(protocol netlinkx.Protocol) {
	if k := t.routes[protocol]; k != nil {
		k.away = nil
	}
	if protocol == netlinkx.ProtocolFelix {
		t.rules.away = nil
	}
}

// TookRules notes that Felix's rules were removed.
func (t *Tracker) TookRules(now time.Time) { t.rules.take(now, struct{}{}) }

// Writes reports whether the owner of a protocol has recently restored removed routes.
func (t *Tracker) Writes(now time.Time, protocol netlinkx.Protocol) bool {
	k := t.routes[protocol]
	return k != nil && k.alive(now)
}

// WritesRules is Writes for rules.
func (t *Tracker) WritesRules(now time.Time) bool { return t.rules.alive(now) }
