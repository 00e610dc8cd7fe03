package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// soonMoved bounds the wait for a move, which takes a second or two.
const soonMoved = time.Minute

// move is a cluster with the definitions of both groups, of which a Watch follows Calico's objects.
type move struct {
	cfg     *rest.Config
	store   *kubernetes.Store // as the program's own
	watch   *Watch
	arrived chan groups.Group
	arrive  chan error
	proxy   *labtest.Proxy // between the program and the API server
}

func newMove(t *testing.T) *move {
	server := labtest.NewServerOf(t, groups.V1)
	server.Define(t, groups.V3)
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	cfg, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig())
	errtest.Must(t, err)
	m := &move{cfg: cfg, arrived: make(chan groups.Group), arrive: make(chan error), proxy: proxy}
	at := Finding(cfg, "")
	m.store, err = OpenStore(at)
	errtest.Must(t, err)
	m.makePool(t, groups.V1, "first")
	m.say(t, groups.V1, true)
	errtest.Must(t, m.store.Create(t.Context(), &api.Node{Meta: api.Meta{Name: "moving"}}))
	m.watch, err = NewWatch(at, "moving", "kube-system", slog.New(slog.NewTextHandler(t.Output(), nil)))
	errtest.Must(t, err)
	m.watch.OnArrival(groups.V1, groups.V1, func(ctx context.Context, in groups.Group) error {
		select {
		case m.arrived <- in:
			return <-m.arrive
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { _ = m.watch.Run(ctx) }()
	errtest.Must(t, m.watch.WaitForSync(ctx, slog.New(slog.DiscardHandler)))
	return m
}

// looks waits until the program has looked at the ClusterInformations by itself, and has acted on that.
func (m *move) looks(t *testing.T) {
	t.Helper()
	const request, ofLook = "get clusterinformations", 2
	before := m.proxy.Requests()[request]
	waittest.Until(t, soonMoved, "the program has looked at both groups", func() bool {
		return m.proxy.Requests()[request] >= before+3*ofLook // the first look may have been under way
	})
}

// stays has the program look at the other group, and checks that it does not follow there.
func (m *move) stays(t *testing.T, in groups.Group, pool string) {
	t.Helper()
	m.looks(t)
	m.shows(t, in, true, pool)
	m.refuses(t)
}

// say creates or updates the ClusterInformation of a group.
func (m *move) say(t *testing.T, in groups.Group, ready bool) {
	t.Helper()
	store, info := m.store.In(in), &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	write := store.Update
	if err := store.Get(t.Context(), info); errors.Is(err, datastore.ErrNotFound) {
		write = store.Create
	} else {
		errtest.Must(t, err)
	}
	info.Spec.DatastoreReady = &ready
	errtest.Must(t, write(t.Context(), info))
}

func (m *move) makePool(t *testing.T, in groups.Group, name string) {
	t.Helper()
	pool := &api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{CIDR: "10.77.0.0/16", NodeSelector: "all()"}}
	errtest.Must(t, m.store.In(in).Create(t.Context(), pool))
}

// shows waits until the Watch shows a group with one pool, and whether objects are held.
func (m *move) shows(t *testing.T, in groups.Group, held bool, pool string) {
	t.Helper()
	waittest.Until(t, soonMoved, "the watch shows "+string(in)+" and "+pool, func() bool {
		a := m.watch.Assignment()
		group, locked := m.watch.Datastore()
		return a.Group == in && a.Held == held && m.watch.DatastoreReady() == !held && group == in && locked == held &&
			slices.ContainsFunc(a.Pools, func(p api.IPPool) bool { return p.Name == pool }) && len(a.Pools) == 1
	})
}

// TestMove has a program see what Calico's migration does, phase by phase: one that is aborted, one that comes to its
// end, the way back, and a last one, after which the definitions of before go.
func TestMove(t *testing.T) {
	t.Parallel()
	m := newMove(t)
	m.shows(t, groups.V1, false, "first")
	m.lock(t, groups.V1, "first")
	m.makePool(t, groups.V3, "second")
	m.say(t, groups.V3, false)
	m.looks(t)
	m.say(t, groups.V1, true)
	m.arrives(t, groups.V1, "first", nil)

	m.lock(t, groups.V1, "first")
	m.say(t, groups.V3, true)
	m.arrives(t, groups.V3, "second", errors.New("not yet"))
	m.arrives(t, groups.V3, "second", nil)

	m.lock(t, groups.V3, "second")
	m.say(t, groups.V1, true)
	m.arrives(t, groups.V1, "first", nil)

	m.lock(t, groups.V1, "first")
	m.say(t, groups.V3, true)
	m.arrives(t, groups.V3, "second", nil)
	m.removeDefinitions(t, groups.V1)
	waittest.For(t, soonMoved, func() error { return m.watch.Probe(t.Context()) })
	errtest.Must(t, m.store.Delete(t.Context(), m.poolIn(t, groups.V3, "second")))
	m.makePool(t, groups.V3, "third")
	m.shows(t, groups.V3, false, "third")
}

// lock has a group locked, and tries to write there.
func (m *move) lock(t *testing.T, in groups.Group, pool string) {
	t.Helper()
	m.say(t, in, false)
	m.shows(t, in, true, pool)
	m.refuses(t)
}

func (m *move) refuses(t *testing.T) {
	t.Helper()
	err := m.store.Create(t.Context(), &api.IPReservation{Meta: api.Meta{Name: "refused"}})
	if !errors.Is(err, datastore.ErrLocked) {
		t.Errorf("write while nothing is to be written: %v, want %v", err, datastore.ErrLocked)
	}
}

// arrives answers what the program asks before it writes in a group.
func (m *move) arrives(t *testing.T, in groups.Group, pool string, answer error) {
	t.Helper()
	if got := <-m.arrived; got != in {
		t.Errorf("arrived in %s, want %s", got, in)
	}
	m.shows(t, in, true, pool)
	m.refuses(t)
	m.arrive <- answer
	if answer == nil {
		m.shows(t, in, false, pool)
	}
}

// TestMoveIsNotFollowed has a program in crd.projectcalico.org/v1 see a ready ClusterInformation in projectcalico.org/v3
// that no migration has written: first one of before the lock, then one without a definition of blocks, as Calico's own
// API server shows it. In between is a migration that locks the earlier one, copies, and unlocks it.
func TestMoveIsNotFollowed(t *testing.T) {
	t.Parallel()
	m := newMove(t)
	m.makePool(t, groups.V3, "second")
	m.say(t, groups.V3, true)
	m.lock(t, groups.V1, "first")
	m.stays(t, groups.V1, "first")
	m.say(t, groups.V1, true) // the migration is aborted
	m.shows(t, groups.V1, false, "first")

	m.lock(t, groups.V1, "first")
	m.stays(t, groups.V1, "first")
	m.say(t, groups.V3, false)
	m.say(t, groups.V3, true)
	m.arrives(t, groups.V3, "second", nil)

	m.lock(t, groups.V3, "second") // something may be copied
	m.looks(t)
	m.say(t, groups.V3, true)
	m.arrives(t, groups.V3, "second", nil)

	m.lock(t, groups.V3, "second")
	m.say(t, groups.V1, true)
	m.arrives(t, groups.V1, "first", nil)
	m.removeDefinitions(t, groups.V3, "ipamblocks")
	waittest.For(t, soonMoved, func() error {
		if has, err := m.store.Defined(t.Context(), groups.V3); err != nil || has != "" {
			return fmt.Errorf("definition of %q, %w", has, err)
		}
		return nil
	})
	m.lock(t, groups.V1, "first")
	m.looks(t)
	m.say(t, groups.V3, true)
	m.stays(t, groups.V1, "first")
	m.say(t, groups.V1, true)
	m.arrives(t, groups.V1, "first", nil)

	m.watch.move.group.Set(groups.V3) // as if the definition had been there for a moment
	m.arrives(t, groups.V3, "second", errors.New("there are no blocks"))
	m.arrives(t, groups.V1, "first", nil)
}

func (m *move) poolIn(t *testing.T, in groups.Group, name string) *api.IPPool {
	t.Helper()
	pool := &api.IPPool{Meta: api.Meta{Name: name}}
	errtest.Must(t, m.store.In(in).Get(t.Context(), pool))
	return pool
}

// removeDefinitions removes the definitions of some plurals, or of all.
func (m *move) removeDefinitions(t *testing.T, of groups.Group, plurals ...string) {
	t.Helper()
	client, err := dynamic.NewForConfig(m.cfg)
	errtest.Must(t, err)
	kind := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	definitions := client.Resource(kind)
	if len(plurals) == 0 {
		plurals, err = m.store.Served(t.Context(), string(of))
		errtest.Must(t, err)
	}
	for _, plural := range plurals {
		if !strings.Contains(plural, "/") { // a subresource
			errtest.Must(t, definitions.Delete(t.Context(), of.Resource(plural), metav1.DeleteOptions{}))
		}
	}
}
