package migrate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

const (
	// drainTime is how long after the lock the source may still change. Plugins trust the agent's facts for 30 s
	// (facts.MaxAge), work 110 s on a request of the runtime, and may take 20 s to undo it.
	drainTime = 160 * time.Second
	// writers bounds the concurrent requests.
	writers = 10
	// maxPasses bounds the comparisons of both groups that find a difference or fail.
	maxPasses = 20
	// shown bounds the printed conflicts.
	shown = 20
)

// passPace is the pause between passes.
var passPace = wait.Backoff{First: 200 * time.Millisecond, Most: 5 * time.Second}

// ErrConflict means that the target has objects that the move may not change, or that objects are being deleted.
var ErrConflict = errors.New("conflicts")

// Mover moves objects. Its methods are not safe for concurrent use: see alone.
type Mover struct {
	// Stores has one Store for each group.
	Stores map[groups.Group]*kubernetes.Store
	// Say prints a progress line.
	Say func(format string, args ...any)

	drain, answer time.Duration // drainTime and answerTime, except in tests
}

// New returns a Mover.
func New(stores map[groups.Group]*kubernetes.Store, say func(format string, args ...any)) *Mover {
	return &Mover{Stores: stores, Say: say, drain: drainTime, answer: answerTime}
}

// read reads the ClusterInformation of both groups.
func (m *Mover) read(ctx context.Context) (state, map[groups.Group]*object, error) {
	infos := map[groups.Group]*object{}
	for _, in := range groups.All {
		o := &object{Meta: api.Meta{Name: api.DefaultName}, of: information}
		err := m.Stores[in].Get(ctx, o)
		o.of = information
		if err == nil {
			infos[in] = o
		} else if !errors.Is(err, datastore.ErrNotFound) {
			return state{}, nil, fmt.Errorf("read ClusterInformation default of %s: %w", in, err)
		}
	}
	return read(infos), infos, nil
}

// setInfo writes datastoreReady and the mark after into the ClusterInformation of a group, which must have the mark
// before. It retries after conflicts.
func (m *Mover) setInfo(ctx context.Context, in groups.Group, ready bool, before, after mark) error {
	return datastore.Retry(ctx, maxPasses, passPace.First, passPace.Most, func() error {
		_, infos, err := m.read(ctx)
		o := infos[in]
		if err == nil && (o == nil || markOf(o) != before) {
			err = fmt.Errorf("ClusterInformation default of %s: another program has changed annotation %s from %q", in, migrating, before.ID)
		}
		if err == nil {
			err = o.set(ready, after)
		}
		if err != nil {
			return err
		}
		return m.Stores[in].Update(ctx, o)
	})
}

// Start moves all objects to a group, or resumes a move to it. In a cluster that already uses the group it does
// nothing. It returns ErrConflict if the target has other objects: before any lock, or with the source locked if they
// appeared meanwhile.
func (m *Mover) Start(ctx context.Context, to groups.Group) error {
	s, infos, err := m.read(ctx)
	if err != nil {
		return err
	}
	switch {
	case s.phase == copying && s.To != to:
		return fmt.Errorf("a move to %s is under way: resume it, or abort it", s.To)
	case s.phase != copying && s.now == to:
		m.Say("the cluster uses %s", to)
		return nil
	case s.phase != copying:
		if s.mark, err = m.begin(ctx, s, infos, to); err != nil {
			return err
		}
	default:
		m.Say("resuming the move to %s", to)
	}
	return m.carry(ctx, s.mark)
}

// begin checks that a move can succeed, and locks the source.
func (m *Mover) begin(ctx context.Context, s state, infos map[groups.Group]*object, to groups.Group) (mark, error) {
	next := mark{To: to, ID: strings.ToLower(rand.Text()[:10])}
	if err := m.check(ctx, s, to); err != nil {
		return next, err
	}
	plans, err := m.plans(ctx, next)
	if err != nil {
		return next, err
	}
	if err := m.refuse(plans); err != nil {
		return next, err
	}
	if err := m.try(ctx, plans, infos[to.Other()], next); err != nil {
		return next, err
	}
	if info := infos[to]; info != nil { // an earlier move has left it
		if err := m.Stores[to].Delete(ctx, info); err != nil {
			return next, fmt.Errorf("remove the locked ClusterInformation of %s: %w", to, err)
		}
	}
	m.Say("locking %s: no pod gets or frees an address until the move is over", to.Other())
	return next, m.setInfo(ctx, to.Other(), false, markOf(infos[to.Other()]), next)
}

// refuse returns the conflicts as an error.
func (m *Mover) refuse(plans []*plan) error {
	all := conflicts(plans)
	if len(all) == 0 {
		return nil
	}
	m.list("conflict", all)
	return fmt.Errorf("%w: %d objects are in the way: wait until those that are being deleted are gone; delete others of the target, or "+
		"make them equal; what an earlier move has left, finish removes", ErrConflict, len(all))
}

// list prints the first shown lines.
func (m *Mover) list(what string, all []string) {
	for _, line := range all[:min(len(all), shown)] {
		m.Say("%s: %s", what, line)
	}
}

// carry copies until source and target are equal and nothing writes to the source, and unlocks the target.
func (m *Mover) carry(ctx context.Context, by mark) error {
	drained := time.Now().Add(m.drain) // by this process's own clock, which does not know an earlier run's
	pace := passPace
	for failed := 0; ; {
		last := !time.Now().Before(drained)
		n, err := m.pass(ctx, by)
		switch {
		case errors.Is(err, ErrConflict) || ctx.Err() != nil:
			return err
		case err == nil && n == 0 && last:
			return m.switchTo(ctx, by)
		case err == nil && n == 0:
			m.Say("source and target are equal; waiting %s for requests in flight", time.Until(drained).Round(time.Second))
			if !wait.Sleep(ctx, time.Until(drained)) {
				return context.Cause(ctx)
			}
			continue
		case err != nil:
			m.Say("trying again: %v", err)
		}
		if failed++; failed == maxPasses {
			return errors.Join(err, fmt.Errorf("source and target are not equal after %d passes, the last with %d writes: the source stays "+
				"locked: start again, or abort", failed, n))
		}
		if !wait.Sleep(ctx, pace.Next()) {
			return context.Cause(ctx)
		}
	}
}

// switchTo permits nodes to write in the target, and creates its ClusterInformation, ready: from then on all programs
// use the target. Before, it has none, so that starting programs use the source (groups.Choose), in either direction of
// the move.
func (m *Mover) switchTo(ctx context.Context, by mark) error {
	s, infos, err := m.read(ctx)
	if err == nil && (s.phase != copying || s.mark != by) {
		err = fmt.Errorf("another program has changed the move: it is %s, move %q", s.phase, s.ID)
	}
	if err != nil {
		return err
	}
	if err := m.handOver(ctx, by.To); err != nil && ctx.Err() == nil {
		m.Say("fields of objects in %s have lost their owners (server-side apply), such as Helm: %v", by.To, err)
	}
	o := convert(infos[by.To.Other()], by.To, by.ID, nil)
	delete(o.Annotations, migratedBy)
	done := by
	done.Switched = true
	if err := o.set(true, done); err != nil {
		return err
	}
	source := by.To.Other()
	if !by.Switched { // an earlier run may have been killed after this
		if err := m.setInfo(ctx, source, false, by, done); err != nil {
			return err
		}
	}
	if err := m.Stores[by.To].Create(ctx, o); err != nil {
		err = fmt.Errorf("create the ClusterInformation of %s: %w; the source stays locked: start again, or abort", by.To, err)
		if errors.Is(err, datastore.ErrRefused) { // so that nothing was written
			err = errors.Join(err, m.setInfo(ctx, source, false, done, by))
		}
		return err
	}
	m.Say("moved: the cluster uses %s; %s stays locked", by.To, by.To.Other())
	return nil
}

// plans compares all kinds in both groups, in the order of kinds.
func (m *Mover) plans(ctx context.Context, by mark) ([]*plan, error) {
	source, err := m.all(ctx, by.To.Other(), false)
	if err != nil {
		return nil, err
	}
	target, err := m.all(ctx, by.To, true)
	if err != nil {
		return nil, err
	}
	owners := uids{}
	for i := range kinds {
		names := map[string]string{}
		for _, o := range target[i] {
			names[o.key()] = o.UID
		}
		for _, o := range source[i] {
			if uid := names[convert(o, by.To, "", nil).key()]; uid != "" {
				owners.add(o.UID, uid)
			}
		}
	}
	var plans []*plan
	for i, of := range kinds {
		plans = append(plans, planKind(of, source[i], target[i], by.To, by.ID, owners))
	}
	return plans, nil
}

// all lists every kind of a group; marked includes objects that are marked deleted. A kind without a definition has
// none.
func (m *Mover) all(ctx context.Context, in groups.Group, marked bool) ([][]*object, error) {
	_, served, err := m.Stores[in].Kinds(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask which kinds %s has: %w", in, err)
	}
	all := make([][]*object, len(kinds))
	for i, of := range kinds {
		if !slices.Contains(served, of.Plural) {
			continue
		}
		l := &list{of: of, marked: marked}
		if err := m.Stores[in].List(ctx, l, datastore.ListOptions{}); err != nil {
			return nil, fmt.Errorf("list %s of %s: %w", of.Plural, in, err)
		}
		all[i] = l.items
	}
	return all, nil
}

// pass compares and writes, kind by kind, and returns the number of differing objects.
func (m *Mover) pass(ctx context.Context, by mark) (int, error) {
	plans, err := m.plans(ctx, by)
	if err != nil {
		return 0, err
	}
	if err := m.refuse(plans); err != nil {
		return 0, err
	}
	store := m.Stores[by.To]
	for i, p := range plans {
		err := errors.Join(each(ctx, p.create, on(store.Create)), each(ctx, p.update, on(store.Update)), each(ctx, p.remove, m.remover(by.To)))
		if err != nil {
			return due(plans), fmt.Errorf("copy %s: %w", p.of.Plural, err)
		}
		if p.due() > 0 {
			m.Say("%d of %d kinds: %s: %d created, %d updated, %d removed",
				i+1, len(plans), p.of.Plural, len(p.create), len(p.update), len(p.remove))
		}
	}
	return due(plans), nil
}

// each calls do for items, some concurrently. It ends with the first error.
func each[T any](ctx context.Context, items []T, do func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, item := range items {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return do(ctx, item)
		})
	}
	return g.Wait()
}

// on adapts a method of a Store to objects of any kind.
func on(write func(context.Context, api.Resource) error) func(context.Context, *object) error {
	return func(ctx context.Context, o *object) error { return write(ctx, o) }
}

// remover returns a function that removes an object of a group, with its finalizers: their programs do not work in a
// locked group.
func (m *Mover) remover(in groups.Group) func(context.Context, *object) error {
	return func(ctx context.Context, o *object) error {
		if o.Foreign != nil && len(o.Finalizers) > 0 {
			o.Foreign = &api.Foreign{OwnerReferences: o.OwnerReferences}
			if err := m.Stores[in].Update(ctx, o); err != nil {
				return err
			}
		}
		return m.Stores[in].Delete(ctx, o)
	}
}
