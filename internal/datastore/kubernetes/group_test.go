package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// counted is a round tripper that counts requests. Those to paths that begin with down have no answer.
type counted struct {
	http.RoundTripper
	requests int
	down     string
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests++
	if c.down != "" && strings.HasPrefix(r.URL.Path, c.down) {
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
	return c.RoundTripper.RoundTrip(r)
}

func storeIn(t *testing.T, server *labtest.Server, in groups.Group) (*Store, *counted) {
	t.Helper()
	cfg, err := LoadKubeconfig(server.Kubeconfig())
	errtest.Must(t, err)
	cfg.Group = groups.In(in)
	s, err := New(cfg)
	errtest.Must(t, err)
	c := &counted{RoundTripper: s.client.http.Transport}
	s.client.http.Transport = c
	return s, c
}

// TestGroupOfACluster takes one API server through the states of clusters: no definitions, only projectcalico.org/v3's,
// both, and each pair of answers of their ClusterInformation. At the end it has both, for tests of either form.
func TestGroupOfACluster(t *testing.T) {
	server := labtest.NewBareServer(t)
	v1, requests := storeIn(t, server, groups.V1)
	v3, _ := storeIn(t, server, groups.V3)
	find := func(when string, wanted, want groups.Group, cost int) {
		t.Helper()
		requests.requests = 0
		got, err := v1.FindGroup(t.Context(), wanted, "")
		if err != nil || got != want || requests.requests != cost {
			t.Errorf("%s, wanted %q: %q with %d requests (%v), want %q with %d", when, wanted, got, requests.requests, err, want, cost)
		}
	}
	refused := func(when string, wanted groups.Group, words string) {
		t.Helper()
		if got, err := v1.FindGroup(t.Context(), wanted, ""); !errtest.Names(err, words) {
			t.Errorf("%s, wanted %q: %q (%v), want an error that names %s", when, wanted, got, err, words)
		}
	}
	say := func(s *Store, ready bool) {
		t.Helper()
		info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
		write := s.Update
		if err := s.Get(t.Context(), info); err != nil {
			write = s.Create
		}
		info.Spec.DatastoreReady = &ready
		errtest.Must(t, write(t.Context(), info))
	}

	refused("no definitions", "", "ipamblocks crd.projectcalico.org/v1 projectcalico.org/v3")
	refused("no definitions", groups.V1, "CALICO_API_GROUP crd.projectcalico.org/v1")

	server.Define(t, groups.V3)
	find("definitions of v3", "", groups.V3, 4)
	refused("definitions of v3", groups.V1, "CALICO_API_GROUP crd.projectcalico.org/v1")
	find("definitions of v3", groups.V3, groups.V3, 1)
	t.Run("cases", func(t *testing.T) { datastoretest.Run(t, func() datastore.Store { return v3 }) })
	t.Run("form", func(t *testing.T) { formOfV3(t, server, v3) })
	t.Run("metadata", func(t *testing.T) { metadataOfV1(t, server, v3) })
	say(v3, false)
	find("v3 locked", "", groups.V3, 3)
	say(v3, true)
	find("v3", "", groups.V3, 3)

	server.Define(t, groups.V1)
	find("v3, with definitions of v1", "", groups.V3, 3)
	say(v1, false)
	find("v3, and v1 locked by a migration", "", groups.V3, 3)
	say(v3, false)
	find("both locked", "", groups.V1, 2)
	requests.down = "/apis/" + string(groups.V3)
	for before, want := range map[groups.Group]groups.Group{"": groups.V1, groups.V1: groups.V1, groups.V3: ""} {
		if got, err := v1.FindGroup(t.Context(), "", before); got != want || (err == nil) != (want != "") {
			t.Errorf("v1 locked, v3 without an answer, %q in use before: %q (%v), want %q", before, got, err, want)
		}
	}
	requests.down = ""
	if got, err := v1.FindGroup(t.Context(), "", groups.V3); err != nil || got != groups.V3 {
		t.Errorf("both locked, v3 in use before: %q (%v)", got, err)
	}
	say(v1, true)
	if got, err := v1.FindGroup(t.Context(), "", groups.V3); err != nil || got != groups.V1 {
		t.Errorf("v3 locked, and in use before: %q (%v)", got, err)
	}
	find("v1", "", groups.V1, 1)
	find("v1", groups.V3, groups.V3, 1)
	for first, cost := range map[groups.Group]int{groups.V1: 1, groups.V3: 2} {
		requests.requests = 0
		if in, lock, err := v1.Find(t.Context(), first); err != nil || in != groups.V1 || lock != groups.Ready || requests.requests != cost {
			t.Errorf("v1, first %s: %s, %v with %d requests (%v), want %d", first, in, lock, requests.requests, err, cost)
		}
	}
	for in, s := range map[groups.Group]*Store{groups.V1: v1, groups.V3: v3} {
		t.Run("status of "+string(in), func(t *testing.T) { statusIsWritten(t, s) })
		t.Run("foreign in "+string(in), func(t *testing.T) { foreignStays(t, server, s, in) })
	}

	say(v3, true)
	say(v1, false)
	before := func(when string, used, want groups.Group) {
		t.Helper()
		if got, err := v1.FindGroup(t.Context(), "", used); err != nil || got != want {
			t.Errorf("%s, last used %q: %q (%v), want %q", when, used, got, err, want)
		}
	}
	before("v3 ready before v1's lock", "", groups.V3)
	before("v3 ready before v1's lock", groups.V1, groups.V1)
	before("v3 ready before v1's lock", groups.V3, groups.V3)
	say(v3, false)
	say(v3, true)
	before("v3 ready since", groups.V1, groups.V3)
	lost := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, v3.Get(t.Context(), lost))
	errtest.Must(t, v3.Delete(t.Context(), lost))
	for used, want := range map[groups.Group]groups.Group{"": groups.V1, groups.V1: groups.V1, groups.V3: groups.V3} {
		before("v3 has lost its ClusterInformation", used, want)
	}
	source := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	errtest.Must(t, v1.Get(t.Context(), source))
	for mark, want := range map[string]groups.Group{
		`{"to":"projectcalico.org/v3","id":"a"}`: groups.V1, `{"to":"projectcalico.org/v3","id":"a","switched":true}`: groups.V3,
	} {
		source.Annotations = map[string]string{groups.Moving: mark}
		errtest.Must(t, v1.Update(t.Context(), source))
		before("v3 has none, and v1 the mark "+mark, groups.V3, want)
	}
	source.Annotations = nil
	errtest.Must(t, v1.Update(t.Context(), source))
	say(v3, true)

	removeBlocks(t, server)
	requests.requests = 0
	if in, lock, err := v1.Find(t.Context(), groups.V1); err != nil || in != groups.V1 || lock != groups.Locked || requests.requests != 3 {
		t.Errorf("v3 ready without blocks, as by Calico's API server: %s, %v with %d requests (%v)", in, lock, requests.requests, err)
	}
	find("v3 ready without blocks", "", groups.V1, 3)
}

func TestBefore(t *testing.T) {
	info := func(revision, mark string) *api.ClusterInformation {
		return &api.ClusterInformation{Meta: api.Meta{ResourceVersion: revision, Annotations: map[string]string{groups.Moving: mark}}}
	}
	for _, c := range []struct {
		when string
		a, b *api.ClusterInformation
		want bool
	}{
		{"ready before the lock", info("9", ""), info("10", ""), true},
		{"ready since the lock", info("11", ""), info("10", ""), false},
		{"none", nil, info("10", ""), false},
		{"no lock", info("9", ""), nil, false},
		{"a revision that is no number", info("9", ""), info("", ""), false},
		{"of one move, and locked again by an operator", info("9", "a"), info("10", "a"), false},
		{"of two moves", info("9", "a"), info("10", "b"), true},
	} {
		if got := Before(c.a, c.b); got != c.want {
			t.Errorf("%s: %v, want %v", c.when, got, c.want)
		}
	}
}

// removeBlocks removes the definition of blocks of groups.V3, and waits until they are not served.
func removeBlocks(t *testing.T, server *labtest.Server) {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	kind := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	definitions := client.Resource(kind)
	errtest.Must(t, definitions.Delete(t.Context(), groups.V3.Resource("ipamblocks"), metav1.DeleteOptions{}))
	s, _ := storeIn(t, server, groups.V3)
	waittest.For(t, time.Minute, func() error {
		if has, err := s.Defined(t.Context(), groups.V3); err != nil || has != "" {
			return fmt.Errorf("definition of %q, %w", has, err)
		}
		return nil
	})
}

// formOfV3 reads the Store's objects with another client.
func formOfV3(t *testing.T, server *labtest.Server, s *Store) {
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	affinity := &api.BlockAffinity{
		Meta: api.Meta{Name: "n-10-0-0-0-26", Annotations: map[string]string{names.AnnotationMetadata: `{"labels":{"a":"b"}}`}},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: "n", Type: "host", CIDR: "10.0.0.0/26"},
	}
	config := &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true}}
	for _, c := range []struct {
		obj  api.Resource
		want string
	}{
		{affinity, `{"labels": {"a": "b"},
			"spec": {"state": "confirmed", "node": "n", "type": "host", "cidr": "10.0.0.0/26", "deleted": false}}`},
		{config, `{"spec": {"autoAllocateBlocks": true, "strictAffinity": false, "maxBlocksPerHost": 0}}`},
	} {
		errtest.Must(t, s.Create(t.Context(), c.obj))
		kind := client.Resource(resourceOf(groups.V3.Type(c.obj.ResourceType())))
		got, err := kind.Get(t.Context(), c.obj.GetMeta().Name, metav1.GetOptions{})
		errtest.Must(t, err)
		if len(got.GetAnnotations()) > 0 {
			t.Errorf("%s has annotations: %v", got.GetName(), got.GetAnnotations())
		}
		seen := map[string]any{"spec": got.Object["spec"]}
		if labels := got.GetLabels(); labels != nil {
			seen["labels"] = labels
		}
		text, err := json.Marshal(seen)
		errtest.Must(t, err)
		var have, want any
		errtest.Must(t, json.Unmarshal(text, &have))
		errtest.Must(t, json.Unmarshal([]byte(c.want), &want))
		if d := cmp.Diff(want, have); d != "" {
			t.Errorf("%s (-want +stored):\n%s", got.GetName(), d)
		}
		errtest.Must(t, s.Delete(t.Context(), c.obj))
	}
	in, served, err := s.Kinds(t.Context())
	errtest.Must(t, err)
	if in != groups.V3 || !slices.Contains(served, "ipamconfigs") || slices.Contains(served, "ipamconfigurations") {
		t.Errorf("kinds of %s: %v", in, served)
	}
}

// metadataOfV1 puts the metadata of crd.projectcalico.org/v1 beside an object's own, as kubectl does with a file that
// was exported from there. In projectcalico.org/v3 it has no meaning, however the object is read.
func metadataOfV1(t *testing.T, server *labtest.Server, s *Store) {
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	set := &api.CalicoGlobalNetworkSet{Meta: api.Meta{Name: "exported", Labels: map[string]string{"a": "own"}}}
	errtest.Must(t, s.Create(t.Context(), set))
	_, err = client.Resource(resourceOf(groups.V3.Type(set.ResourceType()))).Patch(t.Context(), set.Name, types.MergePatchType, []byte(
		`{"metadata":{"annotations":{"projectcalico.org/metadata":"{\"labels\":{\"a\":\"v1\"}}","note":"n"}}}`), metav1.PatchOptions{})
	errtest.Must(t, err)
	means := func(when string, m *api.Meta) {
		t.Helper()
		if names.Labels(m)["a"] != "own" || len(m.Annotations) != 1 || m.Annotations["note"] != "n" {
			t.Errorf("%s: labels %v, annotations %v", when, names.Labels(m), m.Annotations)
		}
	}
	errtest.Must(t, s.Get(t.Context(), set))
	means("read", &set.Meta)
	var all api.List[api.CalicoGlobalNetworkSet, *api.CalicoGlobalNetworkSet]
	errtest.Must(t, s.List(t.Context(), &all, datastore.ListOptions{}))
	means("listed", &all.Items[0].Meta)
	errtest.Must(t, s.Update(t.Context(), set))
	means("written", &set.Meta)
	errtest.Must(t, s.Delete(t.Context(), set))
}

// statusIsWritten writes a status, which is a subresource in projectcalico.org/v3, and a field of the object in
// crd.projectcalico.org/v1.
func statusIsWritten(t *testing.T, s *Store) {
	obj := &api.CalicoNodeStatus{Meta: api.Meta{Name: "of-n"}, Spec: api.CalicoNodeStatusSpec{Node: "n"}}
	errtest.Must(t, s.Create(t.Context(), obj))
	before, at := *obj, "2026-01-02T03:04:05Z"
	errtest.Must(t, s.SetStatus(t.Context(), obj, api.CalicoNodeStatusStatus{LastUpdated: &at}))
	got := &api.CalicoNodeStatus{Meta: api.Meta{Name: "of-n"}}
	errtest.Must(t, s.Get(t.Context(), got))
	if got.Status.LastUpdated == nil || *got.Status.LastUpdated != at || got.ResourceVersion != obj.ResourceVersion {
		t.Errorf("status %+v of revision %s, want %s", got.Status, got.ResourceVersion, obj.ResourceVersion)
	}
	if err := s.SetStatus(t.Context(), &before, got.Status); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("of an older revision: %v", err)
	}
	errtest.Must(t, s.Delete(t.Context(), got))
	if err := s.SetStatus(t.Context(), got, got.Status); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("of what is gone: %v", err)
	}
}

// foreignStays updates an object that has finalizers and owners of other programs.
func foreignStays(t *testing.T, server *labtest.Server, s *Store, in groups.Group) {
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	h := &api.IPAMHandle{Meta: api.Meta{Name: "h"}, Spec: api.IPAMHandleSpec{HandleID: "h", Block: map[string]int{"10.0.0.0/26": 1}}}
	errtest.Must(t, s.Create(t.Context(), h))
	kind := client.Resource(resourceOf(in.Type(h.ResourceType())))
	const foreign = `{"finalizers":["example.org/keep"],"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"1"}]}`
	_, err = kind.Patch(t.Context(), h.Name, types.MergePatchType, []byte(`{"metadata":`+foreign+`}`), metav1.PatchOptions{})
	errtest.Must(t, err)
	errtest.Must(t, s.Get(t.Context(), h))
	h.Spec.Block = map[string]int{"10.0.0.0/26": 2}
	for range 2 { // the second from what the first update has filled in
		errtest.Must(t, s.Update(t.Context(), h))
	}
	got, err := kind.Get(t.Context(), h.Name, metav1.GetOptions{})
	errtest.Must(t, err)
	if f, o := got.GetFinalizers(), got.GetOwnerReferences(); len(f) != 1 || f[0] != "example.org/keep" || len(o) != 1 || o[0].UID != "1" {
		t.Errorf("after an update: finalizers %q, owners %v", f, o)
	}
}
