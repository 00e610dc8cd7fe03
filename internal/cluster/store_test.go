package cluster

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func decoded(t *testing.T, text string) *object[api.IPPool] {
	t.Helper()
	o := &object[api.IPPool]{}
	errtest.Must(t, json.Unmarshal([]byte(text), o))
	return o
}

// One object that cannot be read is named and hides no other; what it was before stays in force.
func TestBrokenObjects(t *testing.T) {
	changes := 0
	s := newObjectStore(sameRevision[api.IPPool], func(*api.IPPool) { changes++ })
	add := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			errtest.Must(t, s.Add(decoded(t, text)))
		}
	}
	good := `{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"cidr":"10.0.0.0/16"}}`
	add(good, `{"metadata":{"name":"b","resourceVersion":"2"},"spec":{"cidr":7}}`)
	if p := s.all(nil); len(p) != 1 || p[0].Name != "a" || s.get("b") != nil {
		t.Errorf("pools: %+v", p)
	}
	if p := s.problems(); len(p) != 1 || p[0].Name != "b" || p[0].Kind.Kind != "IPPool" ||
		!errtest.Names(p[0].Err, "IPPool b IPPoolSpec.spec.cidr") {
		t.Errorf("problems: %v", p)
	}
	broken := `{"metadata":{"name":"a","resourceVersion":"3"},"spec":{"blockSize":"large"}}`
	add(broken)
	if p := s.get("a"); p == nil || p.Spec.CIDR != "10.0.0.0/16" {
		t.Errorf("what it was is lost: %+v", p)
	}
	if p := s.problems(); len(p) != 2 || !strings.Contains(p[0].Err.Error()+p[1].Err.Error(), "what it was before stays in force") {
		t.Errorf("problems: %v", p)
	}
	if got := decoded(t, broken).GetObjectMeta(); got.GetName() != "a" || got.GetResourceVersion() != "3" {
		t.Errorf("what the reflector sees of it: %v", got)
	}
	// A new list has both: the same holds.
	errtest.Must(t, s.Replace([]any{decoded(t, broken)}, ""))
	if p := s.get("a"); p == nil || p.Spec.CIDR != "10.0.0.0/16" || len(s.problems()) != 1 || !s.isFull() {
		t.Errorf("after a new list: %+v, %v", p, s.problems())
	}
	before := changes
	add(`{"metadata":{"name":"a","resourceVersion":"4"},"spec":{"cidr":"10.0.0.0/16"}}`)
	if len(s.problems()) != 0 || changes == before {
		t.Errorf("mended: %v, told %v", s.problems(), changes > before)
	}
}

func TestShelfTellsOfDifferences(t *testing.T) {
	var told []string
	s := newObjectStore(sameNode, func(n *api.Node) { told = append(told, n.Name+" "+n.Labels["zone"]) })
	node := func(name, zone, revision string) *object[api.Node] {
		return &object[api.Node]{value: api.Node{Meta: api.Meta{Name: name, ResourceVersion: revision, Labels: map[string]string{"zone": zone}}}}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if strings.Join(told, ",") != strings.Join(want, ",") {
			t.Errorf("%s: told of %v, want %v", what, told, want)
		}
		told = nil
	}
	errtest.Must(t, s.Replace([]any{node("a", "1", "1"), node("b", "1", "1")}, ""))
	told = nil
	_ = s.Update(node("a", "1", "2"))
	expect("a heartbeat")
	_ = s.Update(node("a", "2", "3"))
	expect("a label", "a 2")
	errtest.Must(t, s.Replace([]any{node("a", "2", "9"), node("c", "1", "9")}, ""))
	if len(told) != 2 || !strings.Contains(strings.Join(told, ","), "c 1") || !strings.Contains(strings.Join(told, ","), "b 1") {
		t.Errorf("a new list: told of %v", told)
	}
	told = nil
	_ = s.Delete(node("c", "1", "10"))
	_ = s.Delete(node("c", "1", "10"))
	expect("a deletion, twice", "c 1")
	for _, wrong := range []func(any) error{s.Add, s.Delete, func(o any) error { return s.Replace([]any{o}, "") }} {
		if wrong(&object[api.IPPool]{}) == nil {
			t.Error("a pool among nodes was taken")
		}
	}
}

// What is kept of a big cluster's objects is little.
func TestTrim(t *testing.T) {
	w := &Watch{self: "me"}
	other := api.BlockAffinity{Meta: api.Meta{Name: "x", UID: "u", ResourceVersion: "1", Labels: map[string]string{"a": "b"}},
		Spec: api.BlockAffinitySpec{Node: "n", CIDR: "10.0.0.0/26", State: api.AffinityConfirmed}}
	own := other
	own.Spec.Node = "me"
	w.trimAffinity(&other)
	w.trimAffinity(&own)
	if other.Labels != nil || other.UID != "" || other.Name != "x" || !other.Confirmed() {
		t.Errorf("another node's affinity: %+v", other)
	}
	if own.Labels == nil || own.UID != "u" {
		t.Errorf("this node's affinity: %+v", own)
	}
	n := api.Node{
		Meta: api.Meta{Name: "n", UID: "u", Annotations: map[string]string{api.AnnotationIPv6Address: "fd00::1/64", "big": "x"}},
		Status: api.NodeStatus{Addresses: []api.NodeAddress{{}},
			Conditions: []api.NodeCondition{{Type: "Ready"}, {Type: api.NetworkUnavailable}}},
	}
	full := n
	trimOwnNode(&full)
	if len(full.Status.Conditions) != 1 || len(full.Status.Addresses) != 1 || len(full.Annotations) != 1 {
		t.Errorf("this node: %+v", full)
	}
	trimNode(&n)
	if len(n.Status.Addresses) != 0 || n.Annotations[api.AnnotationIPv6Address] == "" || len(n.Annotations) != 1 {
		t.Errorf("another node: %+v", n)
	}
	s := api.Service{Meta: api.Meta{Name: "s", UID: "u", CreationTimestamp: "2026-11-28T10:00:00Z", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"big": "x"}}}
	trimLoadBalancer(&s)
	if s.CreationTimestamp == "" || s.UID != "u" || s.Labels != nil || len(s.Annotations) != 0 {
		t.Errorf("a Service: %+v", s)
	}
	end := decoded(t, `{"metadata":{"resourceVersion":"5","annotations":{"`+metav1.InitialEventsAnnotationKey+`":"true"}}}`)
	if !endsList(watch.Event{Type: watch.Bookmark, Object: end}) {
		t.Error("the end of a list is not told")
	}
}

// A policy that cannot be read as a whole counts as far as it can be, also after it could be.
func TestUnreadablePolicies(t *testing.T) {
	f, err := NewPolicyFeed(Server{Config: &rest.Config{Host: "http://127.0.0.1:1"}}, "self", slog.New(slog.DiscardHandler))
	errtest.Must(t, err)
	add := func(revision, spec string) *api.NetworkPolicy {
		o := &object[api.NetworkPolicy]{}
		text := `{"metadata":{"namespace":"shop","name":"web","uid":"u","resourceVersion":"` + revision + `"},"spec":` + spec + `}`
		errtest.Must(t, errors.Join(json.Unmarshal([]byte(text), o), f.policies.Add(o)))
		view := f.Take()
		if len(view.NetworkPolicies) != 1 || len(view.Problems) != 0 || !view.More {
			t.Fatalf("policies %v, problems %v", view.NetworkPolicies, view.Problems)
		}
		return view.NetworkPolicies[0]
	}
	if p := add("1", `{"podSelector":{"matchLabels":{"app":"web"}},"ingress":7}`); p.Spec.PodSelector.MatchLabels["app"] != "web" ||
		p.Spec.Unreadable == "" || p.UID != "u" {
		t.Errorf("%+v", p)
	}
	if p := add("2", `{"podSelector":{},"ingress":[{}]}`); p.Spec.Unreadable != "" || len(p.Spec.Ingress) != 1 {
		t.Errorf("%+v", p)
	}
	if p := add("3", `{"podSelector":7,"ingress":[{}]}`); p.Spec.Unreadable == "" || len(p.Spec.Ingress) != 0 || p.ResourceVersion != "3" {
		t.Errorf("%+v", p)
	}
}

// A misspelt key is a problem of its object, also where a definition of older releases or another program's has kept
// it; the object counts.
func TestMisspeltKeys(t *testing.T) {
	s := newObjectStore(sameRevision, func(*api.BGPPeer) {})
	var o object[api.BGPPeer]
	errtest.Must(t, json.Unmarshal([]byte(`{"metadata":{"name":"p"},"spec":{"peerIP":"10.0.0.1","fliters":["out"],"Filters":["in"]}}`), &o))
	errtest.Must(t, s.Add(&o))
	got := s.problems()
	if len(got) != 1 || got[0].Name != "p" || !errtest.Names(got[0].Err, "BGPPeer p spec.Filters spec.fliters") {
		t.Errorf("problems %v", got)
	}
	if p := s.get("p"); p == nil || p.Spec.PeerIP != "10.0.0.1" || p.Spec.Filters != nil {
		t.Errorf("the object is %+v", p)
	}
}
