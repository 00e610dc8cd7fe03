package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// stores returns a Store of each group.
func stores(t *testing.T, kubeconfig string) map[groups.Group]*kubernetes.Store {
	t.Helper()
	cfg, err := kubernetes.LoadKubeconfig(kubeconfig)
	errtest.Must(t, err)
	both := map[groups.Group]*kubernetes.Store{}
	for _, in := range groups.All {
		cfg.Group = groups.In(in)
		both[in], err = kubernetes.New(cfg)
		errtest.Must(t, err)
	}
	return both
}

// mover returns a Mover that expects no other writers.
func mover(t *testing.T, kubeconfig string) *Mover {
	t.Helper()
	m := New(stores(t, kubeconfig), t.Logf)
	m.drain, m.answer, m.Namespace = 0, 0, "release"
	return m
}

// golden returns the objects of testdata.
func golden(t *testing.T) (all []*object) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "objects.yaml"))
	errtest.Must(t, err)
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var of struct{ Kind string }
		o := &object{}
		errtest.Must(t, errors.Join(yaml.Unmarshal(part, o), yaml.Unmarshal(part, &of)))
		for _, t := range append(kinds, information) {
			if t.Kind == of.Kind {
				o.of = t
			}
		}
		all = append(all, o)
	}
	return all
}

// fill creates the objects of testdata in crd.projectcalico.org/v1, and one that refers to another.
func fill(t *testing.T, store *kubernetes.Store) {
	t.Helper()
	var owner *object
	for _, o := range golden(t) {
		errtest.Must(t, store.Create(t.Context(), o))
		if o.of.Kind == "IPAMConfig" {
			owner = o // of a kind that is moved later
		}
	}
	refs := fmt.Sprintf(`[{"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMConfig","name":"default","uid":%q},
		{"apiVersion":"v1","kind":"Namespace","name":"default","uid":"a-b"}]`, names.ConvertUID(owner.UID))
	reservation := func(name string, m api.Meta) {
		m.Name = name
		spec := json.RawMessage(`{"reservedCIDRs":["192.168.154.1/32"]}`)
		errtest.Must(t, store.Create(t.Context(), &object{of: kinds[5], Meta: m, Spec: spec}))
	}
	reservation("owned", api.Meta{Foreign: &api.Foreign{OwnerReferences: json.RawMessage(refs)}})
	refs = strings.NewReplacer("crd.projectcalico.org/v1", "projectcalico.org/v3", "IPAMConfig", "IPAMConfiguration").Replace(refs)
	reservation("owned-through-calico", api.Meta{Annotations: map[string]string{
		names.AnnotationMetadata: `{"finalizers":["example.com/kept"],"ownerReferences":` + refs + `}`}})
}

// seen is an object as its readers see it, in either group.
type seen struct {
	Labels, Annotations map[string]string
	Finalizers          []string
	Spec                any
}

// look returns all objects of a group that are not marked deleted.
func look(t *testing.T, store *kubernetes.Store, in groups.Group) map[string]seen {
	t.Helper()
	all, err := (&Mover{Stores: map[groups.Group]*kubernetes.Store{in: store}}).all(t.Context(), in, false)
	errtest.Must(t, err)
	found := map[string]seen{}
	for _, objects := range all {
		for _, o := range objects {
			m := in.Other().MoveMeta(o.of.Kind, o.Meta)
			m = groups.V3.MoveMeta(o.of.Kind, m)
			delete(m.Annotations, migratedBy)
			if len(m.Annotations) == 0 {
				m.Annotations = nil
			}
			s := seen{Labels: m.Labels, Annotations: m.Annotations}
			if m.Foreign != nil {
				s.Finalizers = m.Finalizers
			}
			d := json.NewDecoder(bytes.NewReader(groups.V3.MoveSpec(o.of.Kind, o.Spec)))
			d.UseNumber()
			errtest.Must(t, d.Decode(&s.Spec))
			found[o.of.Kind+" "+o.key()] = s
		}
	}
	return found
}

// same compares what readers see. The definitions of projectcalico.org/v3 add defaults.
func same(t *testing.T, when string, want, got map[string]seen) {
	t.Helper()
	for name, w := range want {
		g, ok := got[name]
		if !ok {
			t.Errorf("%s: no %s", when, name)
			continue
		}
		if at := lacking(g.Spec, w.Spec, "spec"); at != "" {
			t.Errorf("%s: %s: %s (-want +got):\n%s", when, name, at, cmp.Diff(w.Spec, g.Spec))
		}
		g.Spec, w.Spec = nil, nil
		if d := cmp.Diff(w, g, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: %s (-want +got):\n%s", when, name, d)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s is new", when, name)
		}
	}
}

func both(t *testing.T) *labtest.Server {
	t.Helper()
	server := labtest.NewServerOf(t, groups.V1)
	server.Define(t, groups.V3)
	return server
}

// says fails unless the locks are as wanted.
func says(t *testing.T, m *Mover, want phase, v1, v3 groups.Lock) {
	t.Helper()
	s, _, err := m.read(t.Context())
	if err != nil || s.phase != want || s.lock[groups.V1] != v1 || s.lock[groups.V3] != v3 {
		t.Fatalf("state %+v (%v), want %s, v1 %v, v3 %v", s, err, want, v1, v3)
	}
}

// TestThereAndBack moves objects of all kinds to the other group, each write of which is the last one of a run that is
// killed, and back.
func TestThereAndBack(t *testing.T) {
	server := both(t)
	m := mover(t, server.Kubeconfig())
	v1, v3 := m.Stores[groups.V1], m.Stores[groups.V3]
	fill(t, v1)
	before := look(t, v1, groups.V1)
	runs := killed(t, server, groups.V3)
	if runs < len(before) {
		t.Errorf("%d runs were killed, want one for each of %d objects", runs, len(before))
	}
	says(t, m, moved, groups.Locked, groups.Ready)

	want := map[string]seen{}
	for name, s := range before {
		want[strings.Replace(name, "default/default.web", "default/web", 1)] = s
	}
	affinity := want["BlockAffinity gold-node-192-168-154-0-30"]
	affinity.Labels = map[string]string{"projectcalico.org/affinity-type": "host", "projectcalico.org/ip-version": "4",
		"projectcalico.org/hostname-hash": names.HostnameHash("gold-node")}
	want["BlockAffinity gold-node-192-168-154-0-30"] = affinity
	same(t, "in v3", want, look(t, v3, groups.V3))
	ownedBy(t, v3, "projectcalico.org/v3", "IPAMConfiguration")

	if err := m.Start(t.Context(), groups.V1); !errors.Is(err, ErrConflict) {
		t.Errorf("the way back over what is left there: %v, want %v", err, ErrConflict)
	}
	says(t, m, moved, groups.Locked, groups.Ready)
	agents(t, m)
	finish(t, m, groups.V3)
	if left := look(t, v1, groups.V1); len(left) > 0 {
		t.Errorf("finish has left %v", left)
	}
	pool := &object{of: kinds[4], Meta: api.Meta{Name: "pool"}}
	errtest.Must(t, v3.Get(t.Context(), pool))
	pool.of, pool.Foreign = kinds[4], &api.Foreign{Finalizers: append(pool.Finalizers, ofV3[0])}
	errtest.Must(t, v3.Update(t.Context(), pool))

	errtest.Must(t, m.Start(t.Context(), groups.V1))
	says(t, m, moved, groups.Ready, groups.Locked)
	same(t, "back in v1", want, look(t, v1, groups.V1))
	ownedBy(t, v1, "crd.projectcalico.org/v1", "IPAMConfig")
	errtest.Must(t, m.Start(t.Context(), groups.V1)) // it is there
	finish(t, m, groups.V1)
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	same(t, "in v3 again", want, look(t, v3, groups.V3))
}

// agents creates agents' pods, of nodes one and two. Before, finish knows no agent.
func agents(t *testing.T, m *Mover) {
	t.Helper()
	if err := m.Finish(t.Context()); !errtest.Names(err, agentLabels) {
		t.Errorf("finish without agents: %v", err)
	}
	for name, node := range map[string]string{"a": "one", "b": "two", "c": "two", "pending": ""} {
		spec := fmt.Sprintf(`{"nodeName":%q,"containers":[{"name":"node","image":"tortie"}]}`, node)
		ofTortie(t, m, "kube-system", name, "node", spec)
	}
}

// ofTortie creates a pod with the labels of Tortie's.
func ofTortie(t *testing.T, m *Mover, namespace, name, component, spec string) *object {
	t.Helper()
	labels := map[string]string{"app.kubernetes.io/name": "tortie", "app.kubernetes.io/component": component}
	o := &object{of: (*api.Pod)(nil).ResourceType(), Spec: json.RawMessage(spec),
		Meta: api.Meta{Namespace: namespace, Name: name, Labels: labels}}
	errtest.Must(t, m.Stores[groups.V1].Create(t.Context(), o))
	return o
}

// finish removes what the cluster does not use, once the agents of both nodes answer in the group that it uses.
func finish(t *testing.T, m *Mover, in groups.Group) {
	t.Helper()
	left := look(t, m.Stores[in.Other()], in.Other())
	err := m.Finish(t.Context())
	if !errtest.Names(err, "one two "+string(in)) {
		t.Errorf("finish, before agents use %s: %v", in, err)
	}
	same(t, "after a finish that was refused", left, look(t, m.Stores[in.Other()], in.Other()))
	if !answered(t, m, in, "two") {
		t.Fatal("node two has not answered")
	}
	patient := *m
	patient.answer = time.Minute
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go answer(ctx, m.Stores[in], "one", "two")
	var said strings.Builder
	patient.Say = func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) }
	errtest.Must(t, patient.Finish(t.Context()))
	if !errtest.Has(said.String(), string(in.Other())+" upgrade rollback") {
		t.Errorf("finish says:\n%s", &said)
	}
	var asked api.List[api.CalicoNodeStatus, *api.CalicoNodeStatus]
	errtest.Must(t, m.Stores[in].List(t.Context(), &asked, datastore.ListOptions{}))
	if len(asked.Items) != 1 || asked.Items[0].Name != "gold-node" {
		t.Errorf("finish has left questions: %+v", asked.Items)
	}
}

// answered asks a node that answers, where a killed run has left the same question.
func answered(t *testing.T, m *Mover, in groups.Group, node string) bool {
	t.Helper()
	now := "2026-11-30T08:00:00Z"
	left := &api.CalicoNodeStatus{Meta: api.Meta{Name: names.Question(node)}, Spec: api.CalicoNodeStatusSpec{Node: node}}
	errtest.Must(t, m.Stores[in].Create(t.Context(), left))
	errtest.Must(t, m.Stores[in].SetStatus(t.Context(), left, api.CalicoNodeStatusStatus{LastUpdated: &now}))
	if old, err := m.ask(t.Context(), in, node); old || err != nil {
		t.Errorf("an answer to an earlier question counts: %v", err)
	}
	patient := *m
	patient.answer = time.Minute
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go answer(ctx, m.Stores[in], node)
	yes, err := patient.ask(t.Context(), in, node)
	errtest.Must(t, err)
	return yes
}

// answer answers questions to nodes as their agents do (internal/agent has the test of these), until ctx ends.
func answer(ctx context.Context, store *kubernetes.Store, nodes ...string) {
	now := "2026-11-30T08:00:00Z"
	for wait.Sleep(ctx, 50*time.Millisecond) {
		for _, node := range nodes {
			q := &api.CalicoNodeStatus{Meta: api.Meta{Name: names.Question(node)}}
			if store.Get(ctx, q) == nil && q.Spec.Node == node && q.Status.LastUpdated == nil {
				_ = store.SetStatus(ctx, q, api.CalicoNodeStatusStatus{LastUpdated: &now}) // again, where it has failed
			}
		}
	}
}

// ownedBy fails unless two IPReservations refer to the group's own IPAMConfig, and to the Namespace as before.
func ownedBy(t *testing.T, store *kubernetes.Store, version, kind string) {
	t.Helper()
	config := &api.IPAMConfig{Meta: api.Meta{Name: "default"}}
	errtest.Must(t, store.Get(t.Context(), config))
	want := []map[string]string{{"apiVersion": version, "kind": kind, "name": "default", "uid": config.UID},
		{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "a-b"}}
	for _, name := range []string{"owned", "owned-through-calico"} {
		o := &object{of: kinds[5], Meta: api.Meta{Name: name}}
		errtest.Must(t, store.Get(t.Context(), o))
		var got []map[string]string
		if o.Foreign != nil {
			errtest.Must(t, json.Unmarshal(o.OwnerReferences, &got))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("owners of %s in %s (-want +got):\n%s", name, version, d)
		}
	}
}

// killed moves to a group by runs that each end with their first write, until one has nothing to write. It returns
// their number.
func killed(t *testing.T, server *labtest.Server, to groups.Group) (runs int) {
	t.Helper()
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	m := mover(t, proxy.Kubeconfig())
	for ; runs < 200; runs++ {
		ctx, kill := context.WithCancel(t.Context())
		var writes atomic.Int32
		proxy.Fault(func(request string) (int, time.Duration) {
			verb, _, _ := strings.Cut(request, " ")
			if verb == "get" || verb == "list" || strings.HasSuffix(request, "(dry run)") || writes.Add(1) == 1 {
				return 0, 0
			}
			kill()
			return http.StatusServiceUnavailable, 0
		})
		err := m.Start(ctx, to)
		kill()
		if err == nil {
			return runs
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("run %d: %v", runs, err)
		}
	}
	t.Fatalf("not moved after %d runs", runs)
	return runs
}

// TestConflictAndAbort: what the target has already is kept. A move with conflicts does not begin; one that meets them
// later stays, and can be aborted or go on.
func TestConflictAndAbort(t *testing.T) {
	server := both(t)
	m := mover(t, server.Kubeconfig())
	v1, v3 := m.Stores[groups.V1], m.Stores[groups.V3]
	if err := m.Start(t.Context(), groups.V3); !errtest.Names(err, "crd.projectcalico.org/v1 datastoreReady") {
		t.Errorf("a cluster without ClusterInformation: %v", err)
	}
	fill(t, v1)
	refused(t, m)
	before := look(t, v1, groups.V1)
	equal := &api.CalicoGlobalNetworkSet{Meta: api.Meta{Name: "partners", Labels: map[string]string{"set": "partners"}},
		Spec: api.CalicoGlobalNetworkSetSpec{Nets: []string{"203.0.113.0/24"}}}
	other := &api.IPAMHandle{Meta: api.Meta{Name: "lb-abcdefg"}, Spec: api.IPAMHandleSpec{HandleID: "lb-other", Block: map[string]int{}}}
	alone := &api.BGPPeer{Meta: api.Meta{Name: "alone"}, Spec: api.BGPPeerSpec{PeerIP: "10.9.9.9", ASNumber: 64599}}
	for _, obj := range []api.Resource{equal, other, alone} {
		errtest.Must(t, v3.Create(t.Context(), obj))
	}
	if err := m.Start(t.Context(), groups.V3); !errors.Is(err, ErrConflict) || !errtest.Names(err, "2") {
		t.Fatalf("with an object that differs and one that the source does not have: %v", err)
	}
	says(t, m, idle, groups.Ready, groups.Absent)
	var text bytes.Buffer
	errtest.Must(t, m.Status(t.Context(), &text))
	if !errtest.Has(text.String(), "lb-abcdefg spec.block alone crd.projectcalico.org/v1") {
		t.Errorf("status:\n%s", &text)
	}
	exits(t, server)
	errtest.Must(t, errors.Join(v3.Delete(t.Context(), other), v3.Delete(t.Context(), alone)))

	// A run that is killed in the midst, and an object that comes up meanwhile.
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	proxy.Fault(func(request string) (int, time.Duration) {
		if request != "create ipamhandles" {
			return 0, 0
		}
		kill()
		return http.StatusServiceUnavailable, 0
	})
	if err := mover(t, proxy.Kubeconfig()).Start(ctx, groups.V3); !errors.Is(err, context.Canceled) {
		t.Fatalf("a killed run: %v", err)
	}
	says(t, m, copying, groups.Locked, groups.Absent)
	if err := m.Start(t.Context(), groups.V1); !errtest.Names(err, "projectcalico.org/v3 abort") {
		t.Errorf("a move the other way: %v", err)
	}
	if err := m.Finish(t.Context()); !errtest.Names(err, "copying") {
		t.Errorf("finish: %v", err)
	}
	*other.GetMeta() = api.Meta{Name: other.Name}
	errtest.Must(t, v3.Create(t.Context(), other))
	if err := m.Start(t.Context(), groups.V3); !errors.Is(err, ErrConflict) {
		t.Errorf("with an object that came up: %v", err)
	}
	errtest.Must(t, m.Abort(t.Context()))
	says(t, m, idle, groups.Ready, groups.Absent)
	same(t, "after the abort", before, look(t, v1, groups.V1))
	if left := look(t, v3, groups.V3); len(left) != 2 {
		t.Errorf("the abort has left %v, want what was there before", left)
	}
	if err := m.Abort(t.Context()); !errtest.Names(err, "idle") {
		t.Errorf("a second abort: %v", err)
	}
	errtest.Must(t, v3.Delete(t.Context(), other))
	late(t, m, v1)
}

// refused has objects in the source that the target does not take, and one that is being deleted: no move begins.
func refused(t *testing.T, m *Mover) {
	t.Helper()
	v1 := m.Stores[groups.V1]
	spec := `{"containers":[{"name":"node","image":"tortie","env":[{"name":"CALICO_API_GROUP","value":"crd.projectcalico.org/v1"}]}]}`
	set := ofTortie(t, m, "kube-system", "set", "kube-controllers", spec)
	if err := m.Start(t.Context(), groups.V3); !errtest.Names(err, "kube-system/set crd.projectcalico.org/v1 apiGroup auto") {
		t.Errorf("with a pod that would not follow: %v", err)
	}
	errtest.Must(t, v1.Delete(t.Context(), set))
	weather := &object{of: kinds[20], Meta: api.Meta{Name: "weather"}, Spec: json.RawMessage(`{"node":"one","classes":["Weather"]}`)}
	errtest.Must(t, v1.Create(t.Context(), weather))
	spec = `{"tier":"default","selector":"all()","types":["Ingress"],"ingress":[{"action":"Allow"}],"serviceAccountSelector":""}`
	doomed := &object{of: kinds[9], Meta: api.Meta{Name: "doomed", Foreign: &api.Foreign{Finalizers: []string{"example.com/keep"}}},
		Spec: json.RawMessage(spec)}
	errtest.Must(t, v1.Create(t.Context(), doomed))
	var said strings.Builder
	tries := New(m.Stores, func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) })
	err := tries.Start(t.Context(), groups.V3)
	if errors.Is(err, ErrConflict) || !errtest.Names(err, "1 projectcalico.org/v3") ||
		!errtest.Has(said.String(), "CalicoNodeStatus weather spec.classes[0] globalnetworkpolicies caliconodestatuses tried") {
		t.Errorf("with an object that the target refuses: %v; it said:\n%s", err, &said)
	}
	says(t, m, idle, groups.Ready, groups.Absent)
	if there := look(t, m.Stores[groups.V3], groups.V3); len(there) > 0 {
		t.Errorf("what was tried is there: %v", there)
	}
	outlived(t, m)
	errtest.Must(t, errors.Join(v1.Delete(t.Context(), weather), v1.Delete(t.Context(), doomed)))
	said.Reset()
	if err := tries.Start(t.Context(), groups.V3); !errors.Is(err, ErrConflict) || !errtest.Has(said.String(), "doomed example.com/keep") {
		t.Errorf("with a policy that is being deleted: %v; it said:\n%s", err, &said)
	}
	says(t, m, idle, groups.Ready, groups.Absent)
	errtest.Must(t, v1.Get(t.Context(), doomed))
	doomed.of = kinds[9]
	errtest.Must(t, m.remover(groups.V1)(t.Context(), doomed))
}

// outlived has webhooks without an endpoint, while an object that the target refuses stops each move anyway. A webhook
// with a Service is reported before anything is tried, one that guards the ClusterInformation of the target when it is
// tried. Webhooks that refuse nothing are not reported.
func outlived(t *testing.T, m *Mover) {
	t.Helper()
	const service = `"service":{"namespace":"calico-system","name":"calico-webhooks","path":"/rbac"}`
	store := m.Stores[groups.V1]
	hook := func(name, failure, client, group, resource string) *labtest.Webhooks {
		h := &labtest.Webhooks{Meta: api.Meta{Name: name}, Webhooks: json.RawMessage(fmt.Sprintf(`[{"name":"w.example.com","failurePolicy":%q,
			"sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{%s},
			"rules":[{"operations":["*"],"apiGroups":[%q],"apiVersions":["*"],"resources":[%q]}]}]`, failure, client, group, resource))}
		errtest.Must(t, store.Create(t.Context(), h))
		return h
	}
	tried := func(want, wantSaid string) {
		t.Helper()
		waittest.For(t, time.Minute, func() error { // until the API server has observed the last webhook
			var said strings.Builder
			tries := New(m.Stores, func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) })
			err := tries.Start(t.Context(), groups.V3)
			if !errtest.Names(err, want) || errtest.Names(err, "passing") || errtest.Names(err, "foreign") || !errtest.Has(said.String(), wantSaid) {
				return fmt.Errorf("want %s %s: %w; it said:\n%s", want, wantSaid, err, &said)
			}
			return nil
		})
		says(t, m, idle, groups.Ready, groups.Absent)
	}
	passing := hook("passing", "Ignore", service, "projectcalico.org", "networkpolicies")
	foreign := hook("foreign", "Fail", service, "example.com", "networkpolicies")
	dead := hook("dead", "Fail", service, "projectcalico.org", "networkpolicies")
	tried("w.example.com calico-system/calico-webhooks dead", "")
	errtest.Must(t, store.Delete(t.Context(), dead))
	guard := hook("guard", "Fail", `"url":"https://127.0.0.1:1/"`, "projectcalico.org", "clusterinformations")
	tried("2 projectcalico.org/v3", "ClusterInformation default w.example.com")
	errtest.Must(t, errors.Join(store.Delete(t.Context(), passing), store.Delete(t.Context(), foreign), store.Delete(t.Context(), guard)))
	waittest.For(t, time.Minute, func() error { // until the last one is forgotten
		info := &object{of: information, Meta: api.Meta{Name: api.DefaultName}, Spec: json.RawMessage("{}")}
		return m.Stores[groups.V3].DryRun().Create(t.Context(), info)
	})
}

// exits runs the command in a cluster with conflicts.
func exits(t *testing.T, server *labtest.Server) {
	t.Helper()
	proxy := labtest.NewProxyTo(t, server.Kubeconfig())
	open := func() (Cluster, error) { return Cluster{stores(t, proxy.Kubeconfig()), "default", t.Name()}, nil }
	for code, args := range map[int][]string{
		exitOK: {"status"}, exitConflict: {"start", "--to", "v3"}, exitError: {"abort"}, exitUsage: {"start", "--to", "v4"},
	} {
		var out, errs bytes.Buffer
		if got := Main(t.Context(), args, open, &out, &errs); got != code {
			t.Errorf("%q: exit code %d, want %d:\n%s%s", args, got, code, &out, &errs)
		}
	}

	store := stores(t, server.Kubeconfig())[groups.V1]
	lease := &api.Lease{Meta: api.Meta{Namespace: leaseNamespace, Name: LeaseName}}
	errtest.Must(t, store.Get(t.Context(), lease))
	lease.Spec = api.LeaseSpec{HolderIdentity: "another run", LeaseDurationSeconds: 3600}
	errtest.Must(t, store.Update(t.Context(), lease))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var asked atomic.Int32
	proxy.Reset()
	proxy.Fault(func(request string) (int, time.Duration) {
		if request == "get leases" && asked.Add(1) == 3 {
			stop()
		}
		return 0, 0
	})
	var out, errs bytes.Buffer
	code := Main(ctx, []string{"start", "--to", "v3"}, open, &out, &errs)
	if requests := proxy.Requests(); code != exitError || len(requests) != 1 {
		t.Errorf("while another run has the Lease: exit code %d, requests %v:\n%s%s", code, requests, &out, &errs)
	}
	errtest.Must(t, store.Delete(t.Context(), lease))
}

// late changes the source while it is copied, like a plugin with a request under way at the lock.
func late(t *testing.T, m *Mover, v1 *kubernetes.Store) {
	t.Helper()
	by := mark{To: groups.V3, ID: "late"}
	errtest.Must(t, m.setInfo(t.Context(), groups.V1, false, mark{}, by))
	for range 2 { // the second one adds owners
		_, err := m.pass(t.Context(), by)
		errtest.Must(t, err)
	}
	gone := &api.IPAMHandle{Spec: api.IPAMHandleSpec{HandleID: "k8s-pod-network.3f1d9c8a"}, Meta: api.Meta{Name: "k8s-pod-network.3f1d9c8a"}}
	less := &api.IPAMHandle{Spec: api.IPAMHandleSpec{HandleID: "lb-AbCdEfG"}, Meta: api.Meta{Name: "lb-abcdefg"}}
	errtest.Must(t, errors.Join(v1.Get(t.Context(), gone), v1.Get(t.Context(), less)))
	less.Spec.Block = map[string]int{}
	spec := api.IPAMHandleSpec{HandleID: "fresh", Block: map[string]int{"192.168.154.0/30": 1}}
	fresh := &api.IPAMHandle{Meta: api.Meta{Name: "fresh"}, Spec: spec}
	errtest.Must(t, errors.Join(v1.Delete(t.Context(), gone), v1.Update(t.Context(), less), v1.Create(t.Context(), fresh)))
	if n, err := m.pass(t.Context(), by); n != 3 || err != nil {
		t.Errorf("after three late changes: %d writes (%v)", n, err)
	}
	early, stop := context.WithCancel(t.Context())
	waits := New(m.Stores, func(format string, args ...any) {
		if t.Logf(format, args...); strings.Contains(format, "waiting") {
			stop()
		}
	})
	if err := waits.Start(early, groups.V3); !errors.Is(err, context.Canceled) {
		t.Errorf("a run that ends before requests in flight have ended: %v", err)
	}
	says(t, m, copying, groups.Locked, groups.Absent)
	errtest.Must(t, m.Start(t.Context(), groups.V3))
	says(t, m, moved, groups.Locked, groups.Ready)
	var handles api.IPAMHandleList
	errtest.Must(t, m.Stores[groups.V3].List(t.Context(), &handles, datastore.ListOptions{}))
	got := map[string]map[string]int{}
	for _, h := range handles.Items {
		got[h.Spec.HandleID] = h.Spec.Block
	}
	if d := cmp.Diff(map[string]map[string]int{"fresh": fresh.Spec.Block, "lb-AbCdEfG": {}}, got); d != "" {
		t.Errorf("handles (-want +got):\n%s", d)
	}
}
