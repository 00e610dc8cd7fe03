package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// scenario is one operation of node-a on handle h in a datastore that was prepared for it.
type scenario struct {
	name    string
	prepare func(*testing.T, datastore.Store)
	do      func(context.Context, *Client) error
	facts   func(*Known) func(context.Context, *Client) error // in place of do: with what an agent of node-a knows
	handle  string                                            // in place of h
	release bool
	held    bool // h holds an address before
	// there is an owned block without a claim before, and there may be one after a failure: nothing else is free to make
	// up for it
	orphan bool
}

var scenarios = []scenario{
	{name: "first pod", do: assignPod("h")},
	{name: "first pod, dual stack", do: assignDual("h")},
	{
		name:    "n-th pod",
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignPod("x")(t.Context(), client(s))) },
		do:      assignPod("h"),
	},
	{
		name: "pending claim without its block",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, newAffinity("node-a", cidr("10.0.0.4/30")))
		},
		do: assignPod("h"),
	},
	{
		name: "pending claim with its block",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, newAffinity("node-a", cidr("10.0.0.4/30")), stored("10.0.0.4/30", "node-a").obj)
		},
		do: assignPod("h"),
	},
	{
		name: "stale claim of somebody else's block",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, claimed("node-a", "10.0.0.4/30", confirmed), stored("10.0.0.4/30", "node-b").obj,
				claimed("node-b", "10.0.0.4/30", confirmed))
		},
		do: assignPod("h"),
	},
	{
		name:   "lost claim",
		orphan: true,
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, poolObject("tiny", "10.1.0.0/30"), stored("10.1.0.0/30", "node-a").obj)
		},
		do: assignFrom("tiny"),
	},
	{
		name: "borrowed",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, poolObject("tiny", "10.1.0.0/30"), claimed("node-b", "10.1.0.0/30", confirmed), stored("10.1.0.0/30", "node-b").obj)
		},
		do: assignFrom("tiny"),
	},
	{
		name:    "repeated request",
		held:    true,
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignPod("h")(t.Context(), client(s))) },
		do:      assignPod("h"),
	},
	{name: "first pod, with facts", facts: withFacts(nil)},
	{name: "first pod, dual stack, with facts", facts: withFacts(func(r *Request) { r.V6 = true })},
	{
		name:    "n-th pod, with facts",
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignPod("x")(t.Context(), client(s))) },
		facts:   withFacts(nil),
	},
	{
		name:    "n-th pod, dual stack, with facts",
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignDual("x")(t.Context(), client(s))) },
		facts:   withFacts(func(r *Request) { r.V6 = true }),
	},
	{
		name: "facts that are out of date",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, stored("10.0.0.12/30", "node-a", "a", "b", "c", "d").obj, claimed("node-a", "10.0.0.12/30", confirmed))
			for _, h := range []string{"a", "b", "c", "d"} {
				mustCreate(t, s, storedHandle(h, "10.0.0.12/30=1"))
			}
		},
		facts: func(k *Known) func(context.Context, *Client) error {
			k.Claims[0].Free = ptr(3)
			return begin(k, podRequest("node-a", "h"))
		},
	},
	{
		name:    "repeated request, with facts",
		held:    true,
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignPod("h")(t.Context(), client(s))) },
		facts:   withFacts(nil),
	},
	{
		name:    "abandoned",
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignPod("x")(t.Context(), client(s))) },
		facts: func(k *Known) func(context.Context, *Client) error {
			return func(ctx context.Context, c *Client) error {
				return c.Begin(ctx, Start{Owner: owner("h"), Host: "node-a", V4: true, Use: api.UseWorkload, Known: k}).Abandon(ctx)
			}
		},
		release: true,
	},
	{name: "an address that is asked for, in a new block", do: assignExplicit("10.0.0.6")},
	{name: "addresses that are asked for, in new blocks", do: assignExplicit("10.0.0.6", "fd00::6")},
	{
		name:    "an address that is asked for, with facts",
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignPod("x")(t.Context(), client(s))) },
		facts:   withFacts(asks("10.0.0.15")),
	},
	{
		name: "a block that somebody else does not use",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, poolObject("tiny", "10.1.0.0/30"), claimed("node-b", "10.1.0.0/30", confirmed),
				aged(stored("10.1.0.0/30", "node-b"), time.Hour).obj)
		},
		do: assignFrom("tiny"),
	},
	{
		name: "collection",
		prepare: func(t *testing.T, s datastore.Store) {
			for _, id := range []string{"dead", "live"} {
				req := containerRequest("node-a", id, clock)
				req.V6 = true
				errtest.Must(t, begin(nil, req)(t.Context(), client(s)))
			}
		},
		do: func(ctx context.Context, c *Client) error {
			_, err := c.Collect(ctx, Collection{Host: "node-a", Network: "net", Live: []string{"live"}})
			return err
		},
		release: true, handle: "net.dead",
	},
	{
		name: "release that lets addresses cool down",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s,
				&api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true, IPCooldownSeconds: 60}})
			errtest.Must(t, assignDual("h")(t.Context(), client(s)))
		},
		do: releasePod("h"), release: true,
	},
	{
		name: "release of a pool that does not select the node any more",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, poolObject("racked", "10.5.0.0/30", func(p *api.IPPool) { p.Spec.NodeSelector = "has(rack)" }),
				claimed("node-a", "10.5.0.0/30", confirmed), stored("10.5.0.0/30", "node-a", "h").obj, storedHandle("h", "10.5.0.0/30=1"))
		},
		facts: func(k *Known) func(context.Context, *Client) error {
			return func(ctx context.Context, c *Client) error {
				_, err := c.ReleaseKnowing(ctx, Owner{Handle: "h"}, "node-a", k)
				return err
			}
		},
		release: true,
	},
	{
		name:    "release",
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignPod("h")(t.Context(), client(s))) },
		do:      releasePod("h"), release: true,
	},
	{
		name:    "release, dual stack",
		prepare: func(t *testing.T, s datastore.Store) { errtest.Must(t, assignDual("h")(t.Context(), client(s))) },
		do:      releasePod("h"), release: true,
	},
	{
		name: "release of an orphan block's last address",
		prepare: func(t *testing.T, s datastore.Store) {
			mustCreate(t, s, stored("10.0.0.4/30", "", "h").obj, storedHandle("h", "10.0.0.4/30=1"))
		},
		do: releasePod("h"), release: true,
	},
}

// withFacts returns a request of node-a with all facts from its agent.
func withFacts(change func(*Request)) func(*Known) func(context.Context, *Client) error {
	req := podRequest("node-a", "h")
	if change != nil {
		change(&req)
	}
	return func(k *Known) func(context.Context, *Client) error { return begin(k, req) }
}

func assignExplicit(addrs ...string) func(context.Context, *Client) error {
	req := podRequest("node-a", "h")
	asks(addrs...)(&req)
	return begin(nil, req)
}

func assignFrom(pool string) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		req := podRequest("node-a", "h")
		req.PoolsV4 = []string{pool}
		_, err := c.Assign(ctx, req)
		return err
	}
}

func assignDual(handle string) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		req := podRequest("node-a", handle)
		req.V6 = true
		_, err := c.Assign(ctx, req)
		return err
	}
}

var faults = map[datastoretest.Fault]string{
	datastoretest.Conflict:    "conflict",
	datastoretest.Unavailable: "unavailable",
	datastoretest.Lost:        "answer lost",
	datastoretest.Late:        "late",
	datastoretest.Crash:       "crash before",
	datastoretest.CrashAfter:  "crash after",
	datastoretest.CrashLate:   "crash, late",
}

// Whatever fault hits whichever request of an operation: it succeeds, or it fails and leaves nothing, or its process
// dies and the next operation on the handle mends what it left. The node can work on in each case, and so can the
// others.
func TestEveryFaultAtEveryRequest(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			for fault, name := range faults {
				for n := 1; ; n++ {
					hit := faultAt(t, sc, fault, n, fmt.Sprintf("%s at request %d", name, n))
					if !hit {
						if n == 1 {
							t.Errorf("%s: no request was made", name)
						}
						break
					}
				}
			}
		})
	}
}

// faultAt runs a scenario with one fault and reports whether there was such a request.
func faultAt(t *testing.T, sc scenario, fault datastoretest.Fault, n int, what string) bool {
	t.Helper()
	store := seeded(t)
	if sc.prepare != nil {
		sc.prepare(t, store)
	}
	if sc.handle == "" {
		sc.handle = "h"
	}
	if sc.facts != nil {
		sc.do = sc.facts(knownTo(t, store, "node-a"))
	}
	before := liveHandles(t, store)
	delete(before, sc.handle)
	hit, tooLate := "", false
	session := store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
		if r.N != n {
			return datastoretest.None
		}
		hit = r.String()
		// The creation of a block or handle that lands after its release is the collector's: no write can be guarded against
		// the creation of what does not exist.
		tooLate = r.Verb == http.MethodPost && r.Kind != "BlockAffinity" && (fault == datastoretest.Late || fault == datastoretest.CrashLate)
		if tooLate {
			return datastoretest.None
		}
		return fault
	})
	err := sc.do(t.Context(), client(session))
	if hit == "" {
		return false
	}
	store.LandLate()
	what += " (" + hit + ")"
	switch {
	case tooLate:
		errtest.Must(t, err)
	case session.Crashed():
		mend(t, store, sc, before, what)
	case fault == datastoretest.Conflict && err != nil:
		t.Errorf("%s: a conflict is not mended: %v", what, err)
	case err != nil && !errors.Is(err, datastore.ErrUnavailable):
		t.Errorf("%s: error %v", what, err)
	case err != nil && sc.release:
		mend(t, store, sc, before, what)
	case err != nil && !sc.held:
		if err := sc.audit(store, before); err != nil {
			t.Errorf("%s: the failed operation left:\n%v\n%s", what, err, dump(store))
		}
	}
	workOn(t, store, sc, before, what)
	return true
}

func (sc scenario) audit(store datastore.Store, live map[string][]netip.Addr) error {
	if !sc.orphan {
		return audit(store, live)
	}
	c, err := readContents(store)
	if err != nil {
		return err
	}
	return c.auditHandles(live)
}

// mend does what follows a process's death: kubelet releases the handle of an assignment; a release is repeated.
func mend(t *testing.T, store datastore.Store, sc scenario, live map[string][]netip.Addr, what string) {
	t.Helper()
	if !sc.release {
		// A repeated request is served as well; it may come before the release.
		if err := sc.do(t.Context(), client(store)); err != nil {
			t.Errorf("%s: the next request: %v", what, err)
		}
	}
	if _, err := client(store).Release(t.Context(), sc.handle); err != nil {
		t.Errorf("%s: the release: %v", what, err)
	}
	if err := sc.audit(store, live); err != nil {
		t.Errorf("%s: after the release:\n%v\n%s", what, err, dump(store))
	}
}

// workOn assigns on all nodes and checks the whole datastore again.
func workOn(t *testing.T, store datastore.Store, sc scenario, live map[string][]netip.Addr, what string) {
	t.Helper()
	if _, err := client(store).Release(t.Context(), sc.handle); err != nil {
		t.Errorf("%s: the release: %v", what, err)
	}
	for _, host := range hosts {
		got, err := client(store).Assign(t.Context(), podRequest(host, "next-on-"+host))
		if err != nil {
			t.Errorf("%s: the next pod of %s: %v", what, host, err)
			continue
		}
		live["next-on-"+host] = addresses(got)
	}
	if err := sc.audit(store, live); err != nil {
		t.Errorf("%s: after the next pods:\n%v\n%s", what, err, dump(store))
	}
}

// liveHandles returns the addresses of the handles in a datastore.
func liveHandles(t *testing.T, store datastore.Store) map[string][]netip.Addr {
	t.Helper()
	var handles api.IPAMHandleList
	errtest.Must(t, store.List(t.Context(), &handles, datastore.ListOptions{}))
	live := map[string][]netip.Addr{}
	for _, h := range handles.Items {
		held, err := client(store).Addresses(t.Context(), h.Spec.HandleID)
		errtest.Must(t, err)
		live[h.Spec.HandleID] = held
	}
	return live
}
