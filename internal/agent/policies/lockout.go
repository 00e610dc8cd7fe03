package policies

import (
	"context"
	"net/netip"
	"reflect"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// LockoutPatience is a Patience that no lost packet exhausts.
	LockoutPatience = time.Minute
	// firstAsk and mostAsk bound the pauses between questions to an API server that does not answer.
	firstAsk = time.Second
	mostAsk  = 30 * time.Second
)

// APIServer is the connection to the API server that policies of host endpoints must not close.
type APIServer struct {
	// Addresses are where programs of the node reach it.
	Addresses []netip.AddrPort
	// Answers opens a connection. Policies of host endpoints judge it if it is to be judged, else it passes while the way is open.
	Answers func(ctx context.Context, judged bool) bool
	// Patience is how long only connections that are not judged must be answered until the node counts as locked out.
	Patience time.Duration
}

// trial is of programs of host endpoints that have changed. The way to the API server is open until it has answered a connection that they judge.
type trial struct {
	since     time.Time // since when only connections that are not judged are answered; zero: not so
	lockedOut bool
	passed    bool
}

// after is the trial after a question. If neither connection is answered the API server itself is away, which proves nothing.
func (t trial) after(now time.Time, judged, open bool, patience time.Duration) trial {
	switch {
	case judged:
		return trial{passed: true}
	case !open:
		t.since = time.Time{}
		return t
	case t.since.IsZero():
		t.since = now
	}
	t.lockedOut = t.lockedOut || now.Sub(t.since) >= patience
	return t
}

// guard opens the way to the API server in a Ruleset whose host endpoints are on trial.
func (w *Worker) guard(rules *policy.Ruleset) *trial {
	if w.APIServer == nil || len(rules.Hosts) == 0 {
		return nil
	}
	t := w.compiled.trial
	if t == nil || !sameHosts(&w.compiled.rules.Ruleset, rules) {
		t = &trial{}
	}
	if !w.passed(t) {
		rules.HostRules.Open = w.APIServer.Addresses
	}
	return t
}

// sameHosts reports that neither host endpoints' programs nor the ports that they leave alone differ: keys of programs are digests.
func sameHosts(a, b *policy.Ruleset) bool {
	return reflect.DeepEqual(a.Hosts, b.Hosts) && reflect.DeepEqual(a.HostRules.Outbound, b.HostRules.Outbound)
}

func (w *Worker) passed(t *trial) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return t.passed
}

// closesWay reports that the way to the API server is open for host endpoints that have passed.
func (w *Worker) closesWay() bool {
	return w.compiled.trial != nil && len(w.compiled.rules.HostRules.Open) > 0 && w.passed(w.compiled.trial)
}

// tries tries out host endpoints' programs that have come into force, until ctx ends.
func (w *Worker) tries(ctx context.Context) {
	backoff := wait.Backoff{First: firstAsk, Most: mostAsk}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.onTrial:
			backoff.Reset()
		case <-again:
		}
		if again = nil; w.ask(ctx) {
			again = time.After(backoff.Next())
		}
	}
}

// ask tries out what is in force, and reports whether that is to be done again. Rules that come into force meanwhile have another trial.
func (w *Worker) ask(ctx context.Context) (again bool) {
	w.mu.RLock()
	t := w.inForce.trial
	w.mu.RUnlock()
	if t == nil || w.passed(t) {
		return false
	}
	judged := w.APIServer.Answers(ctx, true)
	open := !judged && w.APIServer.Answers(ctx, false)
	w.mu.Lock()
	defer w.mu.Unlock()
	before := *t
	if *t = t.after(time.Now(), judged, open, w.APIServer.Patience); t.passed || t.lockedOut != before.lockedOut {
		wait.Signal(w.hostChanged)
	}
	return !t.passed
}
