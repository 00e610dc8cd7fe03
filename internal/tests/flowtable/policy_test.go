package flowtable

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// feed tells of one local pod, and of policies.
type feed struct {
	changed chan struct{}

	mu   sync.Mutex
	view cluster.PolicyView
}

func newFeed(addr netip.Addr) *feed {
	key := policy.PodKey{Namespace: "default", Name: "pod"}
	return &feed{changed: make(chan struct{}, 1), view: cluster.PolicyView{
		Node: "node", Listed: true, Complete: true, NodesKnown: true, More: true, Local: []policy.PodKey{key},
		Pods:       map[policy.PodKey]*policy.Pod{key: {PodKey: key, UID: "uid", Addresses: []netip.Addr{addr}}},
		Namespaces: map[string]map[string]string{"default": {}},
	}}
}

func (f *feed) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (f *feed) Changed() <-chan struct{} { return f.changed }

func (f *feed) Want(policy.Interest)     {}
func (f *feed) SetGround(cluster.Ground) {}

func (f *feed) Take() cluster.PolicyView {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view
}

// set has these policies alone.
func (f *feed) set(all ...*api.NetworkPolicy) {
	f.mu.Lock()
	f.view.NetworkPolicies = all
	f.mu.Unlock()
	f.changed <- struct{}{}
}

// enforce runs the agent's part for policies of a node.
func enforce(t *testing.T, r *rig, node int) *feed {
	t.Helper()
	n := r.Nodes[node]
	engine := netpol.New(n.NS, podnet.DefaultVethPrefix)
	f := newFeed(n.PodAddr())
	w := policies.New(policies.Options{
		Mode: config.PolicyOn, Feed: f, Engine: engine, Kernel: n.Conn, Table: nft.New(n.NS), Flowtable: r.fast[node],
		Log:   slog.New(slog.DiscardHandler),
		Drops: func(ctx context.Context) (<-chan netpol.Drop, error) { return netpol.Drops(ctx, n.NS) },
	})
	w.SetHostRules(policy.HostRules{})
	w.SetHandling(policy.Handling{}, "")
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		errtest.Must(t, g.Wait())
		engine.Close()
	})
	waittest.Until(t, patience, "policies are in place", w.InPlace)
	return f
}

// allowOnly is a policy that lets TCP to a port pass in a direction.
func allowOnly(direction string, port int32) *api.NetworkPolicy {
	allow := &api.NetworkPolicy{Meta: api.Meta{Name: "allow", Namespace: "default"},
		Spec: api.NetworkPolicySpec{PolicyTypes: []string{direction}}}
	ports := []api.NetworkPolicyPort{{Port: &api.IntOrString{Number: port}}}
	if direction == "Egress" {
		allow.Spec.Egress = []api.NetworkPolicyEgressRule{{Ports: ports}}
	} else {
		allow.Spec.Ingress = []api.NetworkPolicyIngressRule{{Ports: ports}}
	}
	return allow
}

// stop fails the test unless connections, which a policy forbids since now, exchange nothing any more within a second.
func stop(t *testing.T, denied ...talk) {
	t.Helper()
	start := time.Now()
	for _, c := range denied {
		for c.exchange(1, 100*time.Millisecond) == nil {
			if time.Since(start) > soon {
				t.Fatalf("%s: what a policy forbids passes for longer than %v", c.RemoteAddr().Network(), soon)
			}
		}
	}
}

// TestDenied: a connection that is in the flowtables of both nodes, and that a policy at either end forbids, stops
// within a second, by TCP and by UDP. One that stays allowed goes on, and comes back to the flowtable; so does all when
// the policy goes.
func TestDenied(t *testing.T) {
	directions := []string{"Egress", "Ingress"}
	for i, e := range []pathtest.Encap{pathtest.Routes, pathtest.Routes, pathtest.IPIP, pathtest.IPIP, pathtest.VXLAN, pathtest.VXLAN6} {
		node, direction := i%2, directions[i%2]
		t.Run(e.Name+", "+direction, func(t *testing.T) {
			r := newRig(t, e)
			from, to := r.Nodes[0], r.Nodes[1]
			f := enforce(t, r, node)
			denied, stays := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7000), open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7001)
			datagrams := open(t, "udp", from.Pod, to.Pod, to.PodAddr(), 7002)
			for i, c := range []talk{denied, stays, datagrams} {
				c.settle(t, 7000+i, from, to)
			}
			f.set(allowOnly(direction, 7001))
			stop(t, denied, datagrams)
			stays.settle(t, 7001, from, to)
			f.set()
			again := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7003)
			again.settle(t, 7003, from, to)
		})
	}
}

// TestDeniedEncrypted: of connections over WireGuard, for which there is no flowtable, those that a policy at either
// end comes to forbid stop within a second, and nothing passes of one that is forbidden from the start. One that stays
// allowed goes on.
func TestDeniedEncrypted(t *testing.T) {
	for node, direction := range []string{"Egress", "Ingress"} {
		t.Run(direction, func(t *testing.T) {
			r := newRig(t, pathtest.WireGuard)
			from, to := r.Nodes[0], r.Nodes[1]
			f, server := enforce(t, r, node), to.PodAddr()
			count := received(t, to, wireguard.Device4)
			denied, stays := open(t, "tcp", from.Pod, to.Pod, server, 7000), open(t, "tcp", from.Pod, to.Pod, server, 7001)
			datagrams := open(t, "udp", from.Pod, to.Pod, server, 7002)
			for _, c := range []talk{denied, stays, datagrams} {
				errtest.Must(t, c.exchange(50, patience))
			}
			if by := count(); by < 150 {
				t.Fatalf("%d packets have come by %s, want 150 at least", by, wireguard.Device4)
			}
			f.set(allowOnly(direction, 7001))
			stop(t, denied, datagrams)
			for i, network := range []string{"tcp", "udp"} {
				at := netip.AddrPortFrom(server, uint16(7003+i))
				errtest.Must(t, to.Pod.Do(func() error { return echo(t, network, at.String()) }))
				has := meter(t, to.Pod, int(at.Port()))
				c, err := dial(t, network, from.Pod, at, soon)
				if network == "udp" {
					err = errors.Join(err, c.exchange(1, soon))
				}
				if got := has(); err == nil || got.Arrived.Packets > 0 {
					t.Errorf("%s that a policy forbids: %v, %d packets have arrived", network, err, got.Arrived.Packets)
				}
			}
			errtest.Must(t, stays.exchange(50, soon))
			f.set()
			again := open(t, "tcp", from.Pod, to.Pod, server, 7005)
			errtest.Must(t, again.exchange(50, patience))
		})
	}
}
