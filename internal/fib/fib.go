package fib

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/netlinkx"
)

// DefaultProtocol marks our routes. It is none of BIRD's (12), Felix's (80) or FRR's (186): a Felix on the same node deletes
// every route of protocol 80 that is not its own.
const DefaultProtocol netlinkx.Protocol = 84

// ErrForeign: a route that is not ours is in the place of a desired one, or beside it where the kernel cannot tell them apart.
var ErrForeign = errors.New("a foreign route is in the way")

// Route is a desired route. It is comparable, and equal values mean the same route.
type Route struct {
	Dst  netip.Prefix
	Type netlinkx.RouteType // 0: unicast
	Via  netip.Addr         // unicast only; invalid: Dst is on Dev's link

	// Dev is the output link's name, for unicast only. Names are looked up at each Sync: a link that was made anew has
	// another index.
	Dev string

	Onlink bool // don't require a route to Via; tunnels need it, as Via is the outer destination
	Src    netip.Addr
	Metric uint32
}

// String is the route in ip-route's words.
func (r Route) String() string {
	s := r.Dst.String()
	if t := cmp.Or(r.Type, netlinkx.Unicast); t != netlinkx.Unicast {
		s = t.String() + " " + s
	}
	if r.Via.IsValid() {
		s += " via " + r.Via.String()
	}
	if r.Dev != "" {
		s += " dev " + r.Dev
	}
	if r.Metric != 0 {
		s += fmt.Sprint(" metric ", r.Metric)
	}
	if r.Onlink {
		s += " onlink"
	}
	return s
}

// validate refuses what the kernel would refuse, or would understand otherwise.
func (r Route) validate() error {
	unicast := cmp.Or(r.Type, netlinkx.Unicast) == netlinkx.Unicast
	switch {
	case !r.Dst.IsValid():
		return errors.New("route without a destination")
	case r.Dst != r.Dst.Masked():
		return fmt.Errorf("route %s: destination has bits beyond its length, want %s", r, r.Dst.Masked())
	case unicast && r.Dev == "":
		return fmt.Errorf("route %s: no device", r)
	case !unicast && (r.Dev != "" || r.Via.IsValid() || r.Onlink):
		return fmt.Errorf("route %s: a route that drops has no next hop", r)
	case r.Onlink && !r.Via.IsValid():
		return fmt.Errorf("route %s: onlink without a next hop", r)
	}
	for _, a := range []netip.Addr{r.Via, r.Src} {
		if a.IsValid() && a.Is4() != r.Dst.Addr().Is4() {
			return fmt.Errorf("route %s: %s is of the other address family", r, a)
		}
	}
	return nil
}

// key is what the kernel lets exist once.
type key struct {
	dst    netip.Prefix
	metric uint32
}

// ipv6DefaultMetric is what the kernel makes of an IPv6 route without a metric.
const ipv6DefaultMetric = 1024

func (r Route) key() key { return keyOf(r.Dst, r.Metric) }

func keyOf(dst netip.Prefix, metric uint32) key {
	if metric == 0 && dst.Addr().Is6() {
		metric = ipv6DefaultMetric
	}
	return key{dst, metric}
}

// Options says whose routes a Table keeps.
type Options struct {
	// Protocol is the mark of our routes; 0: DefaultProtocol.
	Protocol netlinkx.Protocol

	// TakeOver names protocols whose routes we replace where they stand in the place of a desired one: what a predecessor
	// left (BIRD's 12, Felix's 80). Their other routes are not touched.
	TakeOver []netlinkx.Protocol
}

// Stats counts what a Sync did.
type Stats struct {
	Added    int
	Replaced int // own routes that differed, and routes taken over
	Deleted  int
	Kept     int // right already
	Held     int // not desired and left in place by Merge
}

// Changed reports whether anything was written.
func (s Stats) Changed() bool { return s.Added+s.Replaced+s.Deleted > 0 }

// Table keeps our routes in one network namespace. It has no state: what is there is read from the kernel each time.
type Table struct {
	conn *netlinkx.Conn
	opts Options
}

// New returns the table of the connection's namespace. It touches nothing yet.
func New(conn *netlinkx.Conn, opts Options) *Table {
	opts.Protocol = cmp.Or(opts.Protocol, DefaultProtocol)
	return &Table{conn: conn, opts: opts}
}

// Sync makes our routes equal to desired, which is the whole set: what is ours and not in it is deleted. Routes that are
// right are not written, and one that differs is replaced without a gap.
//
// A route that can't be had (its link does not exist, a foreign route is in its place, the kernel refuses it) does not keep
// Sync from the others; an existing route of ours in its place stays. The error joins all such cases, and Stats tells what was
// done. Two desired routes with one destination and metric are an error before anything is written.
func (t *Table) Sync(ctx context.Context, desired []Route) (Stats, error) {
	return t.sync(ctx, desired, true)
}

// Merge is Sync without the last step: routes of ours that are not desired stay. It is for while desired may be incomplete.
func (t *Table) Merge(ctx context.Context, desired []Route) (Stats, error) {
	return t.sync(ctx, desired, false)
}

func (t *Table) sync(ctx context.Context, desired []Route, prune bool) (Stats, error) {
	if err := unique(desired); err != nil {
		return Stats{}, err
	}
	links, err := t.conn.Links()
	if err != nil {
		return Stats{}, err
	}
	actual, err := t.conn.Routes(netlinkx.RouteFilter{Protocol: t.opts.Protocol})
	if err != nil {
		return Stats{}, err
	}
	want, held, errs := resolve(desired, links, t.opts.Protocol)
	p := diff(want, held, actual)
	spared := 0
	if !prune {
		spared, p.remove = len(p.remove), nil
	}
	stats, applyErrs := t.apply(ctx, p)
	stats.Held = spared
	return stats, errors.Join(append(errs, applyErrs...)...)
}

func unique(desired []Route) error {
	seen := make(map[key]Route, len(desired))
	for _, r := range desired {
		if other, ok := seen[r.key()]; ok {
			return fmt.Errorf("two routes with one destination and metric: %s, and %s", other, r)
		}
		seen[r.key()] = r
	}
	return nil
}

// resolve turns desired routes into the kernel's form. Those that can't be had now are held: an error tells why, and what
// runs in their place is left alone.
func resolve(desired []Route, links []netlinkx.Link, own netlinkx.Protocol) (want []netlinkx.Route, held map[key]bool, errs []error) {
	index := make(map[string]int, len(links))
	for _, l := range links {
		index[l.Name] = l.Index
	}
	held = map[key]bool{}
	for _, r := range desired {
		err := r.validate()
		if _, ok := index[r.Dev]; err == nil && r.Dev != "" && !ok {
			err = fmt.Errorf("route %s: there is no device %s", r, r.Dev)
		}
		if err != nil {
			errs = append(errs, err)
			held[r.key()] = true
			continue
		}
		want = append(want, r.kernel(index[r.Dev], own))
	}
	return want, held, errs
}

// kernel is the route as the kernel will list it, so that a listed one can be compared.
func (r Route) kernel(index int, own netlinkx.Protocol) netlinkx.Route {
	k := netlinkx.Route{
		Dst: r.Dst, Via: r.Via, Dev: index, Table: netlinkx.TableMain, Protocol: own,
		Type: cmp.Or(r.Type, netlinkx.Unicast), Onlink: r.Onlink, Src: r.Src, Metric: r.key().metric,
	}
	// IPv4 only: a destination on the link itself has link scope, and IPv6 routes have no scope.
	if k.Type == netlinkx.Unicast && r.Dst.Addr().Is4() && !r.Via.IsValid() {
		k.Scope = netlinkx.ScopeLink
	}
	return k
}

// plan is what remains to be done, each list in the order of its routes' destinations.
type plan struct {
	add, replace, remove []netlinkx.Route
	kept                 int
}

// diff compares by key. Of several actual routes with one key (which only somebody who uses our protocol number can make)
// one is kept or replaced, the others are removed.
func diff(want []netlinkx.Route, held map[key]bool, actual []netlinkx.Route) plan {
	have := make(map[key][]netlinkx.Route, len(actual))
	for _, r := range actual {
		k := keyOf(r.Dst, r.Metric)
		have[k] = append(have[k], r)
	}
	var p plan
	for _, w := range want {
		k := keyOf(w.Dst, w.Metric)
		rest := have[k]
		delete(have, k)
		switch i := slices.Index(rest, w); {
		case i >= 0:
			p.kept++
			rest = slices.Delete(rest, i, i+1)
		case len(rest) > 0:
			p.replace = append(p.replace, w)
			rest = rest[1:]
		default:
			p.add = append(p.add, w)
		}
		p.remove = append(p.remove, rest...)
	}
	for k, rest := range have {
		if !held[k] {
			p.remove = append(p.remove, rest...)
		}
	}
	for _, list := range [][]netlinkx.Route{p.add, p.replace, p.remove} {
		slices.SortStableFunc(list, func(a, b netlinkx.Route) int {
			return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()), cmp.Compare(a.Metric, b.Metric))
		})
	}
	return p
}

// portion is how many routes are changed before the context is looked at again: a few milliseconds of the kernel's time.
const portion = 1024

// apply adds, replaces, then deletes, so a destination that moves from one prefix to a longer or shorter one is covered all
// the time.
func (t *Table) apply(ctx context.Context, p plan) (Stats, []error) {
	a := application{table: t, stats: Stats{Kept: p.kept}, foreign: &foreignRoutes{table: t}}
	for part := range slices.Chunk(p.add, portion) {
		a.in(ctx, func() { a.add(part) })
	}
	for _, r := range p.replace {
		a.in(ctx, func() { a.count(&a.stats.Replaced, t.replace(r, a.foreign)) })
	}
	for part := range slices.Chunk(p.remove, portion) {
		a.in(ctx, func() { a.remove(part) })
	}
	return a.stats, a.errs
}

// application is one run of apply.
type application struct {
	table   *Table
	stats   Stats
	foreign *foreignRoutes
	errs    []error
	over    bool // the context has ended, which is said once
}

// in does a step unless the context has ended.
func (a *application) in(ctx context.Context, step func()) {
	switch {
	case a.over:
	case ctx.Err() != nil:
		a.over = true
		a.errs = append(a.errs, ctx.Err())
	default:
		step()
	}
}

func (a *application) count(what *int, err error) {
	if err != nil {
		a.errs = append(a.errs, err)
		return
	}
	*what++
}

func (a *application) add(routes []netlinkx.Route) {
	for i, err := range a.table.conn.AddRoutes(routes) {
		if netlinkx.IsExist(err) {
			a.count(&a.stats.Replaced, a.table.takeOver(routes[i], a.foreign, err))
			continue
		}
		a.count(&a.stats.Added, err)
	}
}

func (a *application) remove(routes []netlinkx.Route) {
	for _, err := range a.table.conn.DeleteRoutes(routes) {
		if !netlinkx.IsNotExist(err) { // else its link went away, and the route with it
			a.count(&a.stats.Deleted, err)
		}
	}
}

// takeOver replaces a route that a predecessor left in r's place; exists is what the kernel said of it.
func (t *Table) takeOver(r netlinkx.Route, foreign *foreignRoutes, exists error) error {
	others, err := foreign.at(r)
	switch i := slices.IndexFunc(others, t.untouchable); {
	case err != nil:
		return err
	case i >= 0:
		return fmt.Errorf("%w: %w: in its place is %s, which is not ours", ErrForeign, exists, others[i])
	case len(others) == 0: // it came and went meanwhile
		return exists
	}
	return t.conn.ReplaceRoute(r)
}

// replace replaces a route of ours. The kernel replaces the first route with the same destination and metric, whoever owns
// it, so a foreign one must be looked for.
func (t *Table) replace(r netlinkx.Route, foreign *foreignRoutes) error {
	others, err := foreign.at(r)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(others, t.untouchable); i >= 0 {
		return fmt.Errorf("%w: replace route %s: beside it is %s, which is not ours", ErrForeign, r, others[i])
	}
	return t.conn.ReplaceRoute(r)
}

func (t *Table) untouchable(r netlinkx.Route) bool {
	return !slices.Contains(t.opts.TakeOver, r.Protocol)
}

// foreignRoutes looks up others' routes, of which there may be many: they are listed when first asked for, which in a steady
// state is never.
type foreignRoutes struct {
	table *Table
	byKey map[key][]netlinkx.Route
}

// at returns the foreign routes with r's destination and metric.
func (f *foreignRoutes) at(r netlinkx.Route) ([]netlinkx.Route, error) {
	if f.byKey == nil {
		all, err := f.table.conn.Routes(netlinkx.RouteFilter{})
		if err != nil {
			return nil, err
		}
		f.byKey = map[key][]netlinkx.Route{}
		for _, other := range all {
			if k := keyOf(other.Dst, other.Metric); other.Protocol != f.table.opts.Protocol {
				f.byKey[k] = append(f.byKey[k], other)
			}
		}
	}
	return f.byKey[keyOf(r.Dst, r.Metric)], nil
}
