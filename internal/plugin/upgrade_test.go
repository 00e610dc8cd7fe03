package plugin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
)

func TestLeaseOwner(t *testing.T) {
	l := &lease{address: netip.MustParseAddr("10.244.3.5"), container: "c1"}
	pod := func(name string, edit func(*api.Pod)) api.Pod {
		p := api.Pod{Meta: api.Meta{Name: name, Annotations: map[string]string{}}}
		edit(&p)
		return p
	}
	says := func(p *api.Pod) { p.Status = api.PodStatus{Phase: "Running", PodIP: "10.244.3.5"} }
	for _, tt := range []struct {
		name string
		pods []api.Pod
		want string
	}{
		{"nobody", nil, ""},
		{"the kubelet's word before the annotation that names the container", []api.Pod{
			pod("thief", func(p *api.Pod) {
				p.Annotations[api.AnnotationContainerID], p.Annotations[api.AnnotationPodIP] = "c1", "10.244.3.5/32"
			}),
			pod("own", says),
		}, "own"},
		{"of two by the kubelet's word the container's", []api.Pod{
			pod("other", says),
			pod("own", func(p *api.Pod) { says(p); p.Annotations[api.AnnotationContainerID] = "c1" }),
		}, "own"},
		{"the container's before one that states the address", []api.Pod{
			pod("other", func(p *api.Pod) { p.Annotations[api.AnnotationPodIP] = "10.244.3.5/32" }),
			pod("own", func(p *api.Pod) { p.Annotations[api.AnnotationContainerID] = "c1" }),
		}, "own"},
		{"even if it has ended", []api.Pod{pod("own", func(p *api.Pod) {
			p.Annotations[api.AnnotationContainerID], p.Status.Phase = "c1", "Succeeded"
		})}, "own"},
		{"by the kubelet's word", []api.Pod{pod("own", says)}, "own"},
		{"by the second address", []api.Pod{pod("own", func(p *api.Pod) {
			p.Status = api.PodStatus{PodIP: "fd00::5", PodIPs: []api.PodIP{{IP: "fd00::5"}, {IP: "10.244.3.5"}}}
		})}, "own"},
		{"by the annotations of an ADD that is just over", []api.Pod{pod("own", func(p *api.Pod) {
			p.Annotations[api.AnnotationPodIPs] = "fd00::5/128,10.244.3.5/32"
		})}, "own"},
		{"one that has ended said so once", []api.Pod{
			pod("ended", func(p *api.Pod) { says(p); p.Status.Phase = "Failed" }),
			pod("own", says),
		}, "own"},
		{"the node's own network has the node's address", []api.Pod{pod("host", func(p *api.Pod) { says(p); p.Spec.HostNetwork = true })}, ""},
		{"another address", []api.Pod{pod("other", func(p *api.Pod) { p.Status.PodIP = "10.244.3.50" })}, ""},
	} {
		got := ""
		if p := l.owner(tt.pods); p != nil {
			got = p.Name
		}
		if got != tt.want {
			t.Errorf("%s: pod %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestTunnelAddress(t *testing.T) {
	for _, tt := range []struct {
		cidrs []string
		want  string
	}{
		{[]string{"10.244.3.0/24"}, "10.244.3.1"},
		{[]string{"fd00:3::/64", "10.244.4.0/22"}, "10.244.4.1"},
		{[]string{"fd00:3::/64"}, ""},
		{[]string{"10.244.3.5/32", "none"}, ""},
		{nil, ""},
	} {
		got, ok := tunnelAddress(&api.Node{Spec: api.NodeSpec{PodCIDRs: tt.cidrs}})
		if ok != (tt.want != "") || ok && got.String() != tt.want {
			t.Errorf("%v: %v, %v; want %q", tt.cidrs, got, ok, tt.want)
		}
	}
}

// migrating returns migrations of nodes of a real API server; it restores the shared ClusterInformation after the test.
func migrating(t *testing.T, nodes ...string) []*migration {
	t.Helper()
	store := labstore.Store(t)
	ready := true
	putInformation(t, store, &ready, "")
	t.Cleanup(func() { putInformation(t, store, &ready, "") })
	all := make([]*migration, len(nodes))
	for i, node := range nodes {
		all[i] = &migration{log: slog.New(slog.NewTextHandler(io.Discard, nil)), node: node, store: store}
	}
	return all
}

func putInformation(t *testing.T, store *kubernetes.Store, ready *bool, nodes string) {
	t.Helper()
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	if err := store.Get(context.Background(), info); err != nil && !errors.Is(err, datastore.ErrNotFound) {
		t.Fatal(err)
	}
	info.Spec.DatastoreReady, info.Annotations = ready, nil
	if nodes != "" {
		info.Annotations = map[string]string{annotationUpgrading: nodes}
	}
	write := store.Update
	if info.ResourceVersion == "" {
		write = store.Create
	}
	errtest.Must(t, write(context.Background(), info))
}

func (m *migration) wantLock(t *testing.T, ready bool, by string) {
	t.Helper()
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, m.store.Get(t.Context(), info))
	if got := info.Annotations[annotationUpgrading]; *info.Spec.DatastoreReady != ready || got != by {
		t.Errorf("ready %v, locked by %q; want %v, %q", *info.Spec.DatastoreReady, got, ready, by)
	}
}

func do(t *testing.T, steps ...func() error) {
	t.Helper()
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
}

// Nodes migrate at the same time. The datastore is ready again when the last one is done.
func TestUpgradeLockIsShared(t *testing.T) {
	nodes := migrating(t, "a", "b")
	a, b := nodes[0], nodes[1]
	lock := func(m *migration) func() error { return func() error { return m.lock(t.Context()) } }
	unlock := func(m *migration) func() error { return func() error { return m.unlock(t.Context()) } }
	do(t, unlock(a)) // of what it has not locked
	a.wantLock(t, true, "")
	do(t, lock(a), lock(b), lock(a))
	a.wantLock(t, false, "a,b")
	do(t, unlock(a), unlock(a))
	a.wantLock(t, false, "b")
	do(t, unlock(b))
	a.wantLock(t, true, "")

	// An operator opened the lock by hand while node dead was listed: the name no longer counts.
	ready, locked := true, false
	putInformation(t, a.store, &ready, "dead")
	do(t, lock(b))
	b.wantLock(t, false, "b")
	do(t, unlock(b))
	b.wantLock(t, true, "")

	putInformation(t, a.store, &locked, "")
	if err := a.lock(t.Context()); !errors.Is(err, errDatastoreNotReady) {
		t.Errorf("an operator's lock: %v", err)
	}
	do(t, unlock(a))
	a.wantLock(t, false, "")

	// Many at once: no write gets lost.
	putInformation(t, a.store, &ready, "")
	many := migrating(t, "1", "2", "3", "4", "5", "6", "7", "8")
	results := make(chan error)
	for _, m := range many {
		go func() { results <- errors.Join(m.lock(t.Context()), m.unlock(t.Context())) }()
	}
	for range many {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	a.wantLock(t, true, "")
}
