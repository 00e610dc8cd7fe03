package controllers

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
)

// LeaseName is the name of the Lease of the controllers.
const LeaseName = "tortie-kube-controllers"

// terms are the duration of a lease, the time within which its holder must renew it, the interval of attempts, and the
// limit of one request. A renewal is one request, unless the Lease was written by another process.
type terms struct{ lease, renew, retry, request time.Duration }

// defaultTerms replace a leader that dies within 20 seconds. renew has room for three attempts even if each of them,
// and the last successful one, takes the whole request limit. The rest of the lease after renew lets requests in flight
// end.
var defaultTerms = terms{lease: 15 * time.Second, renew: 12 * time.Second, retry: 2 * time.Second, request: 3 * time.Second}

// Elector elects one of several processes by a Lease, in the format of client-go's leader election, which doc.go
// compares.
//
// Clocks need not agree: another holder's lease is counted from when it was last seen to change.
type Elector struct {
	store     datastore.Store
	namespace string
	name      string // of the Lease
	identity  string
	terms     terms
	log       *slog.Logger
	leading   atomic.Bool

	seen  api.Lease // as last read or written
	since time.Time // when its change was seen; for a write of this process, when the request began
	tried time.Time // when the last attempt began
}

// NewElector returns an Elector by the Lease of a name. The identity must be unique, even among earlier processes in
// the same pod.
func NewElector(store datastore.Store, namespace, name, identity string, log *slog.Logger) *Elector {
	return &Elector{store: store, namespace: namespace, name: name, identity: identity, terms: defaultTerms, log: log}
}

// Leading reports whether this process leads.
func (e *Elector) Leading() bool { return e.leading.Load() }

// Run calls lead whenever this process leads, and waits for its return, until ctx ends. The context of lead ends when
// leadership is lost, before another process may lead.
func (e *Elector) Run(ctx context.Context, lead func(context.Context)) {
	for ctx.Err() == nil {
		if !e.acquire(ctx) {
			return
		}
		e.log.Info("leading", "lease", e.namespace+"/"+e.name, "as", e.identity)
		e.leading.Store(true)
		e.lead(ctx, lead)
		e.leading.Store(false)
		if ctx.Err() == nil {
			e.log.Warn("leadership lost: the lease was not renewed")
		}
	}
}

// acquire waits until this process holds the lease; false if ctx ends before.
func (e *Elector) acquire(ctx context.Context) bool {
	var reported progress.Changes
	for {
		got, err := e.try(ctx)
		if got {
			return true
		}
		if ctx.Err() == nil && reported.New(err) {
			e.log.Warn("leader election failed; retrying", "err", err)
		}
		if !e.pause(ctx) {
			return false
		}
	}
}

// lead runs until leadership is lost or ctx ends, and then releases the lease.
func (e *Elector) lead(ctx context.Context, lead func(context.Context)) {
	leading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); lead(leading) }()
	e.renew(leading)
	stop()
	<-ended
	if ctx.Err() != nil {
		e.release(context.WithoutCancel(ctx))
	}
}

// renew renews the lease until ctx ends or leadership is lost.
func (e *Elector) renew(ctx context.Context) {
	for e.renewOnce(ctx) {
	}
}

// renewOnce tries until the lease is renewed; false if another process holds it, ctx ends, or the renewal deadline
// passes. The deadline counts from the start of the last successful request: other processes may have seen the lease
// change as early.
func (e *Elector) renewOnce(ctx context.Context) bool {
	limited, cancel := context.WithDeadline(ctx, e.since.Add(e.terms.renew))
	defer cancel()
	var failed error
	for e.pause(limited) {
		got, err := e.try(limited)
		if err == nil {
			return got
		}
		failed = err
	}
	if ctx.Err() == nil {
		e.log.Warn("cannot renew the lease", "err", failed)
	}
	return false
}

// try takes the lease or renews it, unless another process holds it.
func (e *Elector) try(ctx context.Context) (bool, error) {
	e.tried = time.Now()
	if e.seen.Spec.HolderIdentity == e.identity { // most likely not written by another process
		err := e.write(ctx, e.seen, e.store.Update)
		if !datastore.Contended(err) {
			return err == nil, err
		}
	}
	lease := api.Lease{Meta: api.Meta{Namespace: e.namespace, Name: e.name}}
	err := e.send(ctx, e.store.Get, &lease)
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		err = e.write(ctx, lease, e.store.Create)
	case err != nil:
		return false, err
	case e.heldByAnother(&lease):
		return false, nil
	default:
		err = e.write(ctx, lease, e.store.Update)
	}
	if datastore.Contended(err) {
		return false, nil // another process was faster
	}
	return err == nil, err
}

// heldByAnother records the lease, and reports whether another process may lead by it.
func (e *Elector) heldByAnother(lease *api.Lease) bool {
	if lease.UID != e.seen.UID || lease.ResourceVersion != e.seen.ResourceVersion {
		e.seen, e.since = *lease, time.Now()
	}
	held := time.Duration(lease.Spec.LeaseDurationSeconds) * time.Second
	return lease.Spec.HolderIdentity != "" && lease.Spec.HolderIdentity != e.identity && time.Since(e.since) < held
}

// write makes this process the holder.
func (e *Elector) write(ctx context.Context, lease api.Lease, request func(context.Context, api.Resource) error) error {
	began := time.Now()
	lease.Spec = e.mine(lease.Spec, began)
	err := e.send(ctx, request, &lease)
	if err == nil {
		e.seen, e.since = lease, began
	}
	return err
}

// send makes a request with a timeout.
func (e *Elector) send(ctx context.Context, request func(context.Context, api.Resource) error, lease *api.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, e.terms.request)
	defer cancel()
	return request(ctx, lease)
}

// mine returns the spec for a write of this process.
func (e *Elector) mine(before api.LeaseSpec, now time.Time) api.LeaseSpec {
	stamp := now.UTC().Format(api.MicroTime)
	next := before
	if before.HolderIdentity != e.identity {
		next.AcquireTime = stamp
		next.LeaseTransitions++
	}
	next.HolderIdentity, next.RenewTime, next.LeaseDurationSeconds = e.identity, stamp, int(e.terms.lease/time.Second)
	return next
}

// release removes the holder, so that the next one leads at once.
func (e *Elector) release(ctx context.Context) {
	lease := api.Lease{Meta: api.Meta{Namespace: e.namespace, Name: e.name}}
	if err := e.send(ctx, e.store.Get, &lease); err != nil || lease.Spec.HolderIdentity != e.identity {
		return
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = "", 1
	if err := e.send(ctx, e.store.Update, &lease); err != nil {
		e.log.Warn("cannot release the lease; the next leader waits until it expires", "err", err)
	}
}

// pause waits until the next attempt, jittered by a fifth; false if ctx ends first. After a slow attempt it does not
// wait.
func (e *Elector) pause(ctx context.Context) bool {
	return wait.Sleep(ctx, time.Until(e.tried)+e.terms.retry+rand.N(e.terms.retry/5+1))
}
