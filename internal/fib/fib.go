package fib

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/netlinkx"
)

// DefaultProtocol marks our routes. It is none of BIRD's (12), Felix's (80) or FRR's (186): a Felix on the same node deletes
// every route of protocol 80 that is not its own.
const DefaultProtocol netlinkx.Protocol = 84

// ErrForeign: a route that is not ours is in the place of a desired one, or beside it where the kernel cannot tell them apart.
var ErrForeign = errors.New("a foreign route is in the way")

// MaxHops is how many next hops a route can have. More are of no use, and each packet's choice is made among all.
const MaxHops = 16

// Route is a desired route.
type Route struct {
	Dst  netip.Prefix
	Type netlinkx.RouteType // 0: unicast

	// Hops are the next hops that the traffic is spread over, in any order: at least one and at most MaxHops for a unicast route,
	// none for another.
	Hops   []Hop
	Src    netip.Addr
	Metric uint32
}

// Hop is a next hop.
type Hop struct {
	Via netip.Addr // invalid: the destination is on Dev's link

	// Dev is the output link's name. Names are looked up at each Sync: a link that was made anew has another index.
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

// sortedHops returns the hops in an order of their own.
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

// String is the route in ip-route's words.
func (r Route) String() string {
	s := r.Dst.String()
	if t := cmp.Or(r.Type, netlinkx.Unicast); t != netlinkx.Unicast {
		s = t.String() + " " + s
	}
	if len(r.Hops) == 1 {
		s += r.Hops[0].String()
	}
	if r.Metric != 0 {
		s += fmt.Sprint(" metric ", r.Metric)
	}
	if len(r.Hops) == 1 && r.Hops[0].Onlink {
		s += " onlink"
	}
	if len(r.Hops) > 1 {
		for _, h := range r.Hops {
			s += fmt.Sprint(" nexthop", h, " weight ", cmp.Or(h.Weight, 1))
			if h.Onlink {
				s += " onlink"
			}
		}
	}
	return s
}

// String is the hop in ip-route's words, with a space before, and without what belongs at a line's end.
func (h Hop) String() string {
	s := ""
	if h.Via.IsValid() {
		s += " via " + h.Via.String()
	}
	if h.Dev != "" {
		s += " dev " + h.Dev
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
			return fmt.Errorf("route %s: a next hop is named twice:%s", r, h)
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
	case h.Via.IsValid() && h.Via.Is4() != r.Dst.Addr().Is4():
		return fmt.Errorf("route %s: %s is of the other address family", r, h.Via)
	case h.Weight < 0 || h.Weight > 256:
		return fmt.Errorf("route %s: weight %d, want 1 to 256", r, h.Weight)
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

// Key is the destination and metric, of which the kernel lets each pair exist once.
func (r Route) Key() (netip.Prefix, uint32) {
	k := r.key()
	return k.dst, k.metric
}

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

	// TakeOver names protocols of a predecessor (BIRD's 12, Felix's 80). Its routes are replaced where they stand in the place of
	// desired ones. A complete Sync also removes those to desired destinations with other metrics, which would be used again
	// once ours are withdrawn, those through Devices, and those that Estate names. Its other routes are not touched, nor are those
	// to pods, which need no next hop.
	TakeOver []netlinkx.Protocol

	// Devices are links that nobody but us and a predecessor has routes through.
	Devices []string
}

// Estate is what is known of what predecessors have left.
type Estate struct {
	// Ranges are those in which all routes by a next hop, and all that drop, were made for the cluster.
	Ranges []netip.Prefix
	// Alive are protocols of predecessors that still run: what they have stays, also in the place of desired routes. Two that
	// replace each other's routes would do so for ever.
	Alive []netlinkx.Protocol
}

// Stats counts what a Sync did.
type Stats struct {
	Added    int
	Replaced int // own routes that differed, and routes taken over
	Deleted  int // own ones that are not desired, and what a predecessor left
	Kept     int // right already
	Held     int // not desired and left in place by Merge
	Left     int // desired, and left to a predecessor that still runs
}

// Changed reports whether anything was written.
func (s Stats) Changed() bool { return s.Added+s.Replaced+s.Deleted > 0 }

// Table keeps our routes in one network namespace. What is there is read from the kernel each time. It is for one goroutine.
type Table struct {
	conn   *netlinkx.Conn
	opts   Options
	estate Estate
	taken  []netlinkx.Route
}

// Inherit says what is known of predecessors from now on.
func (t *Table) Inherit(e Estate) { t.estate = e }

// Taken returns the routes of predecessors that the last Sync replaced or removed.
func (t *Table) Taken() []netlinkx.Route { return t.taken }

// alive reports that a route belongs to a predecessor that still runs.
func (t *Table) alive(r netlinkx.Route) bool { return slices.Contains(t.estate.Alive, r.Protocol) }

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
	t.taken = nil
	w, err := newWanted(desired, t.opts.Protocol)
	if err != nil {
		return Stats{}, err
	}
	if w.links, err = t.devices(desired); err != nil {
		return Stats{}, err
	}
	actual, err := t.conn.Routes(netlinkx.RouteFilter{Protocol: t.opts.Protocol})
	if err != nil {
		return Stats{}, err
	}
	w.resolve()
	p := w.diff(actual)
	spared := len(p.remove)
	if prune {
		left, err := t.leftBehind(w)
		if err != nil {
			return Stats{}, err
		}
		p.remove, spared = append(p.remove, left...), 0
	} else {
		p.remove = nil
	}
	stats, errs := t.apply(ctx, p)
	stats.Held = spared
	return stats, netlinkx.Summary(append(errs, w.errs...))
}

// link is what a Sync has to know of one.
type link struct {
	index int
	down  bool
}

// devices looks up the links that routes go through: a few, on a node that may have a thousand.
func (t *Table) devices(desired []Route) (map[string]link, error) {
	links, asked := map[string]link{}, map[string]bool{"": true}
	ask := func(name string) error {
		if asked[name] {
			return nil
		}
		asked[name] = true
		l, err := t.conn.LinkByName(name)
		if err == nil {
			links[name] = link{l.Index, l.Down}
		}
		if netlinkx.IsNotExist(err) || errors.Is(err, netlinkx.ErrLinkName) {
			return nil
		}
		return err
	}
	for _, name := range t.opts.Devices {
		if err := ask(name); err != nil {
			return nil, err
		}
	}
	for _, r := range desired {
		for _, h := range r.Hops {
			if err := ask(h.Dev); err != nil {
				return nil, err
			}
		}
	}
	return links, nil
}

// leftBehind lists a predecessor's routes that are to go: see Options.TakeOver. Those that are in the place of a desired route are
// not among them.
func (t *Table) leftBehind(w *wanted) (left []netlinkx.Route, err error) {
	for _, protocol := range t.opts.TakeOver {
		if slices.Contains(t.estate.Alive, protocol) {
			continue
		}
		theirs, err := t.conn.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return nil, err
		}
		for _, r := range theirs {
			if _, taken := w.at[keyOf(r.Dst, r.Metric)]; !taken {
				left = append(left, r)
			}
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	reached := w.destinations()
	return slices.DeleteFunc(left, func(r netlinkx.Route) bool {
		ours := slices.ContainsFunc(t.opts.Devices, func(dev string) bool { return r.Leaves(w.links[dev].index) })
		return !ours && (toPod(r) || !reached[r.Dst] && !t.estate.has(r.Dst))
	}), nil
}

// toPod reports a route of the kind that leads to a pod on this node: to its interface, by no next hop.
func toPod(r netlinkx.Route) bool {
	return r.Type == netlinkx.Unicast && !r.Via.IsValid() && len(r.Hops) == 0 && !r.Object
}

func (e *Estate) has(p netip.Prefix) bool {
	return slices.ContainsFunc(e.Ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}

// wanted are the desired routes by key, and what the kernel makes of them.
type wanted struct {
	own    netlinkx.Protocol
	routes []Route
	at     map[key]int // in routes
	links  map[string]link
	held   map[int]bool // those that can't be had now
	errs   []error      // why
}

func newWanted(desired []Route, own netlinkx.Protocol) (*wanted, error) {
	w := &wanted{own: own, routes: desired, at: make(map[key]int, len(desired)), held: map[int]bool{}}
	for i, r := range desired {
		if other, ok := w.at[r.key()]; ok {
			return nil, fmt.Errorf("two routes with one destination and metric: %s, and %s", desired[other], r)
		}
		w.at[r.key()] = i
	}
	return w, nil
}

// resolve finds the routes that can't be had now: what runs in their place is left alone.
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

// absent names a device that is not there, if the route has no other.
func (w *wanted) absent(r Route) (dev string, ok bool) {
	for _, h := range r.Hops {
		if _, ok := w.links[h.Dev]; ok {
			return "", false
		}
		dev = h.Dev
	}
	return dev, len(r.Hops) > 0
}

// hops are those that the kernel is to use, in the order of sortHops. Of several, one whose link is away, or passes nothing, is left
// out: the kernel would refuse the whole route, or go on to use a link that has lost its carrier.
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

// sortHops brings hops into one order: IPv6 lists them in another than they were given.
func sortHops(hops []netlinkx.Hop) {
	slices.SortFunc(hops, func(a, b netlinkx.Hop) int { return cmp.Or(a.Via.Compare(b.Via), cmp.Compare(a.Dev, b.Dev)) })
}

// destinations are those of the routes that can be had.
func (w *wanted) destinations() map[netip.Prefix]bool {
	reached := make(map[netip.Prefix]bool, len(w.routes))
	for i, r := range w.routes {
		if !w.held[i] {
			reached[r.Dst] = true
		}
	}
	return reached
}

// kernel is the route as the kernel will list it, but for the order of its hops, so that a listed one can be compared.
func (w *wanted) kernel(i int) netlinkx.Route {
	r := w.routes[i]
	k := netlinkx.Route{
		Dst: r.Dst, Table: netlinkx.TableMain, Protocol: w.own, Type: cmp.Or(r.Type, netlinkx.Unicast), Src: r.Src, Metric: r.key().metric,
	}
	if len(r.Hops) == 1 { // as nearly all of ten thousand have
		h := r.Hops[0]
		k.Via, k.Dev, k.Onlink = h.Via, w.links[h.Dev].index, h.Onlink
	} else if hops := w.hops(r); len(hops) == 1 {
		k.Via, k.Dev, k.Onlink = hops[0].Via, hops[0].Dev, hops[0].Onlink
	} else {
		k.Hops = hops
	}
	// IPv4 only: a destination on the link itself has link scope, and IPv6 routes have no scope.
	onLink := k.Type == netlinkx.Unicast && !k.Via.IsValid() && !slices.ContainsFunc(k.Hops, func(h netlinkx.Hop) bool { return h.Via.IsValid() })
	if onLink && r.Dst.Addr().Is4() {
		k.Scope = netlinkx.ScopeLink
	}
	return k
}

// plan is what remains to be done, each list in the order of its routes' destinations.
type plan struct {
	add, replace, remove []netlinkx.Route
	kept                 int
}

// What is known of a desired route's place in the kernel.
const (
	absent = iota
	differs
	right
)

// diff compares by key. Of several actual routes with one key (which only somebody who uses our protocol number can make)
// one is kept or replaced, the others are removed.
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
	var p plan
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

// portion is how many routes are changed before the context is looked at again: a few milliseconds of the kernel's time.
const portion = 1024

// apply adds, replaces, then deletes, so a destination that moves from one prefix to a longer or shorter one is covered all
// the time.
func (t *Table) apply(ctx context.Context, p plan) (Stats, []error) {
	a := application{table: t, stats: Stats{Kept: p.kept}, foreign: &foreignRoutes{table: t}}
	for part := range slices.Chunk(p.add, portion) {
		a.in(ctx, func() { a.add(part) })
	}
	for part := range slices.Chunk(p.replace, portion) {
		a.in(ctx, func() { a.replace(part, nil) })
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
		a.errs = slices.Insert(a.errs, 0, ctx.Err()) // among the first, so that it is told
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

// add adds routes. What is in the place of some is looked at, and replaced if it is a predecessor's.
func (a *application) add(routes []netlinkx.Route) {
	var taken []netlinkx.Route
	var exists []error
	for i, err := range a.table.conn.AddRoutes(routes) {
		if netlinkx.IsExist(err) {
			taken, exists = append(taken, routes[i]), append(exists, err)
			continue
		}
		a.count(&a.stats.Added, err)
	}
	a.replace(taken, exists)
}

// replace replaces routes of ours, or a predecessor's. The kernel replaces the first route with the same destination and
// metric, whoever owns it, so a foreign one must be looked for. exists is what the kernel said when these were to be added; nil if
// they were listed as ours.
func (a *application) replace(routes []netlinkx.Route, exists []error) {
	var ready []netlinkx.Route
	var replaced [][]netlinkx.Route
	for i, r := range routes {
		others, err := a.foreign.at(r)
		if err == nil && slices.ContainsFunc(others, a.table.alive) {
			a.stats.Left++
			continue
		}
		switch alien := slices.IndexFunc(others, a.table.untouchable); {
		case err != nil:
		case alien >= 0 && exists == nil:
			err = fmt.Errorf("%w: replace route %s: beside it is %s, which is not ours", ErrForeign, r, others[alien])
		case alien >= 0:
			err = fmt.Errorf("%w: %w: in its place is %s, which is not ours", ErrForeign, exists[i], others[alien])
		case len(others) == 0 && exists != nil: // it came and went meanwhile
			err = exists[i]
		}
		if err != nil {
			a.errs = append(a.errs, err)
			continue
		}
		ready, replaced = append(ready, r), append(replaced, others)
	}
	for i, err := range a.table.conn.ReplaceRoutes(ready) {
		a.count(&a.stats.Replaced, err)
		if err == nil {
			a.table.taken = append(a.table.taken, replaced[i]...)
		}
	}
}

func (a *application) remove(routes []netlinkx.Route) {
	for i, err := range a.table.conn.DeleteRoutes(routes) {
		if !netlinkx.IsNotExist(err) { // else its link went away, and the route with it
			a.count(&a.stats.Deleted, err)
		}
		if err == nil && routes[i].Protocol != a.table.opts.Protocol {
			a.table.taken = append(a.table.taken, routes[i])
		}
	}
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
			if k := keyOf(other.Dst, other.Metric); other.Protocol != f.table.opts.Protocol && other.TOS == 0 {
				f.byKey[k] = append(f.byKey[k], other)
			}
		}
	}
	return f.byKey[keyOf(r.Dst, r.Metric)], nil
}
