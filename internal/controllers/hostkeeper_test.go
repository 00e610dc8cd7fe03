package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// shownHosts is a feed that shows what was.
type shownHosts []*api.CalicoHostEndpoint

func (s shownHosts) HostEndpoints() ([]*api.CalicoHostEndpoint, bool) { return s, s != nil }

// Watches may be behind: an existing Node, and a host endpoint that another client has changed or created since, keep
// theirs.
func TestHostKeeperBehind(t *testing.T) {
	on := HostSettings{Auto: enabled, Default: true}
	store := datastoretest.NewFake()
	node, stored := &api.Node{Meta: api.Meta{Name: "a"}}, automatic("a-auto-hep", "a", "*", "")
	errtest.Must(t, store.Create(t.Context(), node))
	errtest.Must(t, store.Create(t.Context(), stored))
	shown := *stored
	k := &hostKeeper{store: store, feed: shownHosts{&shown}, log: slog.New(slog.DiscardHandler)}
	sync := func(feed hostFeed, ready bool, s HostSettings, nodes ...inventory.Node) (problems []string) {
		t.Helper()
		k.feed = feed
		problems, err := k.sync(t.Context(), &inventory.View{Ready: ready, Nodes: nodes}, s)
		errtest.Must(t, err)
		return problems
	}
	there := func() bool {
		err := store.Get(t.Context(), &api.CalicoHostEndpoint{Meta: api.Meta{Name: "a-auto-hep"}})
		return err == nil
	}
	off := HostSettings{Auto: disabled}
	for what, s := range map[string]func(){
		"the Node is there":       func() { sync(shownHosts{&shown}, true, on) },
		"the datastore is locked": func() { sync(shownHosts{&shown}, false, off) },
		"nothing is listed":       func() { sync(shownHosts(nil), true, off) },
		"policies are off":        func() { sync(nil, true, off) },
		"another made it":         func() { sync(shownHosts{}, true, on, hostNode("a")) },
	} {
		if s(); !there() {
			t.Fatalf("%s: it was removed", what)
		}
	}
	stored.Spec.InterfaceName = "eth0"
	errtest.Must(t, store.Update(t.Context(), stored))
	sync(shownHosts{&shown}, true, on, hostNode("a", "192.0.2.1"))
	sync(shownHosts{&shown}, true, off)
	got := &api.CalicoHostEndpoint{Meta: api.Meta{Name: "a-auto-hep"}}
	if err := store.Get(t.Context(), got); err != nil || got.Spec.InterfaceName != "eth0" || len(got.Spec.ExpectedIPs) > 0 {
		t.Errorf("one that another client has changed: %+v, %v", got.Spec, err)
	}
	errtest.Must(t, store.Delete(t.Context(), node))
	if sync(shownHosts{got}, true, on); there() {
		t.Error("the Node is gone, and it is not")
	}

	if problems := sync(nil, true, on); len(problems) != 1 || !strings.Contains(problems[0], "policy.enabled") {
		t.Errorf("problems %q", problems)
	}
	for i := range 2 * mostProblems {
		on.Templates = append(on.Templates, api.HostEndpointTemplate{GenerateName: fmt.Sprintf("T%d", i)})
	}
	if problems := sync(shownHosts{}, true, on); len(problems) != mostProblems+1 || problems[mostProblems] != "and 10 more" {
		t.Errorf("problems %q", problems)
	}
}

// refusing is a datastore that takes nothing new.
type refusing struct {
	*datastoretest.Fake
	err   error
	tries int
}

func (r *refusing) Create(context.Context, api.Resource) error {
	r.tries++
	return r.err
}

// If all writes would fail alike only one is made, for any number of nodes. A missing right is reported, and is not a
// failure: it may be intended.
func TestHostKeeperIsRefused(t *testing.T) {
	view := &inventory.View{Ready: true, Nodes: []inventory.Node{hostNode("a"), hostNode("b"), hostNode("c")}}
	for _, tc := range []struct {
		err             error
		tries, problems int
		fails           bool
	}{
		{datastore.ErrUnauthorized, 1, 1, false}, {datastore.ErrUnavailable, 1, 0, true}, {datastore.ErrNotFound, 1, 0, true},
		{datastore.ErrExists, 3, 0, false}, {errors.New("too large"), 3, 0, true},
	} {
		store := &refusing{Fake: datastoretest.NewFake(), err: tc.err}
		k := &hostKeeper{store: store, feed: shownHosts{}, log: slog.New(slog.DiscardHandler)}
		problems, err := k.sync(t.Context(), view, HostSettings{Auto: enabled, Default: true})
		if store.tries != tc.tries || len(problems) != tc.problems || errors.Is(err, tc.err) != tc.fails || (err != nil) != tc.fails {
			t.Errorf("%v: %d tries, problems %q, %v", tc.err, store.tries, problems, err)
		}
	}
}
