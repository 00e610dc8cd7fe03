package uninstall

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

func TestNext(t *testing.T) {
	nodes := []Node{{"a", true, true}, {"b", true, true}, {"c", false, true}, {"stranger", true, false}}
	for name, c := range map[string]struct {
		view View
		want Round
	}{
		"agents end first": {View{Nodes: nodes, Agents: set("a", "b")},
			Round{Waiting: map[string]string{"a": "its agent's pod has not ended", "b": "its agent's pod has not ended", "c": notReady}}},
		"one after another": {View{Nodes: nodes, Agents: set("a")},
			Round{Create: []Order{{Node: "b"}},
				Waiting: map[string]string{"a": "its agent's pod has not ended", "b": "its pod is being made", "c": notReady}}},
		"Calico's": {View{Nodes: nodes, Calico: set("b"), Cleaners: map[string]Cleaner{"a": {Done: true}}},
			Round{Create: []Order{{Node: "b", HandOver: true}}, Done: []string{"a"},
				Waiting: map[string]string{"b": "its pod is being made", "c": notReady}}},
		"a failure": {View{Nodes: nodes, Cleaners: map[string]Cleaner{"a": {Done: true}, "b": {Message: "files failed: no space"}}},
			Round{Done: []string{"a"}, Waiting: map[string]string{"b": "files failed: no space", "c": notReady}}},
		"cleaned, and silent since": {View{Nodes: nodes, Cleaners: map[string]Cleaner{"a": {Done: true}, "b": {Done: true}, "c": {Done: true}}},
			Round{Done: []string{"a", "b", "c"}, Waiting: map[string]string{}}},
		"nodes that have gone": {View{}, Round{Done: []string{"a", "b", "c"}, Waiting: map[string]string{}}},
	} {
		difftest.Want(t, name, c.want, c.view.Next([]string{"a", "b", "c"}))
	}
	difftest.Want(t, "targets", []string{"a", "b", "c", "d"}, View{Nodes: append(nodes, Node{Name: "d"}), Agents: set("d")}.Targets())
}

// TestAnyOrderOfEvents has nodes that become silent, return and disappear, agents that end at any time, and pods that
// fail at first: no node is cleaned while its agent runs or twice, none with Calico is cleaned completely, and in the
// end all existing ones are clean.
func TestAnyOrderOfEvents(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		v := View{Agents: map[string]bool{}, Calico: map[string]bool{}, Cleaners: map[string]Cleaner{}}
		for _, name := range []string{"a", "b", "c", "d"} {
			v.Nodes = append(v.Nodes, Node{Name: name, Ready: random.IntN(3) > 0, Ours: true})
			v.Agents[name], v.Calico[name] = true, random.IntN(4) == 0
		}
		targets := v.Targets()
		for round := 0; ; round++ {
			r := v.Next(targets)
			if len(r.Done)+len(r.Waiting) != len(targets) {
				t.Fatalf("seed %d: %d done and %d waiting of %d", seed, len(r.Done), len(r.Waiting), len(targets))
			}
			for _, o := range r.Create {
				if _, twice := v.Cleaners[o.Node]; twice || v.Agents[o.Node] || o.HandOver != v.Calico[o.Node] {
					t.Fatalf("seed %d: %+v in %+v", seed, o, v)
				}
				v.Cleaners[o.Node] = Cleaner{}
			}
			if len(r.Waiting) == 0 {
				break
			}
			if round > 200 {
				t.Fatalf("seed %d: still waiting: %v", seed, r.Waiting)
			}
			happen(random, &v, round > 100)
		}
	}
}

// happen makes random changes; with calm all kubelets answer, agents end and cleaners succeed.
func happen(random *rand.Rand, v *View, calm bool) {
	for i := range v.Nodes {
		name := v.Nodes[i].Name
		v.Nodes[i].Ready = calm || random.IntN(4) > 0
		if calm || random.IntN(3) == 0 {
			delete(v.Agents, name)
		}
		if c, ok := v.Cleaners[name]; ok && !c.Done && v.Nodes[i].Ready {
			v.Cleaners[name] = [...]Cleaner{{Done: true}, {Message: "failed"}}[min(random.IntN(2), map[bool]int{true: 0, false: 1}[calm])]
		}
	}
	if random.IntN(20) == 0 && len(v.Nodes) > 1 {
		v.Nodes = v.Nodes[1:]
	}
}

func TestProgressNamesAFew(t *testing.T) {
	r := Round{Done: []string{"x"}, Waiting: map[string]string{}}
	for _, name := range strings.Split("abcdefg", "") {
		r.Waiting[name] = notReady
	}
	line := r.progress(8, 90*time.Second)
	difftest.Contains(t, line, "1 of 8 nodes", "1m30s left", "a ("+notReady+")", "e (", "and 2 more")
	if failed, silent := r.failed(); len(failed) != 0 || len(silent) != 7 {
		t.Errorf("failed %v, silent %v", failed, silent)
	}
}

// TestAllWrittenIsUndone: no annotation that an agent may write on its Node stays, but the AS number, which may be an
// administrator's.
func TestAllWrittenIsUndone(t *testing.T) {
	rule := fence.Find(fence.Agent, "patch", "nodes/status", fence.Own)
	if rule == nil {
		t.Fatal("agents have no right to write annotations of their Nodes")
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	for _, f := range rule.Fields {
		if len(f.Path) == 3 && f.Path[1] == "annotations" && f.Path[2] != api.AnnotationASNumber {
			n.Annotations[f.Path[2]] = "x"
		}
	}
	want := map[string]any{}
	for key := range n.Annotations {
		want[key] = nil
	}
	text, err := undo(n)
	errtest.Must(t, err)
	var got map[string]any
	errtest.Must(t, json.Unmarshal(text, &got))
	difftest.Want(t, "patch", map[string]any{"metadata": map[string]any{"annotations": want}}, got)
}

// TestUndo: an agent's annotations and condition are removed, and others' stay.
func TestUndo(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		api.AnnotationIPv4Address: "10.0.0.1/24", api.AnnotationReflection: "x", api.AnnotationASNumber: "64600", "other": "y",
	}}}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "CalicoIsUp", Message: "Tortie is running on this node"},
	}
	if !isOurs(n) || !answers(n) {
		t.Error("a node with an agent is not ours, or does not answer")
	}
	text, err := undo(n)
	errtest.Must(t, err)
	var got map[string]any
	errtest.Must(t, json.Unmarshal(text, &got))
	want := map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{api.AnnotationIPv4Address: nil, api.AnnotationReflection: nil}},
		"status":   map[string]any{"conditions": []any{map[string]any{"$patch": "delete", "type": "NetworkUnavailable"}}},
	}
	difftest.Want(t, "patch", want, got)
	n.Annotations, n.Status.Conditions[1].Status = map[string]string{api.AnnotationReflector: "10.0.0.1"}, corev1.ConditionTrue
	n.Labels, n.Status.Conditions[1].Message = map[string]string{api.LabelReflector: "", "zone": "z"}, "Calico is running on this node"
	text, err = undo(n)
	errtest.Must(t, err)
	difftest.Want(t, "patch of a route reflector", `{"metadata":{"annotations":{"`+api.AnnotationReflector+`":null},"labels":{"`+
		api.LabelReflector+`":null}}}`, string(text))
	n.Labels = nil
	n.Annotations = map[string]string{api.AnnotationASNumber: "64600", api.AnnotationReflector: "10.0.0.1"}
	n.Status.Conditions[1].Message = "Calico is running on this node"
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	if text, err := undo(n); text != nil || err != nil || isOurs(n) || answers(n) {
		t.Errorf("of Calico's node: %s, %v", text, err)
	}
}
