package plugin_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// enforce does what an agent does: the pods that it knows may send and receive nothing, unless they are open.
func (w *world) enforce(t *testing.T, e *netpol.Engine, closed bool, endpoints map[string]string) {
	t.Helper()
	r := &policy.Ruleset{Closed: closed, Endpoints: map[string]policy.Endpoint{}, Programs: map[string]policy.Program{}}
	for link, uid := range endpoints {
		r.Endpoints[link] = policy.Endpoint{UID: uid}
	}
	if _, err := e.Sync(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
}

func (w *world) engine(t *testing.T) *netpol.Engine {
	t.Helper()
	e := netpol.New(w.host.Conn.Namespace(), "cali")
	t.Cleanup(e.Close)
	return e
}

// policed is an edit of the installer's keys.
func policed(seconds int) func(map[string]any) {
	return func(conf map[string]any) {
		conf["policy_enforced"], conf["policy_setup_timeout_seconds"] = true, seconds
	}
}

// inForce returns the UID of the pod with policies in force at a sandbox's link.
func (s *sandbox) inForce(t *testing.T) (uid string) {
	t.Helper()
	s.host.NS.Within(t, func() (err error) { uid, _, err = netpol.InForce(s.hostVeth()); return err })
	return uid
}

// addInForce adds a pod with policies in force, or without any. ADD warns if it has waited in vain.
func (w *world) addInForce(t *testing.T, s *sandbox) {
	t.Helper()
	if a := w.host.call(t, s.call(t, "ADD", policed(30))).ok(t); strings.Contains(a.stderr, "WARN") {
		t.Errorf("it waited until the time was over: %s", a.stderr)
	}
}

// ADD ends when the pod's policies are in force, and does not wait for the end of the time that they are given.
func TestPolicyBeforeThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.engine(t)

	known, beside := w.newPod(t, "known"), w.newPod(t, "beside")
	w.enforce(t, e, true, map[string]string{known.hostVeth(): known.uid, beside.hostVeth(): beside.uid})
	w.addInForce(t, known)

	late := w.newPod(t, "late")
	answered := make(chan answer, 1)
	go func() { answered <- w.host.call(t, late.call(t, "ADD", policed(90))) }()
	waittest.Until(t, 20*time.Second, "the pod has no address", func() bool { return strings.Contains(w.podAnnotations(t, "late"), "podIP=") })
	w.addInForce(t, beside) // a whole ADD: the end of the other, if it did not wait, would have come before
	select {
	case a := <-answered:
		t.Fatalf("ADD ended before its policies: %+v", a)
	default:
	}
	w.enforce(t, e, true, map[string]string{late.hostVeth(): late.uid})
	if a := (<-answered).ok(t); strings.Contains(a.stderr, "WARN") {
		t.Errorf("known late: %s", a.stderr)
	}

	// The agent is away and does not program this one.
	alone := w.newPod(t, "alone")
	a := w.host.call(t, alone.call(t, "ADD", policed(1))).ok(t)
	if !strings.Contains(a.stderr, "the pod is closed until the agent") || alone.inForce(t) != "" {
		t.Errorf("unknown: %s", a.stderr)
	}

	// The next pod of a StatefulSet, before the agent knows it.
	w.enforce(t, e, true, map[string]string{known.hostVeth(): "of the one before"})
	known.del(t).ok(t)
	next := w.sandbox(t, "known")
	a = w.host.call(t, next.call(t, "ADD", policed(1))).ok(t)
	if !strings.Contains(a.stderr, "the pod is closed until the agent") || next.inForce(t) != "" {
		t.Errorf("the next one has what was for %q: %s", next.inForce(t), a.stderr)
	}
	w.enforce(t, e, true, map[string]string{known.hostVeth(): next.uid})
	if next.inForce(t) != next.uid {
		t.Error("the agent does not open the next one")
	}

	// Without policies in the cluster a pod does not wait for an agent that is away.
	w.enforce(t, e, false, nil)
	open := w.newPod(t, "open")
	w.addInForce(t, open)
}

// The names of two pods may give the same link: an ADD that fails since the other pod's link is there leaves the link
// to that pod, with its policies in force again.
func TestFailedADDGivesTheLinkBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.engine(t)
	s := w.newPod(t, "twin")
	other := strconv.Itoa(netnstest.New(t).Start(t, "sleep", "600"))
	w.host.Run(t, "ip", "link", "add", s.hostVeth(), "up", "type", "veth", "peer", "name", "eth0", "netns", other)
	w.host.Run(t, "ip", "route", "add", "192.0.2.77", "dev", s.hostVeth())
	w.enforce(t, e, true, map[string]string{s.hostVeth(): "of the other"})
	if a := w.host.call(t, s.call(t, "ADD", policed(1))); a.exit == 0 {
		t.Fatalf("ADD has wired it: %+v", a)
	}
	if uid := s.inForce(t); uid != "" {
		t.Errorf("before the agent has heard of it the policies of %q are in force", uid)
	}
	w.enforce(t, e, true, map[string]string{s.hostVeth(): "of the other"})
	if uid := s.inForce(t); uid != "of the other" {
		t.Errorf("the policies of %q are in force", uid)
	}
}

// Where the agent has left policies to another engine nothing is closed, also while it does not run.
func TestPolicyOfAnotherEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tellFacts(t, func(f *facts.Facts) { f.NoPolicies, f.Written = true, time.Now().Add(-time.Hour) })
	s := w.newPod(t, "web")
	w.addInForce(t, s)
	if tables := w.host.Run(t, "nft", "list", "tables"); strings.Contains(tables, netpol.TableName) {
		t.Errorf("tables: %s", tables)
	}
}
