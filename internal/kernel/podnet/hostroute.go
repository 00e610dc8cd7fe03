package podnet

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// hostRoute returns the node's route to one address of the pod. Like Calico's it has no protocol and no metric: Felix
// looks for that form.
func hostRoute(a netip.Addr, index int) netlinkx.Route {
	r := netlinkx.Route{Dst: hostPrefix(a), Dev: index}
	if a.Is4() {
		r.Scope = netlinkx.ScopeLink
	}
	return r
}

// conflictTries bounds the attempts to add a route, conflictInterval apart, when the kernel reports a conflicting route
// that is gone when it is looked up.
const (
	conflictTries    = 5
	conflictInterval = 50 * time.Millisecond
)

// SourcesTable is the routing table in which routes by a pod's link record the prefixes that the pod asks to send from.
// No rule leads there, so no packet is routed by them: they inform the agent, and the kernel removes them with the
// link.
const SourcesTable = 8485

func (w *wiring) noteSources(context.Context) error {
	for _, p := range w.Sources {
		if !w.has(netlinkx.FamilyOf(p.Addr())) {
			continue
		}
		r := netlinkx.Route{Dst: p, Dev: w.hostIndex, Table: SourcesTable}
		if p.Addr().Is4() {
			r.Scope = netlinkx.ScopeLink
		}
		if err := w.host.AddRoute(r); err != nil && !netlinkx.IsExist(err) {
			return fmt.Errorf("note that the pod asks to send from %s: %w", p, err)
		}
	}
	return nil
}

// FloatingTable is, like SourcesTable, a routing table that no rule leads to. Its routes record floating addresses that
// IPAM has assigned to the pod of the route's link.
const FloatingTable = 8486

func (w *wiring) noteFloating(context.Context) error {
	for _, a := range w.Floating {
		r := hostRoute(a, w.hostIndex)
		r.Table = FloatingTable
		// IPAM assigns an address to one owner: a present route is the pod's own, or of a pod that has lost the address.
		if err := w.host.ReplaceRoute(r); err != nil {
			return fmt.Errorf("note the floating address %s: %w", a, err)
		}
	}
	return nil
}

func (w *wiring) hostRoutes(ctx context.Context) error {
	for _, a := range w.Addresses {
		if err := w.addHostRoute(ctx, hostRoute(a, w.hostIndex)); err != nil {
			return err
		}
	}
	return nil
}

func (w *wiring) addHostRoute(ctx context.Context, want netlinkx.Route) error {
	var err error
	for range conflictTries {
		err = w.host.AddRoute(want)
		if !netlinkx.IsExist(err) {
			return err
		}
		other, found, lookErr := w.conflicting(want)
		if lookErr != nil {
			return lookErr
		}
		if found {
			return w.settleConflict(want, other)
		}
		if pauseErr := pause(ctx, conflictInterval); pauseErr != nil {
			break
		}
	}
	return err
}

// conflicting returns the route in the place of want.
func (w *wiring) conflicting(want netlinkx.Route) (netlinkx.Route, bool, error) {
	routes, err := w.host.Routes(netlinkx.RouteFilter{Family: netlinkx.FamilyOf(want.Dst.Addr())})
	if err != nil {
		return netlinkx.Route{}, false, err
	}
	for _, r := range routes {
		if r.Dst == want.Dst && r.Metric == defaultMetric(want.Dst.Addr()) {
			return r, true, nil
		}
	}
	return netlinkx.Route{}, false, nil
}

// defaultMetric returns the kernel's metric for a route without one.
func defaultMetric(a netip.Addr) uint32 {
	if a.Is4() {
		return 0
	}
	return 1024
}

// settleConflict accepts a route that is the wanted one, made by another program. It replaces the route to a pod if the
// pod's namespace is gone, before the kernel removes the link. It refuses to replace any other, even the route of a
// sandbox without processes: that sandbox may be about to start, and this pod gets another address at its next try.
func (w *wiring) settleConflict(want, other netlinkx.Route) error {
	if other.Dev == want.Dev && other.Scope == want.Scope && !other.Via.IsValid() && len(other.Hops) == 0 && !other.Object {
		return nil
	}
	if other.Dev == 0 {
		return fmt.Errorf("%s has another route on this node already: %s", want.Dst, other)
	}
	link, err := w.host.LinkByIndex(other.Dev)
	if netlinkx.IsNotExist(err) {
		return w.host.ReplaceRoute(want)
	}
	if err != nil {
		return err
	}
	if isPair(link) {
		alive, err := w.host.PeerAlive(link)
		if err != nil {
			return err
		}
		if !alive {
			w.Log.Info("taking over the route of a pod that is gone", "address", want.Dst.Addr(), "link", describe(link))
			return w.host.ReplaceRoute(want)
		}
	}
	return fmt.Errorf("%s is in use by interface %s: route %s; if no pod on this node has that address, remove the link (ip link delete %s)",
		want.Dst.Addr(), describe(link), other, link.Name)
}
