package netpol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// of returns the sample with the policies of one pod at cali1.
func of(uid, ingress string) *policy.Ruleset {
	rs := sample()
	rs.Endpoints["cali1"] = policy.Endpoint{UID: uid, Programs: [2]string{ingress, ""}}
	return rs
}

// owner is the comment of a link's element, which names a pod, and its verdict.
func owner(t *testing.T, ns *netnstest.NS, link string) string {
	t.Helper()
	return ns.Run(t, "sh", "-c", fmt.Sprintf(`nft list map inet tortie-policy to | grep -o '"%s"[^,}]*' | sed 's/ *$//' || true`, link))
}

func closeOther(link, uid string) error {
	_, err := netpol.CloseOther(link, uid)
	return err
}

// TestHeld: whatever happens and however long it takes, a link that was closed for a pod never has the policies of the
// pod before.
func TestHeld(t *testing.T) {
	ns := netnstest.New(t)
	ns.Run(t, "ip", "link", "add", "cali1", "type", "veth", "peer", "name", "peer")
	closeFor := func(uid string) { t.Helper(); ns.Within(t, func() error { return closeOther("cali1", uid) }) }
	want := func(when, want string) {
		t.Helper()
		if got := owner(t, ns, "cali1"); got != want && got != want+"\n" {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	const closed = `"cali1" comment "closed for uid-7" : drop`
	e := newEngine(t, ns)
	mustSync(t, e, of("uid-1", "web"))
	closeFor("uid-7")
	want("at first", closed)
	mustSync(t, e, of("uid-1", ""))
	e.Age(24 * time.Hour)
	mustSync(t, e, of("uid-1", "web"))
	want("after a day", closed)
	for _, script := range []string{"flush map inet tortie-policy to", "delete table inet tortie-policy"} {
		ns.Run(t, "nft", script)
		mustSync(t, e, of("uid-1", "web"))
		want("after "+script, closed)
	}
	e.Close()
	e = newEngine(t, ns)
	mustSync(t, e, of("uid-1", "web"))
	want("after a restart", closed)
	none := sample()
	delete(none.Endpoints, "cali1")
	mustSync(t, e, none)
	mustSync(t, e, of("uid-3", "web")) // one that came and went between the two
	want("another pod of the name", closed)
	steady(t, ns, e, of("uid-3", "web"))

	open := of("uid-1", "")
	open.Closed = false
	mustSync(t, e, open)
	want("without policies", `"cali1" comment "closed for uid-7" : accept`)
	closeFor("uid-7")
	want("without policies, again", `"cali1" comment "closed for uid-7" : accept`)
	mustSync(t, e, of("uid-1", "web"))
	want("with the first policy", closed)

	mustSync(t, e, of("uid-7", ""))
	want("known", `"cali1" comment "uid-7" : accept`)
	steady(t, ns, e, of("uid-7", ""))

	closeFor("uid-8")
	mustSync(t, e, of("uid-7", ""))
	ns.Run(t, "ip", "link", "del", "cali1")
	mustSync(t, e, of("uid-7", "web"))
	want("while ADD has not made the link", `"cali1" comment "closed for uid-8" : drop`)
	e.Age(24 * time.Hour)
	mustSync(t, e, none)
	want("the plugin has died, and there is no link", "")
}

// TestHeldBetween: a transaction that the engine has prepared does not undo what the plugin has done meanwhile.
func TestHeldBetween(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	mustSync(t, e, of("uid-1", "web"))
	calls := 0
	err := e.StepByStep(t.Context(), of("uid-1", "out"), 1, func() {
		if calls++; calls == 1 {
			ns.Within(t, func() error { return closeOther("cali1", "uid-7") })
		}
	})
	if text := owner(t, ns, "cali1"); text != "\"cali1\" comment \"closed for uid-7\" : drop\n" || !errors.Is(err, nft.ErrChanged) {
		t.Errorf("%s after %d transactions: %v", text, calls, err)
	}
}

// TestGivenBackBetween: an ADD that failed does not give back what another one has closed meanwhile, nor does it open
// what the agent has closed.
func TestGivenBackBetween(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	open := of("uid-1", "")
	open.Closed = false
	giveBack := func(between func() error) {
		t.Helper()
		mustSync(t, e, open)
		ns.Within(t, func() error { return closeOther("cali1", "uid-6") })
		mustSync(t, e, open)
		once := false
		ns.Within(t, func() error {
			return netpol.ReplaceBetween("cali1", "uid-6", func() error {
				if once {
					return nil
				}
				once = true
				return between()
			})
		})
	}
	giveBack(func() error { return closeOther("cali1", "uid-7") })
	if got, want := owner(t, ns, "cali1"), "\"cali1\" comment \"closed for uid-7\" : accept\n"; got != want {
		t.Errorf("closed by another ADD: %q, want %q", got, want)
	}
	mustSync(t, e, of("uid-7", ""))
	giveBack(func() error {
		_, err := e.Sync(t.Context(), of("uid-1", ""), nil)
		return err
	})
	if got, want := owner(t, ns, "cali1"), "\"cali1\" comment \"closed for the pod before\" : drop\n"; got != want {
		t.Errorf("closed by the agent: %q, want %q", got, want)
	}
}

// TestHeldInTime: the same while an engine works, and others change other tables.
func TestHeldInTime(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	var pod atomic.Int32
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			if _, err = e.Sync(ctx, of(fmt.Sprint("uid-", pod.Load()), []string{"web", "out", ""}[i%3]), nil); i%5 == 0 && err == nil {
				ns.Run(t, "nft", "add table inet other")
			}
		}
		done <- err
	}()
	is := func(uid string) (same bool) {
		ns.Within(t, func() error {
			now, _, err := netpol.InForce("cali1")
			same = now == uid
			return err
		})
		return same
	}
	for i := range 150 {
		waittest.Until(t, 10*time.Second, "the next pod is known", func() bool { return is(fmt.Sprint("uid-", i)) })
		ns.Within(t, func() error { return closeOther("cali1", fmt.Sprint("uid-", i+1)) })
		for range 20 {
			if !is("") {
				t.Fatalf("the policies of pod %d are in force at the link of the next", i)
			}
		}
		pod.Add(1)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestHeldIsGivenBack: a link that a failed ADD has closed is given back to the pod that had it, and stays closed if it
// was closed for another pod before.
func TestHeldIsGivenBack(t *testing.T) {
	for name, restart := range map[string]bool{"agent running": false, "agent restarted": true} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			ns.Run(t, "ip", "link", "add", "cali1", "type", "veth", "peer", "name", "peer")
			e := newEngine(t, ns)
			sync := func() {
				t.Helper()
				if restart {
					e.Close()
					e = newEngine(t, ns)
				}
				mustSync(t, e, of("uid-1", ""))
			}
			closeFor := func(uid string) (giveBack func()) {
				t.Helper()
				var back func() error
				ns.Within(t, func() (err error) { back, err = netpol.CloseOther("cali1", uid); return err })
				return func() { t.Helper(); ns.Within(t, func() error { return back() }) }
			}
			want := func(when, want string) {
				t.Helper()
				if got := strings.TrimSpace(owner(t, ns, "cali1")); got != want {
					t.Errorf("%s: %q, want %q", when, got, want)
				}
			}
			const first, seventh = `"cali1" comment "uid-1" : accept`, `"cali1" comment "closed for uid-7" : drop`
			sync()
			failed := closeFor("uid-6")
			sync()
			failed()
			want("given back", `"cali1" comment "closed for the pod before" : drop`)
			sync()
			want("known to the agent", first)
			failed()
			want("given back again", first)

			known := closeFor("uid-7")
			sync()
			closeFor("uid-8")()
			want("given back to the next but one", seventh)
			again := closeFor("uid-7")
			again()
			sync()
			want("what another ADD of the pod has closed", seventh)
			closeFor("uid-9")
			known()
			want("closed for another one meanwhile", `"cali1" comment "closed for uid-9" : drop`)
		})
	}
}
