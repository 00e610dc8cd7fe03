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
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

const (
	// answerPeriod is how often an answer is looked at whose question does not say.
	answerPeriod = 10 * time.Second
	// answerRate is how many answers a second all nodes together write at most: each is sent to all of them.
	answerRate = 10
	// readSpread is over what time the nodes read a new question, which only one of them is asked.
	readSpread = 2 * time.Second
	// readAtOnce is how many questions a node reads in one round that do not have its name, and readPause is between two such rounds:
	// of a thousand questions all but one are to other nodes.
	readAtOnce = 5
	readPause  = 30 * time.Second
	// othersAgain is how long a question to another node that has changed is left offline: as a rule that is the answer.
	othersAgain = 10 * time.Minute
	// answerTime bounds one request.
	answerTime = 10 * time.Second
	// answerRetry is after how long what failed is tried again.
	answerRetry = time.Minute
)

// statusWriter answers CalicoNodeStatus objects that ask this node how it is. It belongs to the goroutine of run, and writes nothing as
// long as nobody asks.
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
	due    time.Time // the next look at the answer; zero: never
}

// run answers until ctx ends.
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

// round reads what is new, answers what is due, and returns after how long there is something to do; 0: nothing.
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

// failed logs what has gone wrong, once for the same, and reports whether something has.
func (a *statusWriter) failed(err error) bool {
	if a.reported.New(err) {
		a.log.Warn("cannot update CalicoNodeStatus", "err", err)
	}
	return err != nil
}

// toRead returns the questions that may have changed since they were read. Those of other nodes change by their answers.
func toRead(node string, listed []api.CalicoNodeStatus, known map[string]*statusRequest, now time.Time) []api.CalicoNodeStatus {
	var out []api.CalicoNodeStatus
	for _, o := range listed {
		q := known[o.Name]
		switch {
		case q == nil || q.object.UID != o.UID:
			out = append(out, o)
		case q.object.ResourceVersion == o.ResourceVersion:
		case q.object.Spec.Node == node || now.Sub(q.read) >= othersAgain:
			out = append(out, o)
		}
	}
	return out
}

// first returns the questions to read in this round: those that have this node's name, and some others; more says that there are more.
func first(node string, all []api.CalicoNodeStatus) (now []api.CalicoNodeStatus, more bool) {
	others := 0
	for _, o := range all {
		if o.Name == node {
			now = append(now, o)
		} else if others++; others <= readAtOnce {
			now = append(now, o)
		}
	}
	return now, others > readAtOnce
}

// forget drops the questions that there are no longer.
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

// period is how often an answer is looked at while there are so many questions in the cluster; 0: not.
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

// read reads a question, and has it answered at once if this node is asked.
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

// answer writes what has changed. As in Calico, an answer that has not is left alone, its time too.
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
	err := a.store.PatchPart(ctx, &q.object, []kubernetes.Operation{{Op: "add", Path: "/status", Value: want}})
	switch {
	case errors.Is(err, datastore.ErrConflict), errors.Is(err, datastore.ErrNotFound):
		return nil // it was changed, or removed: the watch says so
	case err != nil:
		return fmt.Errorf("CalicoNodeStatus %s: %w", q.object.Name, err)
	}
	q.object.Status = want
	return nil
}
