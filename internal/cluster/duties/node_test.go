package duties

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
)

// aNode makes a Node that goes with the test.
func aNode(t *testing.T, store *kubernetes.Store, name string, annotations map[string]string) *api.Node {
	t.Helper()
	labstore.Make(t, store, &api.Node{Meta: api.Meta{Name: name, Annotations: annotations}})
	return read(t, store, name)
}

func read(t *testing.T, store *kubernetes.Store, name string) *api.Node {
	t.Helper()
	n := &api.Node{Meta: api.Meta{Name: name}}
	errtest.Must(t, store.Get(t.Context(), n))
	return n
}

func TestAnnounce(t *testing.T) {
	store := labstore.Store(t)
	node := aNode(t, store, "announced", map[string]string{"other": "stays", api.AnnotationIPv4TunnelAddr: "10.1.1.1"})
	want := map[string]string{api.AnnotationIPv4Address: "10.0.0.1/24", api.AnnotationIPv4TunnelAddr: ""}
	errtest.Must(t, Announce(t.Context(), store, node.Annotations, node.Name, want))
	got := read(t, store, node.Name)
	difftest.Want(t, "annotations", map[string]string{"other": "stays", api.AnnotationIPv4Address: "10.0.0.1/24"}, got.Annotations)
	// What is right already is not written again.
	errtest.Must(t, Announce(t.Context(), store, got.Annotations, got.Name, want))
	if again := read(t, store, node.Name); again.ResourceVersion != got.ResourceVersion {
		t.Error("a Node that was right was written")
	}
}

// The condition over the life of a node: each step is one pass of an agent.
func TestAvailability(t *testing.T) {
	store := labstore.Store(t)
	node := aNode(t, store, "condition", nil)
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	agent := NewAvailability(store, node.Name, clock)
	broken := errors.New("nftables: no such device\nand more")
	away := fmt.Errorf("list: %w", datastore.ErrUnavailable)
	flip := func(status string) {
		patch := kubernetes.Patch{
			Status: map[string]any{"conditions": []api.NodeCondition{{Type: api.NetworkUnavailable, Status: status, Reason: "SomebodyElse"}}},
		}
		errtest.Must(t, store.PatchStatus(t.Context(), &api.Node{Meta: api.Meta{Name: node.Name}}, patch, false))
	}
	for _, step := range []struct {
		what    string
		before  func()
		after   time.Duration // since the step before
		broken  error
		want    string // status and reason; empty: no condition
		written bool
	}{
		{what: "a new node whose first pass fails", broken: broken},
		{what: "its first pass that succeeds", after: time.Second, want: "False CalicoIsUp", written: true},
		{what: "steady state", after: time.Minute, want: "False CalicoIsUp"},
		{what: "a cloud's controller says otherwise", before: func() { flip("True") }, after: time.Minute,
			want: "False CalicoIsUp", written: true},
		{what: "and at once again", before: func() { flip("True") }, after: time.Second, want: "True SomebodyElse"},
		{what: "a little later", after: time.Minute, want: "False CalicoIsUp", written: true},
		{what: "a restart that does not succeed", before: func() { agent = NewAvailability(store, node.Name, clock) }, after: time.Hour,
			broken: broken, want: "False CalicoIsUp"},
		{what: "still", after: 4 * time.Minute, broken: broken, want: "False CalicoIsUp"},
		{what: "for long", after: time.Minute, broken: broken, want: "True CalicoIsDown", written: true},
		{what: "and longer", after: time.Hour, broken: broken, want: "True CalicoIsDown"},
		{what: "somebody says that it is fine", before: func() { flip("False") }, after: time.Minute, broken: broken,
			want: "True CalicoIsDown", written: true},
		{what: "it serves again", after: time.Minute, want: "False CalicoIsUp", written: true},
		{what: "the API server is away", after: time.Hour, broken: away, want: "False CalicoIsUp"},
		{what: "for hours", after: 5 * time.Hour, broken: errors.Join(broken, away), want: "False CalicoIsUp"},
		{what: "what fails, fails since now", after: time.Minute, broken: broken, want: "False CalicoIsUp"},
	} {
		if step.before != nil {
			step.before()
		}
		now = now.Add(step.after)
		seen := read(t, store, node.Name)
		if err := agent.Sync(t.Context(), seen.Status.Conditions, step.broken); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		got := read(t, store, node.Name)
		text := ""
		for _, c := range got.Status.Conditions {
			text = c.Status + " " + c.Reason
			if c.Reason == reasonDown && (!strings.Contains(c.Message, "no such device") || strings.Contains(c.Message, "and more")) {
				t.Errorf("%s: message %q", step.what, c.Message)
			}
		}
		if written := got.ResourceVersion != seen.ResourceVersion; text != step.want || written != step.written {
			t.Errorf("%s: condition %q, written %v; want %q, %v", step.what, text, written, step.want, step.written)
		}
	}
	errtest.Must(t, store.Delete(t.Context(), read(t, store, node.Name)))
	now = now.Add(time.Hour)
	if err := agent.Sync(t.Context(), nil, nil); err != nil {
		t.Errorf("a Node that is gone: %v", err)
	}
}

func TestLabelAffinities(t *testing.T) {
	store := labstore.Store(t)
	old := &api.BlockAffinity{
		Meta: api.Meta{Name: "label-node-10-84-0-0-26"},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: "label-node", CIDR: "10.84.0.0/26"},
	}
	virtual := &api.BlockAffinity{
		Meta: api.Meta{Name: "label-virtual"},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: "label-node", CIDR: "10.84.0.64/26",
			Type: api.AffinityVirtual},
	}
	for _, a := range []*api.BlockAffinity{old, virtual} {
		labstore.Make(t, store, a)
	}
	list := func() api.BlockAffinityList {
		var l api.BlockAffinityList
		errtest.Must(t, store.List(t.Context(), &l, datastore.ListOptions{Host: "label-node"}))
		return l
	}
	if l := list(); len(l.Items) != 0 {
		t.Fatalf("affinities without labels are listed: %+v", l.Items)
	}
	stale := *old
	stale.ResourceVersion = "1"
	if err := LabelAffinities(t.Context(), store, []api.BlockAffinity{stale}); err != nil {
		t.Errorf("somebody was faster: %v", err)
	}
	own := []api.BlockAffinity{*old, *virtual}
	errtest.Must(t, LabelAffinities(t.Context(), store, own))
	l := list()
	if len(l.Items) != 1 || l.Items[0].Name != old.Name || l.Items[0].Spec.State != api.AffinityConfirmed {
		t.Fatalf("listed by label: %+v", l.Items)
	}
	before := l.Items[0].ResourceVersion
	errtest.Must(t, LabelAffinities(t.Context(), store, l.Items))
	if l := list(); l.Items[0].ResourceVersion != before {
		t.Error("an affinity that has its labels was written")
	}
}
