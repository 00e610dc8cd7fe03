package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

const (
	// moveFirst and moveMost bound the pause between reads of both groups' ClusterInformation, while the one in use does
	// not allow writes; it doubles.
	moveFirst, moveMost = time.Second, 10 * time.Second
	// silent is the age of the last confirmation by the watches at which the group is checked.
	silent = 30 * time.Second
	// moveTime bounds a step: reading, and the preparation for writes in another group.
	moveTime = 30 * time.Second
)

// mover follows Calico's objects when they move to the other API group. It holds all writes while the objects are
// locked, or before arrive has succeeded in the group in use.
//
// A migration of Calico's locks crd.projectcalico.org/v1, copies the objects, and unlocks projectcalico.org/v3. So the
// group in use counts as long as it is ready. While it is not, each step reads the ClusterInformation of both. The other
// group counts if it is ready, was written after the lock, and has definitions of its own. Watched objects stay until
// the lists of the other group are complete.
type mover struct {
	group       *groups.Current
	store       *kubernetes.Store
	information *objectStore[api.ClusterInformation]
	confirmed   func() time.Time
	log         *slog.Logger
	changed     chan struct{} // of size 1: the ClusterInformation changed
	told        func()        // called when writes are held or allowed

	// arrive prepares the writes in a group, and may be called again; nil: no preparation. arrived is the group in which
	// it has succeeded, and to which no objects can have been copied since.
	arrive  func(context.Context, groups.Group) error
	arrived groups.Group

	locked *api.ClusterInformation // the one in use, as it was first seen locked; nil: it is not

	since time.Time     // start of the group's use; zero: start of the program
	began chan struct{} // closed once it is known whether objects may be written: WaitForSync waits for it
}

// OnArrival sets arrive, which is called, until it succeeds, before Calico's objects are written in another group than
// arrived, and again after both groups were locked; ctx bounds it. arrived is the group that an earlier process recorded
// after its arrival, before the one that the node used last; each may be empty. OnArrival must be called before Run.
func (w *Watch) OnArrival(before, arrived groups.Group, arrive func(ctx context.Context, in groups.Group) error) {
	w.move.arrived, w.move.arrive = arrived, arrive
	w.move.group.Expect(before)
}

// run moves until ctx ends.
func (m *mover) run(ctx context.Context) {
	select {
	case <-m.information.full:
	case <-ctx.Done():
		return
	}
	var reported progress.Changes
	backoff := wait.Backoff{First: moveFirst, Most: moveMost}
	for ctx.Err() == nil {
		settled, err := m.step(ctx)
		if reported.New(err) && ctx.Err() == nil {
			m.log.Warn("nothing is written in the API group of Calico's objects yet", "group", m.group.Known(), "err", err)
		}
		pause := wait.Jitter(silent)
		if !settled {
			pause = backoff.Next()
		} else {
			backoff.Reset()
		}
		select {
		case <-ctx.Done():
		case <-m.changed:
		case <-time.After(pause):
		}
	}
}

// step decides once. settled means that the group in use is ready. The error is why nothing is written.
func (m *mover) step(ctx context.Context) (settled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	in, info := m.group.Known(), m.information.get(api.DefaultName)
	lock := groups.LockOf(info)
	switch complete := m.since.IsZero() || m.confirmed().After(m.since); {
	case in == "": // there are no definitions
	case lock == groups.Locked:
		m.hold(true)
		m.locked = cmp.Or(m.locked, info)
	case lock == groups.Ready:
		m.locked = nil
		if complete {
			err = m.enter(ctx, in)
			settled = err == nil
		}
	}
	m.begin()
	if in == "" || m.group.Wanted() || settled && time.Since(m.confirmed()) < silent {
		return in == "" || settled, err
	}
	first := in
	if lock == groups.Ready && !settled {
		first = groups.V1 // if it is ready, too, the program should not have left it
	}
	next, failed := m.next(ctx, first, in)
	if failed != nil || next == "" {
		return settled, errors.Join(err, failed)
	}
	m.log.Info("Calico's objects are in another API group now, which is followed from here on", "group", next, "before", in)
	m.hold(true)
	m.group.Set(next)
	m.arrived, m.locked, m.since = "", nil, time.Now()
	return false, err
}

// next returns the group to which the objects have moved; empty if they have not, or if the API server does not answer,
// which the watches report. It reads the ClusterInformation of first before the other's.
func (m *mover) next(ctx context.Context, first, in groups.Group) (groups.Group, error) {
	next := in.Other()
	said, err := m.store.Informations(ctx, first)
	if err != nil {
		return "", nil
	}
	if said.Lock(in) == groups.Locked && said.Lock(next) == groups.Locked {
		m.arrived = "" // objects may be copied to either
	}
	if said.Lock(next) != groups.Ready {
		return "", nil
	}
	if kubernetes.Before(said[next], m.locked) {
		return "", fmt.Errorf("ClusterInformation default of %[1]s was ready before that of %[2]s was locked, so no migration has written it: "+
			"delete it by kubectl delete %[3]s default; if the objects are in %[1]s, change it instead: kubectl annotate %[3]s default used=true",
			next, in, next.Resource((*api.ClusterInformation)(nil).ResourceType().Plural))
	}
	if has, err := m.store.Defined(ctx, next); err != nil || has == "" { // Calico's own API server shows the lock of in
		return "", nil
	}
	return next, nil
}

// enter allows writes in a group, after arrive.
func (m *mover) enter(ctx context.Context, in groups.Group) error {
	if m.arrived != in {
		m.hold(true)
		if m.arrive != nil {
			if err := m.arrive(ctx, in); err != nil {
				return err
			}
		}
		m.arrived = in
	}
	m.hold(false)
	return nil
}

func (m *mover) hold(held bool) {
	if m.group.Held() != held {
		m.group.Hold(held)
		m.told()
	}
}

func (m *mover) begin() {
	select {
	case <-m.began:
	default:
		close(m.began)
	}
}
