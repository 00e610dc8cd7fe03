package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// awaitAssignment waits for wake-ups until the Assignment is as wanted.
func awaitAssignment(t *testing.T, w *Watch, what string, wanted func(state.Assignment) bool) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for !wanted(w.Assignment()) {
		select {
		case <-w.AssignmentChanged():
		case <-limit:
			t.Fatalf("%s: the assignment never became as wanted: %+v", what, w.Assignment())
		}
	}
}

func TestAssignmentFollowsTheCluster(t *testing.T) {
	w, store := watchReal(t)
	if a := w.Assignment(); a.Node != nil || a.Config != nil || a.Information != nil {
		t.Fatalf("before: %+v", a)
	}
	ready := true
	for _, obj := range []api.Resource{
		&api.Node{Meta: api.Meta{Name: "watched", Labels: map[string]string{"zone": "a"}}},
		&api.IPPool{Meta: api.Meta{Name: "watched"}, Spec: api.IPPoolSpec{CIDR: "10.81.0.0/16"}},
		&api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: api.IPAMConfigSpec{StrictAffinity: true, MaxBlocksPerHost: 3}},
		&api.IPReservation{Meta: api.Meta{Name: "watched"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.81.0.0/30"}}},
		&api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &ready}},
		claim("watched", "10.81.0.0/26"), claim("somebody-else", "10.81.1.0/26"),
	} {
		create(t, store, obj)
	}
	ns := &api.Namespace{Meta: api.Meta{Name: "watched", Labels: map[string]string{"team": "blue"}, Annotations: map[string]string{
		api.AnnotationIPv4Pools: `["watched"]`, "someone.else/big": "left out",
	}}}
	create(t, store, ns)
	find := func(a state.Assignment) *api.Namespace {
		i := slices.IndexFunc(a.Namespaces, func(n api.Namespace) bool { return n.Name == "watched" })
		if i < 0 {
			return nil
		}
		return &a.Namespaces[i]
	}
	awaitAssignment(t, w, "all there", func(a state.Assignment) bool {
		return a.Node != nil && len(a.Pools) == 1 && a.Config != nil && len(a.Reservations) == 1 && a.Information != nil &&
			len(a.Affinities) == 1 && find(a) != nil
	})
	a := w.Assignment()
	if a.Node.Labels["zone"] != "a" || !a.Config.Spec.StrictAffinity || a.Config.Spec.MaxBlocksPerHost != 3 ||
		a.Reservations[0].Spec.ReservedCIDRs[0] != "10.81.0.0/30" || !*a.Information.Spec.DatastoreReady {
		t.Errorf("assignment: %+v", a)
	}
	// The affinity goes into a guarded write as it is.
	if own := a.Affinities[0]; own.Spec.CIDR != "10.81.0.0/26" || own.UID == "" || own.ResourceVersion == "" || own.Labels["kept"] != "yes" {
		t.Errorf("affinity: %+v", own)
	}
	if n := find(a); n.Annotations[api.AnnotationIPv4Pools] != `["watched"]` || len(n.Annotations) != 1 || n.Labels["team"] != "blue" {
		t.Errorf("namespace: %+v", n)
	}
}

func claim(node, cidr string) *api.BlockAffinity {
	return &api.BlockAffinity{
		Meta: api.Meta{Name: node, Labels: map[string]string{"kept": "yes"}},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, CIDR: cidr, Type: "host"},
	}
}

// In a big cluster others change all the time: who writes facts is not to be woken by it.
func TestOthersChangesWakeNoAssignment(t *testing.T) {
	cfg, err := Connect(labtest.API(t), "test")
	errtest.Must(t, err)
	w, store := newWatch(t, cfg), storeAt(t, cfg)
	w.assignment = make(chan struct{}, 100) // which counts the wake-ups
	start(t, w)
	for quiet := false; !quiet; {
		select {
		case <-w.AssignmentChanged():
		case <-time.After(300 * time.Millisecond):
			quiet = true
		}
	}
	drain(w)
	const others = 3 // more than the two changes below, which the stores may show a moment before they wake
	for i := range others {
		create(t, store, &api.Node{Meta: api.Meta{Name: fmt.Sprint("other-", i), Labels: map[string]string{"zone": "b"}}})
		create(t, store, claim(fmt.Sprint("other-", i), fmt.Sprintf("10.81.2.%d/26", 64*i)))
	}
	// Events of one kind arrive in order: with these events, the events of the others have arrived.
	create(t, store, &api.Node{Meta: api.Meta{Name: "watched"}})
	create(t, store, claim("watched", "10.81.3.0/26"))
	waittest.Until(t, 10*time.Second, "a change of this node does not wake", func() bool {
		a := w.Assignment()
		return len(a.Affinities) == 1 && a.Node != nil && len(w.assignment) > 0
	})
	if n := len(w.assignment); n >= others {
		t.Errorf("%d wake-ups for two changes of this node", n)
	}
}

func probe(t *testing.T, w *Watch) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return w.Probe(ctx)
}

// proves waits for a probe that succeeds: a list is complete a moment before its watch is open.
func proves(t *testing.T, w *Watch) {
	t.Helper()
	waittest.For(t, 20*time.Second, func() error { return probe(t, w) })
}

// What is confirmed must be true: neither a silent connection nor a lost one confirms anything.
func TestConfirmedIsHonest(t *testing.T) {
	cfg, err := Connect(labtest.API(t), "test")
	errtest.Must(t, err)
	wire, wired := labtest.NewWire(t, cfg)
	w := watchAt(t, wired)
	store := storeAt(t, cfg)

	began := time.Now()
	proves(t, w) // no ClusterInformation, and none seen
	waittest.Until(t, 20*time.Second, "spare connections are closed", func() bool { return wire.Connections() == 1 })
	before := w.Confirmed()
	if before.Before(began) {
		t.Errorf("after a probe that began at %s: confirmed at %s", began, before)
	}
	create(t, store, &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}})
	awaitAssignment(t, w, "the object", func(a state.Assignment) bool { return a.Information != nil })
	if !w.Confirmed().After(before) {
		t.Error("an event confirmed nothing")
	}

	wire.Stall()
	silenced := time.Now()
	if err := probe(t, w); err == nil {
		t.Error("a probe went through a silent connection")
	}
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, store.Get(t.Context(), info))
	info.Spec.ClusterType = "changed unseen"
	errtest.Must(t, store.Update(t.Context(), info))
	if w.Confirmed().After(silenced) {
		t.Error("confirmed although nothing comes through")
	}

	// The connections end and nobody can make new ones: all that is seen is old.
	wire.Reset()
	waittest.Until(t, 20*time.Second, "the watches have ended", func() bool { return !w.streams.allOpen() })
	if err := probe(t, w); err == nil {
		t.Error("a probe succeeded without open watches")
	}
	if w.Confirmed().After(silenced) {
		t.Error("confirmed although all watches are lost")
	}
	wire.Resume()
	mended := time.Now()
	awaitAssignment(t, w, "what changed meanwhile",
		func(a state.Assignment) bool { return a.Information.Spec.ClusterType == "changed unseen" })
	waittest.For(t, 40*time.Second, func() error { // client-go waits longer after each failure
		err := probe(t, w)
		if err == nil && !w.Confirmed().After(mended) {
			t.Fatal("a probe succeeded and confirmed nothing")
		}
		return err
	})
}

func storeAt(t *testing.T, cfg *rest.Config) *kubernetes.Store {
	t.Helper()
	store, err := OpenStore(Server{Config: cfg, Group: labtest.Current(t)})
	errtest.Must(t, err)
	return store
}

func watchAt(t *testing.T, cfg *rest.Config) *Watch {
	t.Helper()
	w := newWatch(t, cfg)
	start(t, w)
	return w
}

func newWatch(t *testing.T, cfg *rest.Config) *Watch {
	t.Helper()
	at, log := Server{Config: cfg, Group: labtest.Current(t)}, slog.New(slog.NewTextHandler(t.Output(), nil))
	w, err := NewWatch(at, "watched", "kube-system", log)
	errtest.Must(t, err)
	return w
}

// start has a Watch run until the test ends, and returns when it has its first lists.
func start(t *testing.T, w *Watch) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	errtest.Must(t, w.WaitForSync(limit, w.log))
}
