package routes

import (
	"context"
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// portion is the number of routes that are changed between two checks of the context: a few milliseconds of the
// kernel's time.
const portion = 1024

// apply adds, replaces, then deletes, so a destination that moves from one prefix to a longer or shorter one is always
// covered.
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
	over    bool // the context has ended, and errs has its error
}

// in runs a step unless the context has ended.
func (a *application) in(ctx context.Context, step func()) {
	switch {
	case a.over:
	case ctx.Err() != nil:
		a.over = true
		a.errs = slices.Insert(a.errs, 0, ctx.Err()) // first, as Summary omits later ones
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

// add adds routes. A present route in the place of one is read, and replaced if it is a predecessor's.
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

// replace replaces routes of ours, or a predecessor's. The kernel replaces the first route with the same destination
// and metric, of any owner, so foreign ones are looked up first. exists has the kernel's errors for routes that could
// not be added; it is nil for routes that were listed as ours.
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
		if !netlinkx.IsNotExist(err) { // else the route was removed with its link
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

// foreignRoutes looks up others' routes, of which there may be many: they are listed at the first call of at, which in
// a steady state never comes.
type foreignRoutes struct {
	table *Table
	byKey map[key][]netlinkx.Route
}

// at returns the foreign routes with r's destination and metric.
func (f *foreignRoutes) at(r netlinkx.Route) ([]netlinkx.Route, error) {
	if f.byKey == nil {
		all, err := f.table.conn.Routes(netlinkx.RouteFilter{Table: f.table.opts.Table})
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
