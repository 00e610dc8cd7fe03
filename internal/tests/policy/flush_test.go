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

// feed is the view of an API server.
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

// guarded is a node with policies that an agent's worker keeps in force. They deny packets from the client to the web
// pod.
type guarded struct {
	*policytest.Rig
	client, web string // links
	feed
	known cluster.PolicyView
	*policies.Worker
	sent   atomic.Int64 // packets of flood
	mended chan int64   // how many had been sent after a Sync that has mended the table
}

// mending signals when the table is mended.
type mending struct {
	policies.Engine
	*guarded
}

func (m mending) Sync(ctx context.Context, rules *policy.Ruleset, touched []netip.Addr) (netpol.Stats, error) {
	stats, err := m.Engine.Sync(ctx, rules, touched)
	if stats.Foreign && stats.Transactions > 0 {
		select {
		case m.mended <- m.sent.Load():
		default:
		}
	}
	return stats, err
}

// newGuarded has more policies for the web pod besides, none of which names another pod.
func newGuarded(t *testing.T, more int) *guarded {
	t.Helper()
	g := &guarded{Rig: policytest.NewRig(t), feed: feed{changed: make(chan struct{}, 1)}, client: linkOf("client"), web: linkOf("web"),
		mended: make(chan int64, 1)}
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
		Mode: config.PolicyOn, Feed: &g.feed, Engine: mending{engine, g}, Kernel: g.Host.Conn, Table: nft.New(g.Host.Namespace),
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

// Flushed rules are made again on the kernel's event. That is not at once: some packets come through, but few even
// where the table takes long to make, as links are shut before, and none once it is made. The connections that began so
// end.
func TestFlushedByHand(t *testing.T) {
	for name, more := range map[string]int{"one policy": 0, "a thousand more": 1000} {
		g := newGuarded(t, more)
		for what, script := range map[string]string{
			"table deleted": "delete table inet tortie-policy", "all flushed": "flush ruleset", "table flushed": "flush table inet tortie-policy",
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				came, sent := g.flushed(t, script)
				t.Logf("%d came through of %d packets that were sent before the table was made", came, sent)
				if more > 0 && came > sent/2 {
					t.Error("links were not shut before")
				}
			})
		}
	}
}

// flushed returns how many packets were sent from the flush until the table was made, and how many came through.
func (g *guarded) flushed(t *testing.T, script string) (came, made int64) {
	t.Helper()
	answered := map[uint64]bool{}
	until := func(what string, so func() bool) {
		t.Helper()
		waittest.Until(t, 20*time.Second, what, func() bool { g.answer(t, answered); return so() })
	}
	more := func(than int64) func() bool { return func() bool { return g.sent.Load() > than+100 } }
	g.sent.Store(0)
	stop := g.flood(t)
	until("packets before the flush", more(0))
	for len(g.mended) > 0 {
		<-g.mended // of the shut links of an earlier flush
	}
	flushed := g.sent.Load()
	g.Host.Run(t, "nft", script)
	until("the table is made", func() bool {
		select {
		case made = <-g.mended:
			return true
		default:
			return false
		}
	})
	until("packets after it", more(g.sent.Load()))
	sent := stop()
	g.answer(t, answered)
	begun := map[uint16]bool{} // source ports, which a long flood uses again
	for i, number := range sent {
		switch at, port := int64(i), denied.PortOf(number); {
		case !answered[number]:
		case at >= flushed && at <= made: // one may be on its way
			begun[port] = true
		case !begun[port]: // nor is it of a connection that began meanwhile, and has not been ended yet
			t.Errorf("packet %d came through: the flush was after %d, and the table was made after %d", at, flushed, made)
		}
	}
	g.ended(t, answered)
	return int64(len(answered)), made - flushed
}

// flood sends the denied packet, each of a connection of its own, until the returned function is called, which returns
// their numbers.
func (g *guarded) flood(t *testing.T) (stop func() []uint64) {
	t.Helper()
	var numbers []uint64
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			for range 20 { // fewer at a time than the rig has source ports
				number, err := g.Send(g.client, denied)
				if err != nil {
					t.Error(err)
				}
				numbers = append(numbers, number)
				g.sent.Add(1)
			}
		}
	})
	stop = func() []uint64 { cancel(); running.Wait(); return numbers }
	t.Cleanup(func() { stop() })
	return stop
}

// answer answers what has come through, so that the connections are established.
func (g *guarded) answer(t *testing.T, answered map[uint64]bool) {
	t.Helper()
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

// Flushed rules come back while new policies wait for pods that have not been listed.
func TestFlushedWhileWaiting(t *testing.T) {
	g := newGuarded(t, 0)
	more := ingress("web", fmt.Sprintf("[{from: %s}]", pods("unlisted")))
	more.Name = "unlisted"
	g.known.NetworkPolicies = append(slices.Clip(g.known.NetworkPolicies), &more)
	passes := g.Seen().Passes
	g.tell(g.known)
	waittest.Until(t, 10*time.Second, "the new policy is read", func() bool { return g.Seen().Passes > passes })
	g.Host.Run(t, "nft", "delete table inet tortie-policy")
	<-g.mended
	if text := g.Host.Run(t, "nft", "list ruleset"); !strings.Contains(text, "chain ingress") || len(g.Seen().Unlisted) > 0 {
		t.Errorf("unlisted: %v, the table is\n%s", g.Seen().Unlisted, text)
	}
}
