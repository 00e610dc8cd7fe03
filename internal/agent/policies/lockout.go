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
	// LockoutPatience is a Patience that lost packets do not exhaust.
	LockoutPatience = time.Minute
	// firstAsk and mostAsk bound the pauses between attempts to reach the API server.
	firstAsk = time.Second
	mostAsk  = 15 * time.Second
)

// APIServer is the connection to the API server that policies of host endpoints must not close.
type APIServer struct {
	// Addresses are the API server's addresses for programs of the node.
	Addresses []netip.AddrPort
	// Answers opens a connection and reports whether the API server answered. judged: policies of host endpoints judge it;
	// otherwise it passes while the way is open.
	Answers func(ctx context.Context, judged bool) bool
	// Patience is how long only connections without judgement may be answered before the node counts as locked out, and
	// the former policies of host endpoints come back.
	Patience time.Duration
}

// trial is the test of changed programs of host endpoints. The way to the API server is open until it has answered a
// connection that the programs judge.
type trial struct {
	hosts    map[string]policy.Host // keys of programs are digests
	rules    policy.HostRules
	policies *policy.HostPolicies // on trial
	former   *policy.HostPolicies // passed before; nil: not known, as the agent started with this trial
	answers                       // mu guards them
}

// answers are the results of a trial.
type answers struct {
	since     time.Time // since when only connections without judgement are answered; zero: not so
	lockedOut bool
	passed    bool
}

// after returns the answers with a new result. If neither connection is answered the API server itself is away, which
// proves nothing.
func (a answers) after(now time.Time, judged, open bool, patience time.Duration) answers {
	switch {
	case judged:
		return answers{passed: true}
	case !open:
		a.since = time.Time{}
		return a
	case a.since.IsZero():
		a.since = now
	}
	a.lockedOut = a.lockedOut || now.Sub(a.since) >= patience
	return a
}

// guard opens the way to the API server in a Ruleset with host endpoints on trial. policies are the new ones; back: the
// Ruleset has the former ones instead.
func (w *Worker) guard(rules *policy.Ruleset, policies *policy.HostPolicies, back bool) *trial {
	if w.APIServer == nil || len(rules.Hosts) == 0 && !back {
		return nil
	}
	t := w.compiled.trial
	if !back && (t == nil || !t.isOf(rules)) {
		t = &trial{hosts: rules.Hosts, rules: rules.HostRules, policies: policies, former: w.former()}
	}
	if !w.passed(t) {
		rules.HostRules.Open = w.APIServer.Addresses
	}
	return t
}

// isOf reports whether the trial has the Ruleset's programs of host endpoints and failsafe ports.
func (t *trial) isOf(rules *policy.Ruleset) bool {
	return reflect.DeepEqual(t.hosts, rules.Hosts) && reflect.DeepEqual(t.rules.Inbound, rules.HostRules.Inbound) &&
		reflect.DeepEqual(t.rules.Outbound, rules.HostRules.Outbound)
}

// former returns the policies of host endpoints with which the API server was reached last; nil: not known.
func (w *Worker) former() *policy.HostPolicies {
	switch t := w.compiled.trial; {
	case !w.synced:
		return nil // what an earlier agent left is not known
	case t == nil:
		return &policy.HostPolicies{} // there were none
	case w.passed(t):
		return t.policies
	default:
		return t.former
	}
}

func (w *Worker) passed(t *trial) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return t.passed
}

// closesWay reports whether the way to the API server is open for host endpoints that have passed, and must be closed.
func (w *Worker) closesWay() bool {
	return w.compiled.trial != nil && len(w.compiled.rules.HostRules.Open) > 0 && w.passed(w.compiled.trial)
}

// failed reports whether the trial has locked the node out, so that the former policies come back. The trial ends then:
// an answer could be due to either policies.
func (t *trial) failed() bool { return t != nil && t.lockedOut && t.former != nil }

func (w *Worker) failed() bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.compiled.trial.failed()
}

// rollsBack reports whether a Selection still has the policies of host endpoints that have locked the node out.
func (w *Worker) rollsBack(selection *policy.Selection) bool {
	return w.failed() && w.compiled.trial.isOf(&selection.Compile().Ruleset)
}

// tries tests host endpoints' programs that have come into force, until ctx ends.
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

// ask tests what is in force, and reports whether to test again. Rules that come into force meanwhile have another
// trial.
func (w *Worker) ask(ctx context.Context) (again bool) {
	w.mu.RLock()
	t := w.inForce.trial
	ended := t == nil || t.passed || t.failed()
	w.mu.RUnlock()
	if ended {
		return false
	}
	judged := w.APIServer.Answers(ctx, true)
	open := !judged && w.APIServer.Answers(ctx, false)
	w.mu.Lock()
	defer w.mu.Unlock()
	before := t.answers
	if t.answers = before.after(time.Now(), judged, open, w.APIServer.Patience); t.passed || t.lockedOut != before.lockedOut {
		wait.Signal(w.hostChanged)
	}
	return !t.passed && !t.failed()
}
