package migrate

import (
	"context"
	"crypto/rand"
	"encoding/json"
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
	// Namespace is the release's: programs count there and where controllers.Trusted says so.
	Namespace string

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
			return state{}, nil, errors.Join(fmt.Errorf("read ClusterInformation default of %s: %w", in, err), m.checkAPIServer(ctx))
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
			err = fmt.Errorf("ClusterInformation default of %s: another program has changed annotation %s from %q", in, groups.Moving, before.ID)
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
// nothing, but that the mark of the source may be completed. It returns ErrConflict if the target has other objects:
// before any lock, or with the source locked if they appeared meanwhile. While it is unclear which group has the complete
// objects it is an error, and nothing changes.
func (m *Mover) Start(ctx context.Context, to groups.Group) error {
	s, infos, err := m.read(ctx)
	if err != nil {
		return err
	}
	if err := s.doubt(); err != nil {
		return err
	}
	switch {
	case (s.phase == copying || s.phase == switching) && s.To != to:
		return fmt.Errorf("a move to %s is under way: resume it, or abort it", s.To)
	case s.phase == switching:
		m.Say("the copy is complete; resuming the move to %s", to)
		_, err = m.open(ctx, s.mark)
		return err
	case s.phase == copying:
		m.Say("resuming the move to %s", to)
		s.mark, err = m.resume(ctx, s.mark, infos)
	case s.now == to && s.lock[to.Other()] != groups.Ready:
		m.Say("the cluster uses %s", to)
		if s.phase == moved && !s.Switched { // the run that has opened the target was killed, and its note lost
			return m.setInfo(ctx, to.Other(), false, s.mark, switched(s.mark))
		}
		return nil
	default:
		s.mark, err = m.begin(ctx, s, infos, to)
	}
	if err != nil {
		return err
	}
	return m.carry(ctx, s.mark)
}

// resume takes back what an abort that was killed has begun.
func (m *Mover) resume(ctx context.Context, by mark, infos map[groups.Group]*object) (mark, error) {
	next := by
	if next.Aborting = false; next != by {
		if err := m.setInfo(ctx, by.To.Other(), false, by, next); err != nil {
			return next, err
		}
	}
	return next, m.vacate(ctx, infos, by.To)
}

// vacate removes the locked ClusterInformation of the target, which an earlier move has left: then programs that start
// use the source.
func (m *Mover) vacate(ctx context.Context, infos map[groups.Group]*object, to groups.Group) error {
	if infos[to] == nil {
		return nil
	}
	if err := m.Stores[to].Delete(ctx, infos[to]); err != nil {
		return fmt.Errorf("remove the locked ClusterInformation of %s: %w", to, err)
	}
	return nil
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
	if err := m.vacate(ctx, infos, to); err != nil {
		return next, err
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
		"make them equal; what an earlier move has left, finish or abort removes", ErrConflict, len(all))
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
		case errors.Is(err, ErrConflict) || errors.Is(err, errChanged) || ctx.Err() != nil:
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

// still returns an error unless a move with this mark is being copied.
func (m *Mover) still(ctx context.Context, by mark) error {
	s, _, err := m.read(ctx)
	if err != nil {
		return err
	}
	return s.is(copying, by)
}

// switchTo writes into the source that the copy is complete, and opens the target. If that is refused it takes the mark
// back, so that the move can be aborted.
func (m *Mover) switchTo(ctx context.Context, by mark) error {
	if err := m.still(ctx, by); err != nil {
		return err
	}
	if err := m.handOver(ctx, by.To); err != nil && ctx.Err() == nil {
		m.Say("fields of objects in %s have lost their owners (server-side apply), such as Helm: %v", by.To, err)
	}
	if err := m.keepPools(ctx, by.To); err != nil {
		return fmt.Errorf("%w; the source stays locked: start again, or abort", err)
	}
	done := switched(by)
	if err := m.setInfo(ctx, by.To.Other(), false, by, done); err != nil {
		return err
	}
	refused, err := m.open(ctx, done)
	if refused {
		err = errors.Join(err, m.setInfo(ctx, by.To.Other(), false, done, by))
	}
	return err
}

// open creates the target's ClusterInformation, ready: from then on all programs use the target. Before, it has none,
// so that starting programs use the source (groups.Choose), in either direction of the move. Refused: the API server has
// carried out no request, and will not: an answer that was lost may have been a yes.
func (m *Mover) open(ctx context.Context, by mark) (refused bool, err error) {
	pace, unanswered := passPace, false
	for n := 1; ; n++ {
		done, err := m.opens(ctx, by)
		if done {
			m.Say("moved: the cluster uses %s; %s stays locked", by.To, by.To.Other())
			return false, nil
		}
		lost := ctx.Err() != nil || errors.Is(err, datastore.ErrUnavailable)
		unanswered = unanswered || lost
		if !lost && !errors.Is(err, datastore.ErrExists) || n == maxPasses || !wait.Sleep(ctx, pace.Next()) {
			return !unanswered, fmt.Errorf("%w; the source stays locked: start again, or abort", err)
		}
	}
}

// opens creates the target's ClusterInformation, unless an earlier request has done so.
func (m *Mover) opens(ctx context.Context, by mark) (done bool, err error) {
	s, infos, err := m.read(ctx)
	if err != nil || s.phase == moved && s.mark == by {
		return err == nil, err
	}
	err = s.is(switching, by)
	if err == nil {
		err = m.checkLost(ctx, by)
	}
	if err == nil {
		err = m.putInfo(ctx, infos[by.To.Other()], by.To, true, by)
	}
	return err == nil, err
}

// checkLost refuses the target of a move if it has lost its objects, as with definitions that were deleted: then those of
// the source are the only ones. It looks for two kinds that no cluster in use is without.
func (m *Mover) checkLost(ctx context.Context, by mark) error {
	from := by.To.Other()
	source, err := m.all(ctx, from, false)
	if err != nil {
		return err
	}
	target, err := m.all(ctx, by.To, false)
	if err != nil {
		return err
	}
	remedy := "restore them"
	if again := by; again.ID != "" {
		again.Switched = false
		text, _ := json.Marshal(again) // what was decoded encodes
		remedy = fmt.Sprintf("to copy them again, delete ClusterInformation default of %s, if there is one, set annotation %s of that of %s "+
			"to %s, and start", by.To, groups.Moving, from, text)
	}
	for i, of := range kinds {
		if (of.Kind == "IPPool" || of.Kind == "IPAMBlock") && len(source[i]) > 0 && len(target[i]) == 0 {
			return fmt.Errorf("%s has no %s, and %s has %d: it has lost its objects, as with definitions that were deleted; nothing was "+
				"opened or removed: %s", by.To, of.Plural, from, len(source[i]), remedy)
		}
	}
	return nil
}

// putInfo creates the ClusterInformation of a group, as a copy of the other group's with another lock and mark.
func (m *Mover) putInfo(ctx context.Context, like *object, in groups.Group, ready bool, by mark) error {
	o := convert(like, in, by.ID, nil)
	delete(o.Annotations, migratedBy)
	err := o.set(ready, by)
	if err == nil {
		err = m.Stores[in].Create(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("create the ClusterInformation of %s: %w", in, err)
	}
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
		if p.due() == 0 {
			continue
		}
		if err := m.still(ctx, by); err != nil { // this run may have lost its Lease to an abort
			return due(plans), err
		}
		err := errors.Join(each(ctx, p.create, on(store.Create)), each(ctx, p.update, on(store.Update)), each(ctx, p.remove, m.remover(by.To)))
		if err != nil {
			return due(plans), fmt.Errorf("copy %s: %w", p.of.Plural, err)
		}
		m.Say("%d of %d kinds: %s: %d created, %d updated, %d removed",
			i+1, len(plans), p.of.Plural, len(p.create), len(p.update), len(p.remove))
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
