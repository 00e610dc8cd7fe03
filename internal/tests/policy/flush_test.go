package policy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
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

// still is what an API server knows that nothing happens to.
type still struct{ view cluster.PolicyView }

func (still) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (still) Changed() <-chan struct{}      { return nil }
func (s still) Take() cluster.PolicyView    { return s.view }
func (still) Want(policy.Interest)          {}

// guarded is a node whose policies an agent's worker keeps in force. They let no packet from the client to the web pod.
type guarded struct {
	*policytest.Rig
	client, web string // links
	*policies.Worker
}

// newGuarded has more policies for the web pod, besides, and as many pods that they select.
func newGuarded(t *testing.T, more int) *guarded {
	t.Helper()
	g := &guarded{Rig: policytest.NewRig(t)}
	view := cluster.PolicyView{Listed: true, Complete: true, NodesKnown: true, More: true, Pods: map[policy.PodKey]*policy.Pod{},
		Namespaces: map[string]map[string]string{"a": {}}}
	for i, name := range []string{"client", "web"} {
		key := policy.PodKey{Namespace: "a", Name: name}
		link := podnet.HostVethName(podnet.DefaultVethPrefix, key.Namespace, key.Name)
		a, _ := policytest.PodAddress(i)
		g.Cable(t, link, byte(100+i))
		g.Neighbours(t, link, a)
		route := netlinkx.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: g.Host.Link(t, link).Index, Scope: netlinkx.ScopeLink, Protocol: netlinkx.ProtocolBoot}
		if err := g.Host.Conn.ReplaceRoute(route); err != nil {
			t.Fatal(err)
		}
		view.Local = append(view.Local, key)
		view.Pods[key] = &policy.Pod{PodKey: key, UID: name, Labels: map[string]string{"app": name}, Addresses: []netip.Addr{a}}
	}
	g.client, g.web = podnet.HostVethName(podnet.DefaultVethPrefix, "a", "client"), podnet.HostVethName(podnet.DefaultVethPrefix, "a", "web")
	for i := range more + 1 {
		p := ingress("web", fmt.Sprintf("[{from: [{ipBlock: {cidr: 10.1.%d.%d/32}}], ports: [{protocol: UDP, port: %d}]}]", i/256, i%256, 1000+i))
		p.Name = fmt.Sprint("web-", i)
		view.NetworkPolicies = append(view.NetworkPolicies, &p)
	}
	g.work(t, view)
	return g
}

func (g *guarded) work(t *testing.T, view cluster.PolicyView) {
	engine := netpol.New(g.Host.Namespace, podnet.DefaultVethPrefix)
	g.Worker = policies.New(policies.Options{
		Mode: config.PolicyOn, Feed: still{view}, Engine: engine, Kernel: g.Host.Conn, Table: nft.New(g.Host.Namespace),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := g.Run(ctx); err != nil {
			t.Errorf("the worker ended: %v", err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait(); engine.Close() })
	waittest.Until(t, 10*time.Second, "in force", func() bool { return g.Seen().Enforcing })
}

var denied = udp(v4.client, v4.web, 53)

// flood sends the denied packet, each of a connection of its own, until the function has returned, and returns when each was sent by its number.
func (g *guarded) flood(t *testing.T, while func()) map[uint64]time.Time {
	t.Helper()
	sent, stop := map[uint64]time.Time{}, make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			now := time.Now()
			number, err := g.Send(g.client, denied)
			if err != nil {
				t.Error(err)
				return
			}
			sent[number] = now
		}
	})
	while()
	close(stop)
	running.Wait()
	return sent
}

func TestFlushedByHand(t *testing.T) {
	for _, more := range []int{0, 1000} {
		g := newGuarded(t, more)
		for _, script := range []string{"delete table inet tortie-policy", "flush ruleset", "flush table inet tortie-policy", "flush map inet tortie-policy to"} {
			t.Run(fmt.Sprint(more, " ", script), func(t *testing.T) {
				for range 4 {
					g.flushed(t, script)
				}
			})
		}
	}
}

func (g *guarded) flushed(t *testing.T, script string) {
	begun := time.Now()
	var took time.Duration
	sent := g.flood(t, func() {
		time.Sleep(100 * time.Millisecond)
		before := time.Now()
		g.Host.Run(t, "nft", script)
		took = time.Since(before)
		time.Sleep(500 * time.Millisecond)
	})
	span := time.Since(begun)
	came := map[uint64]string{}
	g.Await(came, nil)
	var first, last time.Time
	for number := range came {
		at := sent[number]
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	t.Logf("%d sent, %.0f/s, %d came, during %v; nft took %v; applies %d took %v %+v", len(sent), float64(len(sent))/span.Seconds(), len(came), last.Sub(first), took, g.Seen().Applies, g.Seen().Took, g.Seen().Stats)
}

var _ api.NetworkPolicy
