package controllers

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// LeaseName is the name of the Lease.
const LeaseName = "tortie-kube-controllers"

// terms are how long a leader leads without being heard of, how long it tries to be heard, and how often.
type terms struct{ lease, renew, retry time.Duration }

// defaultTerms: a leader that dies is replaced within half a minute. What it does can wait for as long.
var defaultTerms = terms{lease: 20 * time.Second, renew: 15 * time.Second, retry: 5 * time.Second}

// Elector has one of several processes lead, by a Lease as client-go's leader election writes it. client-go's own would bring all of
// Kubernetes' types into the program, 15 MB.
//
// Clocks need not agree: how long somebody else's lease holds is counted from when it was last seen to change.
type Elector struct {
	store     datastore.Store
	namespace string
	identity  string
	terms     terms
	log       *slog.Logger
	leading   atomic.Bool

	seen  api.Lease // as it was last read or written
	since time.Time // when it was seen to change
}

// NewElector returns an Elector. The identity must be no other process's, also not that of the one before in the same pod.
func NewElector(store datastore.Store, namespace, identity string, log *slog.Logger) *Elector {
	return &Elector{store: store, namespace: namespace, identity: identity, terms: defaultTerms, log: log}
}

// Leading reports whether this process leads.
func (e *Elector) Leading() bool { return e.leading.Load() }

// Run has lead run while this process leads, and waits until it has returned, again and again until ctx ends. The context of lead ends
// when leadership is lost, in time before anybody else's begins.
func (e *Elector) Run(ctx context.Context, lead func(context.Context)) {
	for ctx.Err() == nil {
		if !e.acquire(ctx) {
			return
		}
		e.log.Info("leading", "lease", e.namespace+"/"+LeaseName, "as", e.identity)
		e.leading.Store(true)
		e.lead(ctx, lead)
		e.leading.Store(false)
		if ctx.Err() == nil {
			e.log.Warn("not leading any more: the lease could not be renewed")
		}
	}
}

// acquire waits until the lease is this process's; false if ctx ends before.
func (e *Elector) acquire(ctx context.Context) bool {
	complained := ""
	for {
		got, err := e.try(ctx)
		if got {
			return true
		}
		if err != nil && err.Error() != complained && ctx.Err() == nil {
			e.log.Warn("cannot take part in the election of a leader; trying again", "err", err)
			complained = err.Error()
		}
		if !pause(ctx, e.terms.retry) {
			return false
		}
	}
}

// lead runs until leadership is lost or ctx ends, and then gives the lease back.
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

// renew renews the lease until that has failed for too long.
func (e *Elector) renew(ctx context.Context) {
	last := time.Now()
	for pause(ctx, e.terms.retry) {
		limited, cancel := context.WithDeadline(ctx, last.Add(e.terms.renew))
		began := time.Now()
		got, err := e.try(limited)
		cancel()
		switch {
		case got:
			last = began
		case err == nil: // somebody else has it
			return
		case time.Since(last) >= e.terms.renew:
			e.log.Warn("the lease could not be renewed", "err", err)
			return
		}
	}
}

// try takes the lease or renews it, if nobody else holds it.
func (e *Elector) try(ctx context.Context) (bool, error) {
	now := time.Now()
	lease := api.Lease{Meta: api.Meta{Namespace: e.namespace, Name: LeaseName}}
	err := e.store.Get(ctx, &lease)
	if errors.Is(err, datastore.ErrNotFound) {
		lease.Spec = e.mine(api.LeaseSpec{}, now)
		return e.wrote(&lease, now, e.store.Create(ctx, &lease))
	}
	if err != nil {
		return false, err
	}
	if lease.UID != e.seen.UID || lease.ResourceVersion != e.seen.ResourceVersion {
		e.seen, e.since = lease, now
	}
	if held := time.Duration(lease.Spec.LeaseDurationSeconds) * time.Second; lease.Spec.HolderIdentity != "" &&
		lease.Spec.HolderIdentity != e.identity && now.Sub(e.since) < held {
		return false, nil
	}
	lease.Spec = e.mine(lease.Spec, now)
	return e.wrote(&lease, now, e.store.Update(ctx, &lease))
}

// wrote notes what came of a write. That somebody else was faster is no error.
func (e *Elector) wrote(lease *api.Lease, now time.Time, err error) (bool, error) {
	if datastore.Contended(err) {
		return false, nil
	}
	if err == nil {
		e.seen, e.since = *lease, now
	}
	return err == nil, err
}

// mine is the lease as this process writes it.
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

// release lets the next one lead at once.
func (e *Elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.terms.retry)
	defer cancel()
	lease := api.Lease{Meta: api.Meta{Namespace: e.namespace, Name: LeaseName}}
	if err := e.store.Get(ctx, &lease); err != nil || lease.Spec.HolderIdentity != e.identity {
		return
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = "", 1
	if err := e.store.Update(ctx, &lease); err != nil {
		e.log.Warn("the lease could not be given back; the next leader waits until it has ended", "err", err)
	}
}

// pause waits, jittered by a fifth; false if ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d + rand.N(d/5+1)):
		return true
	}
}
