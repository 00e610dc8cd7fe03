package groups_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	. "github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Group{
		"": "", "crd.projectcalico.org/v1": V1, "projectcalico.org/v3": V3, "ProjectCalico.org/V3": V3,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q: %q (%v), want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"v3", "projectcalico.org", "projectcalico.org/v1", " "} {
		if got, err := Parse(text); !errtest.Names(err, text) || !errtest.Names(err, string(V1)) || !errtest.Names(err, string(V3)) {
			t.Errorf("%q: %q (%v)", text, got, err)
		}
	}
}

func TestType(t *testing.T) {
	for _, c := range []struct {
		in   Group
		kind api.Resource
		want api.Type
	}{
		{V1, &api.IPPool{}, api.Type{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPool", Plural: "ippools"}},
		{V3, &api.IPPool{}, api.Type{Group: "projectcalico.org", Version: "v3", Kind: "IPPool", Plural: "ippools"}},
		{V1, &api.IPAMConfig{}, api.Type{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPAMConfig", Plural: "ipamconfigs"}},
		{V3, &api.IPAMConfig{}, api.Type{Group: "projectcalico.org", Version: "v3", Kind: "IPAMConfiguration", Plural: "ipamconfigurations"}},
		{V3, &api.CalicoNetworkPolicy{}, api.Type{Group: "projectcalico.org", Version: "v3", Kind: "NetworkPolicy", Plural: "networkpolicies",
			Namespaced: true}},
		{V3, &api.Pod{}, api.Type{Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true}},
		{V3, &api.ClusterNetworkPolicy{}, (*api.ClusterNetworkPolicy)(nil).ResourceType()},
	} {
		if diff := cmp.Diff(c.want, c.in.Type(c.kind.ResourceType())); diff != "" {
			t.Errorf("%T in %s (-want +got):\n%s", c.kind, c.in, diff)
		}
	}
	if a, b := V3.Plural("ipamconfigurations"), V1.Plural("ipamconfigurations"); a != "ipamconfigs" || b != "ipamconfigurations" {
		t.Errorf("ipamconfigurations is called %q in %s, %q in %s", a, V3, b, V1)
	}
}

// TestNames has what people read and type: kubectl's name of a kind, and what an Event is about.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		in             Group
		plural, want   string
		about, becomes api.ObjectReference
	}{
		{"", "ippools", "ippools.crd.projectcalico.org", api.ObjectReference{APIVersion: string(V1), Kind: "IPPool", Name: "a", UID: "1"},
			api.ObjectReference{APIVersion: string(V1), Kind: "IPPool", Name: "a", UID: "1"}},
		{V1, "ipamconfigs", "ipamconfigs.crd.projectcalico.org", api.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "a"},
			api.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "a"}},
		{V3, "ippools", "ippools.projectcalico.org", api.ObjectReference{APIVersion: string(V1), Kind: "IPPool", Name: "a", UID: "1"},
			api.ObjectReference{APIVersion: string(V3), Kind: "IPPool", Name: "a", UID: "1"}},
		{V3, "ipamconfigs", "ipamconfigurations.projectcalico.org", api.ObjectReference{APIVersion: string(V1), Kind: "IPAMConfig"},
			api.ObjectReference{APIVersion: string(V3), Kind: "IPAMConfiguration"}},
		{V3, "tiers", "tiers.projectcalico.org", api.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "a"},
			api.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "a"}},
	} {
		if got := c.in.Resource(c.plural); got != c.want {
			t.Errorf("%s in %q: %s, want %s", c.plural, c.in, got, c.want)
		}
		if got := c.in.Reference(c.about); got != c.becomes {
			t.Errorf("%+v in %q: %+v, want %+v", c.about, c.in, got, c.becomes)
		}
	}
}

// TestManifest has the forms of objects of which the two groups differ, and that what is sent is read back.
func TestManifest(t *testing.T) {
	affinity := &api.BlockAffinity{
		Meta: api.Meta{Name: "n-10-0-0-0-26", ResourceVersion: "7", Labels: map[string]string{"kube": "1", "both": "kube"},
			Annotations: map[string]string{"mine": "2",
				"projectcalico.org/metadata": `{"labels":{"calico":"3","both":"calico"},"annotations":{"theirs":"4"}}`}},
		Spec: api.BlockAffinitySpec{State: api.AffinityPendingDeletion, Node: "n", Type: "host", CIDR: "10.0.0.0/26", Deleted: true},
	}
	handle := &api.IPAMHandle{
		Meta: api.Meta{Name: "h", Annotations: map[string]string{"projectcalico.org/metadata": "{}", "tortie.io/node": "n"}},
		Spec: api.IPAMHandleSpec{HandleID: "H", Block: map[string]int{"10.0.0.0/26": 1}},
	}
	for _, c := range []struct {
		in   Group
		obj  api.Resource
		want string
	}{
		{V1, affinity, `{"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity",
			"metadata": {"name": "n-10-0-0-0-26", "resourceVersion": "7", "labels": {"kube": "1", "both": "kube"}, "annotations": {"mine": "2",
				"projectcalico.org/metadata":
					"{\"labels\":{\"calico\":\"3\",\"both\":\"calico\"},\"annotations\":{\"theirs\":\"4\"}}"}},
			"spec": {"state": "pendingDeletion", "node": "n", "type": "host", "cidr": "10.0.0.0/26", "deleted": "true"}}`},
		{V3, affinity, `{"apiVersion": "projectcalico.org/v3", "kind": "BlockAffinity",
			"metadata": {"name": "n-10-0-0-0-26", "resourceVersion": "7", "labels": {"kube": "1", "calico": "3", "both": "calico"},
				"annotations": {"mine": "2", "theirs": "4"}},
			"spec": {"state": "pendingDeletion", "node": "n", "type": "host", "cidr": "10.0.0.0/26", "deleted": true}}`},
		{V3, handle, `{"apiVersion": "projectcalico.org/v3", "kind": "IPAMHandle",
			"metadata": {"name": "h", "annotations": {"tortie.io/node": "n"}},
			"spec": {"handleID": "H", "block": {"10.0.0.0/26": 1}, "deleted": false}}`},
		{V3, &api.IPAMConfig{Meta: api.Meta{Name: "default"}}, `{"apiVersion": "projectcalico.org/v3", "kind": "IPAMConfiguration",
			"metadata": {"name": "default"}, "spec": {"strictAffinity": false, "autoAllocateBlocks": false}}`},
		{V3, &api.Namespace{Meta: api.Meta{Name: "a", Annotations: map[string]string{"projectcalico.org/metadata": "{}"}}},
			`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "annotations": {"projectcalico.org/metadata": "{}"}}}`},
	} {
		before, err := json.Marshal(c.obj)
		errtest.Must(t, err)
		sent, err := c.in.Manifest(c.obj)
		errtest.Must(t, err)
		var got, want any
		errtest.Must(t, errors.Join(json.Unmarshal(sent, &got), json.Unmarshal([]byte(c.want), &want)))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%T in %s (-want +got):\n%s", c.obj, c.in, diff)
		}
		after, err := json.Marshal(c.obj)
		errtest.Must(t, err)
		if diff := cmp.Diff(string(before), string(after)); diff != "" {
			t.Errorf("%T in %s has changed the object:\n%s", c.obj, c.in, diff)
		}
		back := api.NewLike(c.obj)
		errtest.Must(t, json.Unmarshal(sent, back))
		if a, ok := back.(*api.BlockAffinity); ok && a.Spec != affinity.Spec {
			t.Errorf("in %s %+v is read back as %+v", c.in, affinity.Spec, a.Spec)
		}
	}
}

// TestRead has the names of policies, and what is left of metadata of V1 in V3.
func TestRead(t *testing.T) {
	const own = "projectcalico.org/metadata"
	for _, c := range []struct {
		name, annotation, tier, inV1 string
	}{
		{"web", "", "", "web"},
		{"default.web", "", "", "web"},
		{"default.web", `{"creationTimestamp":null}`, "default", "web"},
		{"default.web", `{"name":"web"}`, "default", "web"},
		{"default.web", `{"name":"default.web"}`, "default", "default.web"},
		{"default.default.web", `{"name":"default.web"}`, "", "default.web"},
		{"default.web", `{"name":"other"}`, "", "web"},
		{"default.web", `{`, "", "web"},
		{"default.web", "", "security", "default.web"},
		{"security.web", `{"name":"security.web"}`, "security", "security.web"},
	} {
		for in, want := range map[Group]string{V1: c.inV1, V3: c.name} {
			spec := api.CalicoPolicySpec{Tier: c.tier}
			for _, o := range []api.Resource{
				&api.CalicoNetworkPolicy{Spec: api.CalicoNetworkPolicySpec{CalicoPolicySpec: spec}},
				&api.CalicoGlobalNetworkPolicy{Spec: api.CalicoGlobalNetworkPolicySpec{CalicoPolicySpec: spec}},
				&api.CalicoStagedNetworkPolicy{Spec: api.CalicoStagedNetworkPolicySpec{CalicoPolicySpec: spec}},
				&api.CalicoStagedGlobalNetworkPolicy{Spec: api.CalicoStagedGlobalNetworkPolicySpec{
					CalicoGlobalNetworkPolicySpec: api.CalicoGlobalNetworkPolicySpec{CalicoPolicySpec: spec}}},
			} {
				*o.GetMeta() = api.Meta{Name: c.name, Annotations: map[string]string{own: c.annotation}}
				in.Read(o)
				if got := api.OfCalicoPolicy(o).Called; got != want || o.GetMeta().Name != c.name {
					t.Errorf("%T %+v in %s is called %q, want %q", o, c, in, got, want)
				}
				if _, left := o.GetMeta().Annotations[own]; left != (in == V1) {
					t.Errorf("%T in %s: annotations %v", o, in, o.GetMeta().Annotations)
				}
			}
		}
	}
	V1.Read(&api.NetworkPolicy{})
}

// TestApply has policies of a file that leave out types, and their names.
func TestApply(t *testing.T) {
	const ingress, egress, both = "[Ingress]", "[Egress]", "[Ingress Egress]"
	for _, c := range []struct{ spec, clients, admitted, moved, kubectl string }{
		{`{}`, ingress, ingress, both, "[]"},
		{`{"ingress":[{"action":"Deny"}]}`, ingress, ingress, both, "[]"},
		{`{"egress":[{"action":"Deny"}]}`, egress, egress, both, "[]"},
		{`{"ingress":[{"action":"Deny"}],"egress":[{"action":"Deny"}]}`, both, both, both, "[]"},
		{`{"ingress":[]}`, ingress, ingress, both, "[]"},
		{`{"egress":[]}`, ingress, egress, both, "[]"},
		{`{"egress":null}`, ingress, ingress, both, "[]"},
		{`{"ingress":[],"egress":[]}`, ingress, both, both, "[]"},
		{`{"ingress":[{"action":"Deny"}],"egress":[]}`, ingress, both, both, "[]"},
		{`{"ingress":[],"egress":[{"action":"Deny"}]}`, egress, both, both, "[]"},
		{`{"types":["Egress"],"ingress":[{"action":"Deny"}]}`, egress, egress, egress, egress},
	} {
		for _, f := range []struct {
			in, form           Group
			types, name, known string
		}{
			{V1, V3, c.clients, "default.web", "default.web"}, {V3, V3, c.admitted, "default.web", "default.web"},
			{V3, V1, c.moved, "web", "web"}, {V1, V1, c.kubectl, "default.web", "web"},
		} {
			for _, o := range []api.Resource{&api.CalicoNetworkPolicy{}, &api.CalicoGlobalNetworkPolicy{}, &api.CalicoStagedNetworkPolicy{},
				&api.CalicoStagedGlobalNetworkPolicy{}} {
				errtest.Must(t, json.Unmarshal([]byte(`{"metadata":{"name":"default.web"},"spec":`+c.spec+`}`), o))
				f.in.Apply(f.form, o)
				spec := api.OfCalicoPolicy(o)
				if got := fmt.Sprint(spec.Types); got != f.types || o.GetMeta().Name != f.name || spec.Called != f.known {
					t.Errorf("%T %s of %s in %s: %s, %s (%s), want %+v", o, c.spec, f.form, f.in, got, o.GetMeta().Name, spec.Called, f)
				}
			}
		}
	}
	set := &api.CalicoNetworkSet{Meta: api.Meta{Name: "default.a", Annotations: map[string]string{"projectcalico.org/metadata": "{}"}}}
	if V1.Apply(V3, set); set.Name != "default.a" || len(set.Annotations) > 0 {
		t.Errorf("%+v", set)
	}
}

// TestChoose has every pair of answers. A migration to v3, a way back from it and its end pass through some of them.
func TestChoose(t *testing.T) {
	for _, c := range []struct {
		v1, v3 Lock
		want   Group
		when   string
	}{
		{Absent, Absent, "", "new cluster"},
		{Ready, Absent, V1, "cluster of v1; early definitions of v3"},
		{Ready, Locked, V1, "an abort that has unlocked v1"},
		{Ready, Ready, V1, "Calico's API server"},
		{Locked, Absent, V1, "an operator's lock; the migration's lock"},
		{Locked, Locked, V1, "the migration copies; Calico's API server over an operator's lock"},
		{Locked, Ready, V3, "the migration has converged"},
		{Absent, Locked, V3, "an operator's lock in a cluster of v3"},
		{Absent, Ready, V3, "cluster of v3; the definitions of v1 are deleted"},
	} {
		if got := Choose(c.v1, c.v3); got != c.want {
			t.Errorf("%s: %q, want %q", c.when, got, c.want)
		}
	}
}

func TestChooseNew(t *testing.T) {
	all, aggregated := []string{"ippools", "ipamblocks"}, []string{"ippools", "profiles"}
	for _, c := range []struct {
		v1, v3 []string
		want   Group
	}{
		{all, nil, V1}, {all, all, V1}, {all, aggregated, V1}, {nil, all, V3}, {nil, aggregated, ""}, {nil, nil, ""},
	} {
		if got := ChooseNew(c.v1, c.v3); got != c.want {
			t.Errorf("v1 %v, v3 %v: %q, want %q", c.v1, c.v3, got, c.want)
		}
	}
}

func TestLockOf(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		info *api.ClusterInformation
		want Lock
	}{
		{nil, Absent}, {&api.ClusterInformation{}, Locked},
		{&api.ClusterInformation{Spec: api.ClusterInformationSpec{DatastoreReady: &no}}, Locked},
		{&api.ClusterInformation{Spec: api.ClusterInformationSpec{DatastoreReady: &yes}}, Ready},
	} {
		if got := LockOf(c.info); got != c.want {
			t.Errorf("%+v: %v, want %v", c.info, got, c.want)
		}
	}
}

// TestCurrent has a group that cannot be found at first, is asked for by several at once, and changes.
func TestCurrent(t *testing.T) {
	calls, away, begun, answer := 0, errors.New("API server away"), make(chan bool), make(chan Group)
	c := Found("", func(context.Context, Group) (Group, error) {
		if calls++; calls == 1 {
			return "", away
		}
		close(begun)
		return <-answer, nil
	})
	if g, err := c.Get(t.Context()); !errors.Is(err, away) || c.Known() != "" {
		t.Errorf("not found: %q (%v), known %q", g, err, c.Known())
	}
	answers := make(chan Group)
	for range 3 {
		go func() {
			g, _ := c.Get(t.Context())
			answers <- g
		}()
	}
	<-begun
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no more time"))
	if g, err := c.Get(ended); !errtest.Names(err, "no more time") {
		t.Errorf("while somebody else finds it: %q (%v)", g, err)
	}
	answer <- V3
	for range 3 {
		if g := <-answers; g != V3 {
			t.Errorf("who waited was told %q", g)
		}
	}
	if calls != 2 {
		t.Errorf("it was looked for %d times, want 2", calls)
	}
	in, cancelIn := c.While(t.Context())
	defer cancelIn()
	c.Set(V3)
	if in.Err() != nil {
		t.Error("what runs in the group has ended, although the group is the same")
	}
	c.Set(V1)
	<-in.Done()
	if g, err := c.Get(ended); err != nil || g != V1 || c.Known() != V1 {
		t.Errorf("changed to %s: %q, %q (%v)", V1, g, c.Known(), err)
	}
	c.Hold(true)
	if !c.Held() || c.Wanted() || !In(V1).Wanted() {
		t.Errorf("held %v, wanted %v; one that is set: wanted %v", c.Held(), c.Wanted(), In(V1).Wanted())
	}
	var none *Current
	none.Hold(true)
	if g, err := none.Get(ended); err != nil || g != V1 || none.Known() != V1 || none.Held() {
		t.Errorf("nil: %q (%v)", g, err)
	}
}

// TestMove has metadata and specs in the form of the other group, and the way back.
func TestMove(t *testing.T) {
	spec := func(text string) json.RawMessage { return json.RawMessage(text) }
	inV3 := api.Meta{Name: "x", Labels: map[string]string{"a": "1", "projectcalico.org/tier": "t"},
		Annotations: map[string]string{"b": "2", "tortie.io/node": "n"}}
	inV1 := api.Meta{Name: "x", Labels: map[string]string{"projectcalico.org/tier": "t"}, Annotations: map[string]string{
		"tortie.io/node":             "n",
		"projectcalico.org/metadata": `{"annotations":{"b":"2","tortie.io/node":"n"},"labels":{"a":"1","projectcalico.org/tier":"t"}}`,
	}}
	for _, c := range []struct {
		to            Group
		kind          string
		meta, want    api.Meta
		spec, written string
	}{
		{V1, "IPPool", inV3, inV1, `{"a":1}`, `{"a":1}`},
		{V3, "IPPool", inV1, inV3, `{"a":1}`, `{"a":1}`},
		{V1, "BlockAffinity", inV3, inV3, `{"deleted":false,"node":"n"}`, `{"deleted":"false","node":"n"}`},
		{V3, "BlockAffinity", inV3, inV3, `{"deleted":"true","node":"n"}`, `{"deleted":false,"node":"n"}`},
		{V3, "IPAMHandle", api.Meta{Annotations: map[string]string{"projectcalico.org/metadata": "{}"}},
			api.Meta{Annotations: map[string]string{}}, `{"deleted":false}`, `{"deleted":false}`},
		{V3, "IPAMHandle", api.Meta{Labels: map[string]string{"own": "1"}, Annotations: map[string]string{
			"projectcalico.org/metadata": `{"labels":{"own":"2","a":"b"},"annotations":{"tortie.io/node":"other"},"finalizers":["a/b"]}`}},
			api.Meta{Labels: map[string]string{"own": "1"}, Annotations: map[string]string{}}, `{}`, `{}`},
		{V3, "NetworkSet", api.Meta{Foreign: &api.Foreign{Finalizers: []string{"a/b"}, OwnerReferences: spec(`[{"kind":"A","uid":"1"}]`)},
			Annotations: map[string]string{"projectcalico.org/metadata": `{"finalizers":["a/b","c/d"],"ownerReferences":[{"kind":"A","uid":"1"},` +
				`{"kind":"B","uid":"2"}]}`}},
			api.Meta{Annotations: map[string]string{}, Foreign: &api.Foreign{Finalizers: []string{"a/b", "c/d"},
				OwnerReferences: spec(`[{"kind":"A","uid":"1"},{"kind":"B","uid":"2"}]`)}}, `{}`, `{}`},
		{V3, "NetworkSet", api.Meta{Annotations: map[string]string{"projectcalico.org/metadata": `{"finalizers":["c/d"]}`}},
			api.Meta{Annotations: map[string]string{}, Foreign: &api.Foreign{Finalizers: []string{"c/d"}}}, `{}`, `{}`},
		{V1, "Tier", api.Meta{Name: "y"}, api.Meta{Name: "y"}, `null`, `null`},
		{V1, "BlockAffinity", api.Meta{}, api.Meta{}, `null`, `null`},
		{V3, "GlobalNetworkPolicy", api.Meta{}, api.Meta{}, `{"order":1}`, `{"order":1,"types":["Ingress","Egress"]}`},
		{V3, "StagedNetworkPolicy", api.Meta{}, api.Meta{}, `{"types":null}`, `{"types":["Ingress","Egress"]}`},
		{V3, "NetworkPolicy", api.Meta{}, api.Meta{}, `{"types": ["Egress"]}`, `{"types": ["Egress"]}`},
		{V3, "StagedKubernetesNetworkPolicy", api.Meta{}, api.Meta{}, `{"order":1}`, `{"order":1}`},
		{V1, "NetworkPolicy", api.Meta{}, api.Meta{}, `{"order":1}`, `{"order":1}`},
		{V1, "NetworkPolicy", api.Meta{Name: "default.web"}, // else it would count without the prefix
			api.Meta{Name: "default.web", Annotations: map[string]string{"projectcalico.org/metadata": `{"name":"default.web"}`}}, `{}`, `{}`},
		{V1, "StagedGlobalNetworkPolicy", api.Meta{Name: "default.web", Labels: map[string]string{"a": "b"}},
			api.Meta{Name: "default.web", Labels: map[string]string{}, Annotations: map[string]string{
				"projectcalico.org/metadata": `{"labels":{"a":"b"},"name":"default.web"}`}}, `{}`, `{}`},
		{V1, "StagedKubernetesNetworkPolicy", api.Meta{Name: "default.web"}, api.Meta{Name: "default.web"}, `{}`, `{}`},
	} {
		before := maps.Clone(c.meta.Annotations)
		if diff := cmp.Diff(c.want, c.to.MoveMeta(c.kind, c.meta)); diff != "" {
			t.Errorf("metadata of %s in %s (-want +got):\n%s", c.kind, c.to, diff)
		}
		if got := string(c.to.MoveSpec(c.kind, spec(c.spec))); got != c.written {
			t.Errorf("spec %s of %s in %s: %s, want %s", c.spec, c.kind, c.to, got, c.written)
		}
		if diff := cmp.Diff(before, c.meta.Annotations); diff != "" {
			t.Errorf("%s in %s has changed the object:\n%s", c.kind, c.to, diff)
		}
	}
}

// In V3 a policy has the name that it is called by; one that is called so in V3 keeps it on the way back.
func TestMoveName(t *testing.T) {
	named := func(text string) map[string]string { return map[string]string{"projectcalico.org/metadata": text} }
	for _, c := range []struct {
		to         Group
		kind, name string
		own        map[string]string
		spec, want string
	}{
		{V3, "NetworkPolicy", "default.web", nil, `{}`, "web"},
		{V3, "StagedGlobalNetworkPolicy", "default.web", named(`{}`), `{"tier":"default"}`, "web"},
		{V3, "GlobalNetworkPolicy", "default.web", named(`{"name":"default.web"}`), `{"tier":"default"}`, "default.web"},
		{V3, "NetworkPolicy", "default.web", nil, `{"tier":"security"}`, "default.web"},
		{V3, "StagedKubernetesNetworkPolicy", "default.web", nil, `{}`, "default.web"},
		{V3, "NetworkSet", "default.web", nil, `{}`, "default.web"},
		{V1, "NetworkPolicy", "default.web", nil, `{}`, "default.web"},
	} {
		m := api.Meta{Name: c.name, Annotations: c.own}
		if got := c.to.MoveName(c.kind, &m, json.RawMessage(c.spec)); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	back := V1.MoveMeta("NetworkPolicy", api.Meta{Name: "default.web"})
	if got := V3.MoveName("NetworkPolicy", &back, json.RawMessage(`{}`)); got != "default.web" {
		t.Errorf("back in %s: %q", V3, got)
	}
}
