package cluster

import (
	"context"
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
// group in use counts as long as it is ready. While it is not, each step reads the ClusterInformation of both. Watched
// objects stay until the lists of the other group are complete.
type mover struct {
	group       *groups.Current
	store       *kubernetes.Store
	information *objectStore[api.ClusterInformation]
	confirmed   func() time.Time
	log         *slog.Logger
	changed     chan struct{} // of size 1: the ClusterInformation changed
	told        func()        // called when writes are held or allowed

	// arrive prepares the writes in a group, and may be called again; nil: no preparation. arrived is the group in which
	// it has succeeded.
	arrive  func(context.Context, groups.Group) error
	arrived groups.Group

	since time.Time     // start of the group's use; zero: start of the program
	began chan struct{} // closed once it is known whether objects may be written: WaitForSync waits for it
}

// OnArrival sets arrive, which is called, until it succeeds, before Calico's objects are written in another group than
// before; ctx bounds it. before is the group that an earlier process recorded after its arrive, or empty. OnArrival
// must be called before Run.
func (w *Watch) OnArrival(before groups.Group, arrive func(ctx context.Context, in groups.Group) error) {
	w.move.arrived, w.move.arrive = before, arrive
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

// step decides once. settled means that the group in use is ready. The error is arrive's.
func (m *mover) step(ctx context.Context) (settled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	in := m.group.Known()
	lock := groups.LockOf(m.information.get(api.DefaultName))
	switch complete := m.since.IsZero() || m.confirmed().After(m.since); {
	case in == "": // there are no definitions
	case lock == groups.Locked:
		m.hold(true)
	case lock == groups.Ready && complete:
		err = m.enter(ctx, in)
		settled = err == nil
	}
	m.begin()
	if err != nil {
		return false, err
	}
	if in == "" || m.group.Wanted() || settled && time.Since(m.confirmed()) < silent {
		return in == "" || settled, nil
	}
	next, ready, err := m.store.Find(ctx, in)
	if err != nil || ready != groups.Ready || next == in {
		return settled, nil // the watches report an absent API server
	}
	m.log.Info("Calico's objects are in another API group now, which is followed from here on", "group", next, "before", in)
	m.hold(true)
	m.group.Set(next)
	m.arrived, m.since = "", time.Now()
	return false, nil
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
