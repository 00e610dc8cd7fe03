package policy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// feed is what an API server tells.
type feed struct {
	view    atomic.Pointer[cluster.PolicyView]
	changed chan struct{}
}

func (*feed) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (f *feed) Changed() <-chan struct{}    { return f.changed }
func (f *feed) Take() cluster.PolicyView    { return *f.view.Load() }
func (*feed) Want(policy.Interest)          {}
func (*feed) SetGround(cluster.Ground)      {}

func (f *feed) tell(v cluster.PolicyView) {
	f.view.Store(&v)
	f.changed <- struct{}{}
}

// guarded is a node whose policies an agent's worker keeps in force. They let no packet from the client to the web pod.
type guarded struct {
	*policytest.Rig
	client, web string // links
	feed
	known cluster.PolicyView
	*policies.Worker
}

// newGuarded has more policies for the web pod besides, none of which names another pod.
func newGuarded(t *testing.T, more int) *guarded {
	t.Helper()
	g := &guarded{Rig: policytest.NewRig(t), feed: feed{changed: make(chan struct{}, 1)}, client: linkOf("client"), web: linkOf("web")}
	g.known = cluster.PolicyView{Listed: true, Complete: true, NodesKnown: true, More: true, Pods: map[policy.PodKey]*policy.Pod{},
		Namespaces: map[string]map[string]string{"a": {}}}
	for i, name := range []string{"client", "web"} {
		key := policy.PodKey{Namespace: "a", Name: name}
		link := linkOf(name)
		a, _ := policytest.PodAddress(i)
		g.Cable(t, link, byte(100+i))
		g.Neighbours(t, link, a)
		route := netlinkx.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: g.Host.Link(t, link).Index, Scope: netlinkx.ScopeLink,
			Protocol: netlinkx.ProtocolBoot}
		if err := g.Host.Conn.ReplaceRoute(route); err != nil {
			t.Fatal(err)
		}
		g.known.Local = append(g.known.Local, key)
		g.known.Pods[key] = &policy.Pod{PodKey: key, UID: name, Labels: map[string]string{"app": name}, Addresses: []netip.Addr{a}}
	}
	for i := range more + 1 {
		p := ingress("web", fmt.Sprintf("[{from: [{ipBlock: {cidr: 10.1.%d.%d/32}}], ports: [{protocol: UDP, port: %d}]}]", i/256, i%256, 1000+i))
		p.Name = fmt.Sprint("web-", i)
		g.known.NetworkPolicies = append(g.known.NetworkPolicies, &p)
	}
	silent := egress("web", "[]") // it only answers
	g.known.NetworkPolicies = append(g.known.NetworkPolicies, &silent)
	g.work(t)
	return g
}

func linkOf(pod string) string { return podnet.HostVethName(podnet.DefaultVethPrefix, "a", pod) }

func (g *guarded) work(t *testing.T) {
	engine := netpol.New(g.Host.Namespace, podnet.DefaultVethPrefix)
	g.Worker = policies.New(policies.Options{
		Mode: config.PolicyOn, Feed: &g.feed, Engine: engine, Kernel: g.Host.Conn, Table: nft.New(g.Host.Namespace),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	g.SetHostRules(policy.HostRules{})
	g.tell(g.known)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := g.Worker.Run(ctx); err != nil {
			t.Errorf("the worker ended: %v", err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait(); engine.Close() })
	waittest.Until(t, 10*time.Second, "in force", func() bool { return g.Seen().Enforcing })
}

var denied = udp(v4.client, v4.web, 53)

// What somebody flushes is in force again within 100 ms, however many policies there are. It cannot be at once: some
// packets come through, but the connections that began so end.
func TestFlushedByHand(t *testing.T) {
	for name, more := range map[string]int{"one policy": 0, "a thousand more": 1000} {
		g := newGuarded(t, more)
		for what, script := range map[string]string{
			"table deleted": "delete table inet tortie-policy", "all flushed": "flush ruleset", "table flushed": "flush table inet tortie-policy",
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				const tries = 5 // a busy machine may stop the worker for longer
				for range tries {
					if g.flushed(t, script) <= 100*time.Millisecond {
						return
					}
				}
				t.Errorf("never in force again within 100 ms")
			})
		}
	}
}

// flushed returns for how long packets came through that are denied.
func (g *guarded) flushed(t *testing.T, script string) time.Duration {
	t.Helper()
	answered := map[uint64]bool{}
	begun := time.Now()
	sent := g.flood(t, func() {
		g.answer(t, 50*time.Millisecond, answered)
		g.Host.Run(t, "nft", script)
		g.answer(t, 300*time.Millisecond, answered)
	})
	rate := float64(len(sent)) / time.Since(begun).Seconds()
	g.answer(t, 10*time.Millisecond, answered)
	var first, last time.Time
	for number := range answered {
		if at := sent[number]; first.IsZero() || at.Before(first) {
			first = at
		}
		if at := sent[number]; at.After(last) {
			last = at
		}
	}
	t.Logf("of %d packets, %.0f per second, %d came through, in %v", len(sent), rate, len(answered), last.Sub(first))
	g.ended(t, answered)
	return last.Sub(first)
}

// flood sends the denied packet, each of a connection of its own, until the function has returned, and returns when
// each was sent by its number.
func (g *guarded) flood(t *testing.T, while func()) map[uint64]time.Time {
	t.Helper()
	sent, stop := map[uint64]time.Time{}, make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for range 20 { // fewer at a time than the rig has source ports
				now := time.Now()
				number, err := g.Send(g.client, denied)
				if err != nil {
					t.Error(err)
				}
				sent[number] = now
			}
		}
	})
	while()
	close(stop)
	running.Wait()
	return sent
}

// answer answers what comes through for a while, so that the connections are established.
func (g *guarded) answer(t *testing.T, span time.Duration, answered map[uint64]bool) {
	t.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		g.Receive(func(a policytest.Arrival) {
			if a.Place != g.web {
				return
			}
			answered[a.Number] = true
			if _, err := g.Answer(g.web, denied, a.Number); err != nil {
				t.Error(err)
			}
		})
	}
}

// ended waits until nothing more comes through of connections.
func (g *guarded) ended(t *testing.T, connections map[uint64]bool) {
	t.Helper()
	waittest.Until(t, 20*time.Second, "end of the connections that began meanwhile", func() bool {
		for number := range connections {
			if err := g.Again(g.client, denied, number); err != nil {
				t.Fatal(err)
			}
		}
		came := map[uint64]string{}
		g.Await(came, nil)
		for number := range connections {
			if came[number] == g.web {
				return false
			}
		}
		return true
	})
}

// What somebody flushes comes back while new policies wait for pods that have not been listed.
func TestFlushedWhileWaiting(t *testing.T) {
	g := newGuarded(t, 0)
	more := ingress("web", fmt.Sprintf("[{from: %s}]", pods("unlisted")))
	more.Name = "unlisted"
	g.known.NetworkPolicies = append(slices.Clip(g.known.NetworkPolicies), &more)
	passes := g.Seen().Passes
	g.tell(g.known)
	waittest.Until(t, 10*time.Second, "the new policy is read", func() bool { return g.Seen().Passes > passes })
	begun := time.Now()
	g.Host.Run(t, "nft", "delete table inet tortie-policy")
	waittest.Until(t, 10*time.Second, "the table is back",
		func() bool { return strings.Contains(g.Host.Run(t, "nft", "list ruleset"), "chain ingress") })
	if took := time.Since(begun); took > time.Second {
		t.Errorf("back after %v", took)
	}
}
