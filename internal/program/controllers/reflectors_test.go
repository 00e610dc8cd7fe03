package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// reflecting are the settings of kube-controllers that make reflectors from four nodes on.
var reflecting = []string{"TORTIE_AUTOMATIC_REFLECTORS=true", "TORTIE_REFLECTORS_ABOVE=4", "TORTIE_REFLECTORS_PAUSE=1s"}

// readyNode creates a Ready node with an agent's address, in a zone.
func (w *world) readyNode(i int, annotations map[string]string) {
	w.t.Helper()
	n := &api.Node{
		Meta: api.Meta{Name: fmt.Sprintf("node%d", i), Labels: map[string]string{api.LabelZone: fmt.Sprint("zone-", i%3)},
			Annotations: map[string]string{api.AnnotationIPv4Address: fmt.Sprintf("192.0.2.%d/24", i)}},
		Status: api.NodeStatus{Conditions: []api.NodeCondition{
			{Type: api.NodeReady, Status: "True", LastTransitionTime: "2026-01-01T00:00:00Z"}}},
	}
	for key, value := range annotations {
		n.Annotations[key] = value
	}
	w.create(n)
}

// grantReflectors gives the controllers the rights of a chart, in place of the default ones.
func (w *world) grantReflectors(chart []*unstructured.Unstructured) {
	w.t.Helper()
	labtest.AsOn(w.t, w.admin, account)
	labtest.GrantAll(w.t, w.admin, chart)
}

// reflectors returns the nodes with label and annotation, as in "node1 192.0.2.1".
func (w *world) reflectors() (all []string, err error) {
	var list api.List[api.Node, *api.Node]
	err = w.store.List(w.t.Context(), &list, datastore.ListOptions{})
	for _, n := range list.Items {
		if _, ours := n.Labels[api.LabelReflector]; ours {
			all = append(all, n.Name+" "+n.Annotations[api.AnnotationReflector])
		}
	}
	slices.Sort(all)
	return all, err
}

// reflects returns an error unless the nodes of these numbers are the reflectors, in place of a mesh.
func (w *world) reflects(numbers ...int) error {
	var want []string
	for _, i := range numbers {
		want = append(want, fmt.Sprintf("node%d 192.0.2.%d", i, i))
	}
	got, err := w.reflectors()
	if err != nil {
		return err
	}
	c := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	if err := w.store.Get(w.t.Context(), c); err != nil {
		return err
	}
	if on := c.Spec.NodeToNodeMeshEnabled; !slices.Equal(got, want) || on == nil || *on || c.Annotations[api.AnnotationReflectors] == "" {
		return fmt.Errorf("reflectors %q, want %q; mesh: %+v", got, want, c)
	}
	if c.Spec.NodeMeshPassword != nil || c.Spec.NodeMeshMaxRestartTime != "" {
		return fmt.Errorf("settings of a mesh that is off: %+v", c.Spec)
	}
	p := &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}}
	if err := w.store.Get(w.t.Context(), p); err != nil {
		return err
	}
	if place, ok := p.Spec.Password.Place(); !ok || place.Name != "bgp" || p.Spec.MaxRestartTime != "60s" {
		return fmt.Errorf("BGPPeer without the mesh's settings: %+v", p.Spec)
	}
	return nil
}

// bgpWrites returns the number of requests that changed Nodes and objects of BGP; looks is the number of a leader's
// looks.
func bgpWrites(t *testing.T, server *labtest.Server) (done, looks int) {
	t.Helper()
	for _, r := range server.AuditedRequests(t) {
		switch bgp := r.Resource == "bgppeers" || r.Resource == "bgpconfigurations"; {
		case bgp && r.Verb == "get":
			looks++
		case (bgp || r.Resource == "nodes") && slices.Contains([]string{"patch", "create", "update", "delete"}, r.Verb):
			done++
		}
	}
	return done, looks
}

// looksOn waits for four more looks, and returns the writes.
func looksOn(t *testing.T, server *labtest.Server) int {
	t.Helper()
	_, before := bgpWrites(t, server)
	done := 0
	eventually(t, func() error {
		n, looks := bgpWrites(t, server)
		if done = n; looks < before+8 {
			return fmt.Errorf("%d looks after %d", looks, before)
		}
		return nil
	})
	return done
}

// The leader makes three nodes reflectors with the rights and within the fence of the chart, and then writes nothing.
// Another leader continues, replaces a reflector after its Node's deletion, and restores the mesh when there are too
// few nodes.
func TestReflectors(t *testing.T) {
	t.Parallel() // its servers, which stay fenced, are not handed on: so it does not come first
	for _, in := range groups.All {
		t.Run(string(in), func(t *testing.T) {
			t.Parallel()
			testReflectors(t, in)
		})
	}
}

func testReflectors(t *testing.T, in groups.Group) {
	server := taken(t, in)
	w := newWorldOf(t, server, groups.In(in))
	chart := labtest.Chart(t, "--set", "bgp.automaticReflectors=true")
	labtest.FenceWith(t, w.admin, chart)
	w.grantReflectors(chart)
	for i := 1; i <= 3; i++ {
		w.readyNode(i, nil)
	}
	w.create(&api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{NodeMeshMaxRestartTime: "60s",
		NodeMeshPassword: &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "bgp", Key: "password"}}}})
	p := w.start("one", "", reflecting...)
	leads(t, p)
	if looksOn(t, server); w.reflects() == nil {
		t.Error("three nodes have reflectors")
	}
	for i := 4; i <= 6; i++ {
		w.readyNode(i, nil)
	}
	eventually(t, func() error { return w.reflects(1, 2, 3) })
	eventually(t, func() error {
		s, err := p.status()
		if err == nil && !slices.Equal(s.RouteReflectors, []string{"node1", "node2", "node3"}) {
			err = fmt.Errorf("status: %+v", s)
		}
		return err
	})
	before := looksOn(t, server)
	if after := looksOn(t, server); after != before {
		t.Errorf("%d writes after %d, and nothing is to be done", after, before)
	}
	p.kill()
	w.deleteNode("node2")
	next := w.start("two", "", reflecting...)
	eventually(t, func() error { return w.reflects(1, 3, 5) })
	before = looksOn(t, server)
	if after := looksOn(t, server); after != before {
		t.Errorf("%d writes after %d beside another leader", after, before)
	}
	w.fencesSessions(in)
	for _, name := range []string{"node4", "node5", "node6"} {
		w.deleteNode(name)
	}
	eventually(t, w.meshed)
	next.kill()
}

// meshed returns an error unless the mesh is on as before, and no reflector remains.
func (w *world) meshed() error {
	if all, err := w.reflectors(); err != nil || len(all) > 0 {
		return fmt.Errorf("reflectors %q, %w", all, err)
	}
	if err := w.store.Get(w.t.Context(), &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}}); !errors.Is(err, datastore.ErrNotFound) {
		return fmt.Errorf("the BGPPeer is there: %w", err)
	}
	c := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	if err := w.store.Get(w.t.Context(), c); err != nil {
		return err
	}
	place, _ := c.Spec.NodeMeshPassword.Place()
	if on := c.Spec.NodeToNodeMeshEnabled; on == nil || !*on || place.Name != "bgp" || c.Spec.NodeMeshMaxRestartTime != "60s" ||
		c.Annotations[api.AnnotationReflectors] != "" {
		return fmt.Errorf("mesh: %+v", c)
	}
	return nil
}

// fencesSessions checks that the controllers' token can make no sessions between nodes except reflectors'.
func (w *world) fencesSessions(in groups.Group) {
	t := w.t
	t.Helper()
	store, err := cluster.OpenStore(cluster.Server{Config: labtest.AsOn(t, w.admin, account), Group: groups.In(in)})
	errtest.Must(t, err)
	c := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, store.Get(t.Context(), c))
	p := &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}}
	errtest.Must(t, store.Get(t.Context(), p))
	spec := func(text string) map[string]any { return map[string]any{"spec": json.RawMessage(text)} }
	for what, err := range map[string]error{
		"another BGPPeer": store.Create(t.Context(), &api.BGPPeer{Meta: api.Meta{Name: "other"},
			Spec: api.BGPPeerSpec{PeerIP: "192.0.2.250", ASNumber: 64512}}),
		"another BGPConfiguration": store.Create(t.Context(), &api.BGPConfiguration{Meta: api.Meta{Name: "node.node1"}}),
		"another peer":             store.MergePatch(t.Context(), p, spec(`{"peerSelector":"all()"}`)),
		"another field of it":      store.MergePatch(t.Context(), p, spec(`{"nextHopMode":"Self"}`)),
		"another AS number":        store.MergePatch(t.Context(), c, spec(`{"asNumber":64999}`)),
	} {
		if !errors.Is(err, datastore.ErrUnauthorized) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An operator's reflector, and a BGPPeer of the same name, are left alone and named.
func TestReflectorsOfOperators(t *testing.T) {
	t.Parallel()
	server := taken(t, labtest.Group(t))
	w := newWorld(t, server)
	w.grantReflectors(labtest.Chart(t, "--set", "bgp.automaticReflectors=true"))
	for i := 1; i <= 5; i++ {
		w.readyNode(i, nil)
	}
	w.readyNode(6, map[string]string{api.AnnotationReflector: "244.0.0.1"})
	p := w.start("one", "", reflecting...)
	says := func(text string) {
		t.Helper()
		eventually(t, func() error {
			s, err := p.status()
			if err == nil && !strings.Contains(s.ReflectorProblem, text) {
				err = fmt.Errorf("status: %q, want %q", s.ReflectorProblem, text)
			}
			return err
		})
	}
	says("Node node6: annotation " + api.AnnotationReflector)
	peer := &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}, Spec: api.BGPPeerSpec{PeerIP: "192.0.2.250", ASNumber: 64512}}
	w.create(peer)
	says("BGPPeer tortie-reflectors: it is not kube-controllers'")
	looksOn(t, server)
	if all, err := w.reflectors(); err != nil || len(all) > 0 {
		t.Errorf("%q, %v", all, err)
	}
	var stored = &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}}
	errtest.Must(t, w.store.Get(t.Context(), stored))
	if stored.ResourceVersion != peer.ResourceVersion {
		t.Errorf("the operator's BGPPeer was changed: %+v", stored)
	}
	if err := w.store.Get(t.Context(), &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}}); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("BGPConfiguration default: %v", err)
	}
}
