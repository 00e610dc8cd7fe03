package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

const (
	// answerPeriod is how often a status is compared if spec.updatePeriodSeconds is absent.
	answerPeriod = 10 * time.Second
	// answerRate bounds how many statuses a second all nodes together write: each write is an event for all of them.
	answerRate = 10
	// readSpread is the time over which nodes spread their reads of a new object, which concerns only one of them.
	readSpread = 2 * time.Second
	// readAtOnce bounds the objects not named as this node that it reads in one round, readPause is the pause between two
	// such rounds: of a thousand objects all but one are for other nodes.
	readAtOnce = 5
	readPause  = 30 * time.Second
	// othersAgain is how long a changed object for another node is not read again: as a rule its status has changed.
	othersAgain = 10 * time.Minute
	// answerTime bounds one request.
	answerTime = 10 * time.Second
	// answerRetry is the pause before a failed request is repeated.
	answerRetry = time.Minute
)

// statusWriter fills in the status of CalicoNodeStatus objects whose spec.node is this node. It belongs to the
// goroutine of run, and writes nothing while there is no such object.
type statusWriter struct {
	node   string
	watch  *cluster.Watch
	store  *kubernetes.Store
	report func() nodestatus.Report
	log    *slog.Logger

	known    map[string]*statusRequest
	reported progress.Changes
}

// statusRequest is one object as it was last read or written.
type statusRequest struct {
	object api.CalicoNodeStatus
	read   time.Time
	due    time.Time // when the status is compared next; zero: never
}

// run keeps the statuses up to date until ctx ends.
func (a *statusWriter) run(ctx context.Context) error {
	a.known = map[string]*statusRequest{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		pause := readSpread / 4
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-a.watch.NodeStatusesChanged():
			pause = rand.N(readSpread)
		}
		wait.Sleep(ctx, pause)
		if next := a.round(ctx, time.Now()); next > 0 {
			timer.Reset(next)
		}
	}
}

// round reads new objects, updates statuses that are due, and returns the time until the next round; 0: none is needed.
func (a *statusWriter) round(ctx context.Context, now time.Time) time.Duration {
	listed := a.watch.NodeStatuses()
	var errs []error
	unread, more := first(a.node, toRead(a.node, listed, a.known, now))
	for _, o := range unread {
		errs = append(errs, a.read(ctx, o, now))
	}
	forget(listed, a.known)
	for _, q := range a.known {
		if q.due.IsZero() || q.due.After(now) {
			continue
		}
		errs = append(errs, a.answer(ctx, q, now, period(q.object.Spec, len(listed))))
	}
	next := time.Duration(0)
	switch {
	case a.failed(errors.Join(errs...)):
		next = wait.Jitter(answerRetry)
	case more:
		next = wait.Jitter(readPause)
	}
	for _, q := range a.known {
		if left := max(q.due.Sub(now), time.Millisecond); !q.due.IsZero() && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}

// failed logs an error once, and reports whether there is one.
func (a *statusWriter) failed(err error) bool {
	if a.reported.New(err) {
		a.log.Warn("cannot update CalicoNodeStatus", "err", err)
	}
	return err != nil
}

// toRead returns the objects whose spec may have changed since they were read. In objects for other nodes mostly the
// status changes. A move between API groups makes one object per node, which only that node reads.
func toRead(node string, listed []api.CalicoNodeStatus, known map[string]*statusRequest, now time.Time) []api.CalicoNodeStatus {
	var out []api.CalicoNodeStatus
	for _, o := range listed {
		q := known[o.Name]
		switch {
		case names.AsksOther(o.Name, node):
		case q == nil || q.object.UID != o.UID:
			out = append(out, o)
		case q.object.ResourceVersion == o.ResourceVersion:
		case q.object.Spec.Node == node || now.Sub(q.read) >= othersAgain:
			out = append(out, o)
		}
	}
	return out
}

// first returns the objects to read in this round: those named as this node, and some others. more reports that others
// are left.
func first(node string, all []api.CalicoNodeStatus) (now []api.CalicoNodeStatus, more bool) {
	others := 0
	for _, o := range all {
		if o.Name == node || o.Name == names.Question(node) {
			now = append(now, o)
		} else if others++; others <= readAtOnce {
			now = append(now, o)
		}
	}
	return now, others > readAtOnce
}

// forget drops the objects that no longer exist.
func forget(listed []api.CalicoNodeStatus, known map[string]*statusRequest) {
	there := make(map[string]bool, len(listed))
	for _, o := range listed {
		there[o.Name] = true
	}
	for name := range known {
		if !there[name] {
			delete(known, name)
		}
	}
}

// period is how often a status is compared while the cluster has that many objects; 0: never.
func period(spec api.CalicoNodeStatusSpec, questions int) time.Duration {
	p := answerPeriod
	if s := spec.UpdatePeriodSeconds; s != nil {
		p = time.Duration(*s) * time.Second
	}
	if p == 0 {
		return 0
	}
	return max(p, time.Duration(questions)*time.Second/answerRate)
}

// read reads an object; if it is for this node its status is due at once.
func (a *statusWriter) read(ctx context.Context, o api.CalicoNodeStatus, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	q := &statusRequest{object: api.CalicoNodeStatus{Meta: api.Meta{Name: o.Name}}, read: now}
	switch err := a.store.Get(ctx, &q.object); {
	case errors.Is(err, datastore.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("CalicoNodeStatus %s: %w", o.Name, err)
	}
	if q.object.Spec.Node == a.node && period(q.object.Spec, 1) > 0 {
		q.due = now
	}
	a.known[o.Name] = q
	return nil
}

// answer writes the status if it has changed. As in Calico, an unchanged status stays with its time.
func (a *statusWriter) answer(ctx context.Context, q *statusRequest, now time.Time, period time.Duration) error {
	q.due = now.Add(period - period/10 + rand.N(period/5+1))
	report := a.report()
	want := report.Calico(q.object.Spec.Classes)
	was := q.object.Status
	was.LastUpdated = nil
	if reflect.DeepEqual(want, was) {
		return nil
	}
	at := now.UTC().Format(time.RFC3339)
	want.LastUpdated = &at
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := a.store.SetStatus(ctx, &q.object, want)
	switch {
	case errors.Is(err, datastore.ErrConflict), errors.Is(err, datastore.ErrNotFound):
		return nil // it was changed or removed: an event of the watch follows
	case err != nil:
		return fmt.Errorf("CalicoNodeStatus %s: %w", q.object.Name, err)
	}
	q.object.Status = want
	return nil
}
