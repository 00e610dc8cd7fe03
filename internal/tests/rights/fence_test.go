package rights

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// scene is a cluster of two nodes with a pod and a block each. The attacker has tokens of the first.
type scene struct {
	admin         *user
	agent, plugin *user // with tokens of node thief
	cfg           *rest.Config
	thief, victim string
}

func newScene(t *testing.T, args ...string) *scene {
	t.Helper()
	cfg := server(t, "auto", args...)
	name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	s := &scene{admin: newUser(t, cfg), cfg: cfg, thief: name + "-thief", victim: name + "-victim"}
	for _, node := range []string{s.thief, s.victim} {
		s.admin.declare(t, node)
		s.pod(t, node)
	}
	s.agent = newUser(t, labtest.OnNode(t, cfg, "tortie-node", s.thief))
	s.plugin = newUser(t, labtest.OnNode(t, cfg, "tortie-cni", s.thief))
	return s
}

// secret is a literal value in the environment of all pods.
const secret = "a literal secret"

// pod creates a pod of the node with the node's name.
func (s *scene) pod(t *testing.T, node string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"other": "x"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none", Env: []corev1.EnvVar{{Name: "A", Value: secret}}}}},
	}
	if _, err := s.admin.core.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// refused fails the test unless the chart's admission policies, and nothing else, denied the request. An expression that cannot be evaluated
// results in Invalid.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	said := apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
	if !said || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'tortie-fence-") {
		t.Errorf("%s: error %v, want a denial by the chart's policies", what, err)
	}
}

// refusedByRBAC fails the test unless RBAC denied the request.
func refusedByRBAC(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		t.Errorf("%s: error %v, want a denial by RBAC", what, err)
	}
}

// passed fails the test if the request was denied.
func passed(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// block returns a block of 16 addresses at 10.99.N.0/28: the first two are the victim's, the third is the thief's, the fourth is in cooldown,
// the fifth is assigned without a node, the sixth has an empty attribute, the rest is free.
func (s *scene) block(t testing.TB, n int, affinity string) *unstructured.Unstructured {
	t.Helper()
	spec := map[string]any{
		"cidr": fmt.Sprintf("10.99.%d.0/28", n), "affinityClaimTime": "2026-01-02T03:04:05Z", "strictAffinity": false, "deleted": false,
		"allocations": []any{int64(0), int64(0), int64(1), int64(2), int64(3), int64(4), nil, nil, nil, nil, nil, nil, nil, nil, nil, nil},
		"unallocated": []any{int64(6), int64(7), int64(8), int64(9), int64(10), int64(11), int64(12), int64(13), int64(14), int64(15)},
		"attributes": []any{
			map[string]any{"handle_id": "net.v", "secondary": map[string]any{"node": s.victim, "pod": "p"}},
			map[string]any{"handle_id": "net.t", "secondary": map[string]any{"node": s.thief, "pod": "q"}},
			map[string]any{"releasedAt": "2026-01-02T03:04:05Z"},
			map[string]any{"handle_id": "old.pod", "secondary": map[string]any{"pod": "p"}},
			map[string]any{},
		},
		"sequenceNumber":              int64(100),
		"sequenceNumberForAllocation": map[string]any{"0": int64(7), "1": int64(8), "2": int64(9)},
	}
	if affinity != "" {
		spec["affinity"] = affinity
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
		"metadata": map[string]any{"name": fmt.Sprintf("10-99-%d-0-28", n)}, "spec": spec,
	}}
}

// spec is the content of a block that a case changes.
type spec map[string]any

func (s spec) list(field string) []any { return s[field].([]any) }

// assign assigns a free address, in a write that is counted already.
func (s spec) assign(ordinal int, handle, node string) {
	attrs := append(s.list("attributes"), map[string]any{"handle_id": handle, "secondary": map[string]any{"node": node}})
	s["attributes"] = attrs
	s.list("allocations")[ordinal] = int64(len(attrs) - 1)
	s["unallocated"] = slices.DeleteFunc(slices.Clone(s.list("unallocated")), func(o any) bool { return o == int64(ordinal) })
	s["sequenceNumberForAllocation"].(map[string]any)[fmt.Sprint(ordinal)] = s["sequenceNumber"].(int64) - 1
}

// free releases an address; attributes stay in place.
func (s spec) free(ordinal int) {
	s.list("allocations")[ordinal] = nil
	s["unallocated"] = append(s.list("unallocated"), int64(ordinal))
	delete(s["sequenceNumberForAllocation"].(map[string]any), fmt.Sprint(ordinal))
}

// point changes the attributes of an address.
func (s spec) point(ordinal int, attributes map[string]any) {
	s["attributes"] = append(s.list("attributes"), attributes)
	s.list("allocations")[ordinal] = int64(len(s.list("attributes")) - 1)
}

// drop removes the first attribute, which is not used any more, and renumbers the others.
func (s spec) drop() {
	s["attributes"] = s.list("attributes")[1:]
	for i, at := range s.list("allocations") {
		if at != nil {
			s.list("allocations")[i] = at.(int64) - 1
		}
	}
}

func (s spec) bump() { s["sequenceNumber"] = s["sequenceNumber"].(int64) + 1 }

func of(node string) map[string]any {
	return map[string]any{"handle_id": "net.x", "secondary": map[string]any{"node": node}}
}

func TestBlocks(t *testing.T) {
	s := newScene(t)
	victims, thiefs := "host:"+s.victim, "host:"+s.thief
	for n, c := range []struct {
		name    string
		owner   string // "": none
		change  func(*unstructured.Unstructured, spec)
		refused bool
	}{
		// Writes of plugins to blocks of other nodes.
		{"borrow", victims, func(_ *unstructured.Unstructured, b spec) { b.assign(6, "net.n", s.thief) }, false},
		{"return", victims, func(_ *unstructured.Unstructured, b spec) { b.free(2) }, false},
		{"return, to cool down", victims, func(_ *unstructured.Unstructured, b spec) {
			b.point(2, map[string]any{"releasedAt": "2026-02-02T03:04:05Z"})
		}, false},
		{"free what has cooled down", victims, func(_ *unstructured.Unstructured, b spec) { b.free(3); b.assign(8, "net.n", s.thief) }, false},
		{"take over an address without an owner", victims, func(_ *unstructured.Unstructured, b spec) { b.point(5, of(s.thief)) }, false},
		{"release what it does not hold", victims, func(_ *unstructured.Unstructured, b spec) {}, false},
		{"move its own attributes", victims, func(_ *unstructured.Unstructured, b spec) {
			b.free(2)
			b["attributes"] = slices.Concat(b.list("attributes")[:1], b.list("attributes")[2:])
			for i, at := range b.list("allocations") {
				if at != nil && at.(int64) > 1 {
					b.list("allocations")[i] = at.(int64) - 1
				}
			}
		}, false},
		// Writes to blocks without an owner and to own blocks.
		{"claim a block without an owner", "", func(_ *unstructured.Unstructured, b spec) {
			b["affinity"], b["affinityClaimTime"] = thiefs, "2026-02-02T03:04:05Z"
			b.assign(6, "net.n", s.thief)
		}, false},
		{"assign from a block without an owner", "", func(_ *unstructured.Unstructured, b spec) { b.assign(6, "net.n", s.thief) }, false},
		{"assign from its own", thiefs, func(_ *unstructured.Unstructured, b spec) { b.assign(6, "net.n", s.thief) }, false},
		{"give up its own", thiefs, func(_ *unstructured.Unstructured, b spec) { delete(b, "affinity") }, false},
		{"renew its own", thiefs, func(_ *unstructured.Unstructured, b spec) {
			b["sequenceNumberForAllocation"].(map[string]any)["2"] = int64(100)
		}, false},
		{"free what has no node in its own", thiefs, func(_ *unstructured.Unstructured, b spec) { b.free(4) }, false},
		// Attacks.
		{"free the victim's", victims, func(_ *unstructured.Unstructured, b spec) { b.free(0) }, true},
		{"free the victim's in its own block", thiefs, func(_ *unstructured.Unstructured, b spec) { b.free(0) }, true},
		{"free the victim's in a block without an owner", "", func(_ *unstructured.Unstructured, b spec) { b.free(0) }, true},
		{"free what has no node", victims, func(_ *unstructured.Unstructured, b spec) { b.free(4) }, true},
		{"take over the victim's", victims, func(_ *unstructured.Unstructured, b spec) { b.point(0, of(s.thief)) }, true},
		{"take what has no node", victims, func(_ *unstructured.Unstructured, b spec) { b.point(4, of(s.thief)) }, true},
		{"swap the holders", victims, func(_ *unstructured.Unstructured, b spec) {
			b.list("allocations")[0], b.list("allocations")[2] = int64(1), int64(0)
		}, true},
		{"let the victim's cool down", victims, func(_ *unstructured.Unstructured, b spec) {
			b.point(0, map[string]any{"releasedAt": "2026-02-02T03:04:05Z"})
		}, true},
		{"let the victim hold more", victims, func(_ *unstructured.Unstructured, b spec) { b.assign(6, "net.v", s.victim) }, true},
		{"hold without a node", victims, func(_ *unstructured.Unstructured, b spec) {
			b.assign(6, "net.n", "")
			delete(b.list("attributes")[5].(map[string]any)["secondary"].(map[string]any), "node")
		}, true},
		{"change the victim's handle", victims, func(_ *unstructured.Unstructured, b spec) {
			b.list("attributes")[0].(map[string]any)["handle_id"] = "net.other"
		}, true},
		{"change the victim's attributes", victims, func(_ *unstructured.Unstructured, b spec) {
			b.list("attributes")[0].(map[string]any)["secondary"].(map[string]any)["node"] = s.thief
		}, true},
		{"remove the victim's attributes", victims, func(_ *unstructured.Unstructured, b spec) { b.free(0); b.free(1); b.drop() }, true},
		{"point beyond the attributes", victims, func(_ *unstructured.Unstructured, b spec) { b.list("allocations")[2] = int64(99) }, true},
		{"take the block", victims, func(_ *unstructured.Unstructured, b spec) { b["affinity"] = thiefs }, true},
		{"disown the block", victims, func(_ *unstructured.Unstructured, b spec) { delete(b, "affinity") }, true},
		{"give its own away", thiefs, func(_ *unstructured.Unstructured, b spec) { b["affinity"] = victims }, true},
		{"give a block without an owner away", "", func(_ *unstructured.Unstructured, b spec) { b["affinity"] = victims }, true},
		{"take a load balancer's", "virtual:load-balancer", func(_ *unstructured.Unstructured, b spec) { b["affinity"] = thiefs }, true},
		{"mark it deleted", victims, func(_ *unstructured.Unstructured, b spec) { b["deleted"] = true }, true},
		{"move it", victims, func(_ *unstructured.Unstructured, b spec) { b["cidr"] = "10.98.0.0/28" }, true},
		{"lose a free address", victims, func(_ *unstructured.Unstructured, b spec) { b["unallocated"] = b.list("unallocated")[1:] }, true},
		{"list a free address twice", victims, func(_ *unstructured.Unstructured, b spec) { b.list("unallocated")[0] = int64(7) }, true},
		{"list a freed address twice", victims, func(_ *unstructured.Unstructured, b spec) {
			b.free(2)
			b["unallocated"] = append(b.list("unallocated")[1:], int64(2))
		}, true},
		{"list a held address as free", victims, func(_ *unstructured.Unstructured, b spec) { b["unallocated"] = append(b.list("unallocated"), int64(0)) }, true},
		{"reorder the free addresses", victims, func(_ *unstructured.Unstructured, b spec) { slices.Reverse(b.list("unallocated")) }, true},
		{"make it shorter", victims, func(_ *unstructured.Unstructured, b spec) {
			b["allocations"], b["unallocated"] = b.list("allocations")[:15], b.list("unallocated")[:9]
		}, true},
		{"exhaust the sequence number", victims, func(_ *unstructured.Unstructured, b spec) { b["sequenceNumber"] = int64(1<<63 - 1) }, true},
		{"turn back the sequence number", victims, func(_ *unstructured.Unstructured, b spec) { b["sequenceNumber"] = int64(1) }, true},
		{"change the victim's sequence number", victims, func(_ *unstructured.Unstructured, b spec) {
			b["sequenceNumberForAllocation"].(map[string]any)["0"] = int64(100)
		}, true},
		{"forget the victim's sequence number", victims, func(_ *unstructured.Unstructured, b spec) {
			delete(b["sequenceNumberForAllocation"].(map[string]any), "0")
		}, true},
		{"forge the time of the claim", victims, func(_ *unstructured.Unstructured, b spec) { b["affinityClaimTime"] = "2030-01-02T03:04:05Z" }, true},
		{"list the victim's as free in its own block", thiefs, func(_ *unstructured.Unstructured, b spec) { b["unallocated"] = append(b.list("unallocated"), int64(0)) }, true},
		{"lose a free address of its own block", thiefs, func(_ *unstructured.Unstructured, b spec) { b["unallocated"] = b.list("unallocated")[1:] }, true},
		{"exhaust the sequence number of its own block", thiefs, func(_ *unstructured.Unstructured, b spec) { b["sequenceNumber"] = int64(1<<63 - 1) }, true},
		{"do not count a write of its own block", thiefs, func(_ *unstructured.Unstructured, b spec) {
			b.assign(6, "net.n", s.thief)
			b["sequenceNumber"] = int64(100)
		}, true},
		{"change the victim's sequence number in its own block", thiefs, func(_ *unstructured.Unstructured, b spec) {
			b["sequenceNumberForAllocation"].(map[string]any)["0"] = int64(100)
		}, true},
		{"number what is free", thiefs, func(_ *unstructured.Unstructured, b spec) {
			b["sequenceNumberForAllocation"].(map[string]any)["9"] = int64(100)
		}, true},
		{"number what there is not", thiefs, func(_ *unstructured.Unstructured, b spec) {
			b["sequenceNumberForAllocation"].(map[string]any)["99999"] = int64(100)
		}, true},
		{"long attributes", thiefs, func(_ *unstructured.Unstructured, b spec) { b.assign(6, strings.Repeat("x", 1000), s.thief) }, true},
		{"annotations of the victim's", victims, func(o *unstructured.Unstructured, b spec) {
			o.SetAnnotations(map[string]string{"projectcalico.org/metadata": "{}"})
		}, true},
		{"long annotations of its own", thiefs, func(o *unstructured.Unstructured, b spec) {
			o.SetAnnotations(map[string]string{"projectcalico.org/metadata": strings.Repeat("x", 1025)})
		}, true},
		{"labels of its own", thiefs, func(o *unstructured.Unstructured, b spec) { o.SetLabels(map[string]string{"a": "b"}) }, true},
		{"unknown fields", thiefs, func(_ *unstructured.Unstructured, b spec) { b["other"] = "x" }, true},
		{"let the garbage collector delete it", victims, func(o *unstructured.Unstructured, b spec) {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "0"}})
		}, true},
		{"keep others from deleting it", victims, func(o *unstructured.Unstructured, b spec) { o.SetFinalizers([]string{"thief.example/x"}) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			made := s.admin.create(t, s.block(t, n, c.owner))
			fields := spec(made.Object["spec"].(map[string]any))
			fields.bump()
			c.change(made, fields)
			for _, u := range []*user{s.plugin, s.agent} {
				_, err := u.of(made).Update(t.Context(), made, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
				check(t, "update", err, c.refused)
			}
		})
	}
}

func check(t *testing.T, what string, err error, want bool) {
	t.Helper()
	if want {
		refused(t, what, err)
	} else {
		passed(t, what, err)
	}
}

// emptied returns a block without assigned addresses.
func emptied(b *unstructured.Unstructured) *unstructured.Unstructured {
	s := spec(b.Object["spec"].(map[string]any))
	for i := range 6 {
		s.free(i)
	}
	s["attributes"] = []any{}
	slices.SortFunc(s.list("unallocated"), func(a, b any) int { return cmp.Compare(a.(int64), b.(int64)) })
	return b
}

func TestBlocksComeAndGo(t *testing.T) {
	s := newScene(t)
	victims, thiefs := "host:"+s.victim, "host:"+s.thief
	only := func(b *unstructured.Unstructured) *unstructured.Unstructured {
		emptied(b)
		spec(b.Object["spec"].(map[string]any)).assign(0, "net.n", s.thief)
		return b
	}
	for n, c := range []struct {
		name    string
		block   func(n int) *unstructured.Unstructured
		create  bool // that is refused
		removal bool
	}{
		{"its own, empty", func(n int) *unstructured.Unstructured { return emptied(s.block(t, n, thiefs)) }, false, false},
		{"its own, with its own address", func(n int) *unstructured.Unstructured { return only(s.block(t, n, thiefs)) }, false, false},
		{"its own, with the victim's address", func(n int) *unstructured.Unstructured { return s.block(t, n, thiefs) }, true, true},
		{"without an owner, empty", func(n int) *unstructured.Unstructured { return emptied(s.block(t, n, "")) }, true, false},
		{"without an owner, with its own address", func(n int) *unstructured.Unstructured { return only(s.block(t, n, "")) }, true, false},
		{"without an owner, with the victim's address", func(n int) *unstructured.Unstructured { return s.block(t, n, "") }, true, true},
		{"the victim's", func(n int) *unstructured.Unstructured { return s.block(t, n, victims) }, true, true},
		{"its own, which lists an address twice", func(n int) *unstructured.Unstructured {
			b := emptied(s.block(t, n, thiefs))
			spec(b.Object["spec"].(map[string]any)).list("unallocated")[1] = int64(0)
			return b
		}, true, false},
		{"its own, of another size than its range", func(n int) *unstructured.Unstructured {
			b := emptied(s.block(t, n, thiefs))
			b.SetName(fmt.Sprintf("10-99-%d-0-27", n))
			b.Object["spec"].(map[string]any)["cidr"] = fmt.Sprintf("10.99.%d.0/27", n)
			return b
		}, true, false},
		{"its own, whose sequence number is exhausted", func(n int) *unstructured.Unstructured {
			b := emptied(s.block(t, n, thiefs))
			b.Object["spec"].(map[string]any)["sequenceNumber"] = int64(1<<63 - 1)
			return b
		}, true, false},
		{"the victim's, empty", func(n int) *unstructured.Unstructured { return emptied(s.block(t, n, victims)) }, true, true},
		{"a load balancer's", func(n int) *unstructured.Unstructured { return emptied(s.block(t, n, "virtual:load-balancer")) }, true, true},
		{"under another name", func(n int) *unstructured.Unstructured {
			b := emptied(s.block(t, n, thiefs))
			b.SetName("10-98-0-0-28")
			return b
		}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := c.block(100 + n)
			_, err := s.plugin.of(b).Create(t.Context(), b, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			check(t, "create", err, c.create)
			s.admin.create(t, b)
			err = s.plugin.of(b).Delete(t.Context(), b.GetName(), metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
			check(t, "delete", err, c.removal)
		})
	}
}

func affinity(name, node, cidr string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"state": "confirmed", "node": node, "cidr": cidr, "type": "host", "deleted": "false"},
	}}
}

// with returns a copy of an object with a field of its spec changed.
func with(obj *unstructured.Unstructured, field string, value any) *unstructured.Unstructured {
	obj.Object["spec"].(map[string]any)[field] = value
	return obj
}

func TestAffinities(t *testing.T) {
	s := newScene(t)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for _, c := range []struct {
		name    string
		obj     *unstructured.Unstructured
		refused bool
	}{
		{"its own", affinity(s.thief+"-10-97-0-0-26", s.thief, "10.97.0.0/26"), false},
		{"its own, IPv6", affinity(s.thief+"-fd00--40-122", s.thief, "fd00::40/122"), false},
		{"the victim's", affinity(s.victim+"-10-97-0-0-26", s.victim, "10.97.0.0/26"), true},
		{"the victim's name", affinity(s.victim+"-10-97-0-0-26", s.thief, "10.97.0.0/26"), true},
		{"another block's name", affinity(s.thief+"-10-97-0-0-26", s.thief, "10.97.0.64/26"), true},
		{"larger than a block may be", affinity(s.thief+"-10-97-0-0-19", s.thief, "10.97.0.0/19"), true},
		{"everything", affinity(s.thief+"-0-0-0-0-0", s.thief, "0.0.0.0/0"), true},
		{"everything, IPv6", affinity(s.thief+"----0", s.thief, "::/0"), true},
		{"larger than a block may be, IPv6", affinity(s.thief+"-fd00---115", s.thief, "fd00::/115"), true},
		{"another spelling", affinity(s.thief+"-fd00-0--40-122", s.thief, "fd00:0::40/122"), true},
		{"an unknown state", with(affinity(s.thief+"-10-97-0-0-26", s.thief, "10.97.0.0/26"), "state", "x"), true},
		{"unknown fields", with(affinity(s.thief+"-10-97-0-0-26", s.thief, "10.97.0.0/26"), "other", "x"), true},
		{"no CIDR", affinity(s.thief+"-x", s.thief, "x"), true},
		{"no network", affinity(s.thief+"-10-97-0-1-26", s.thief, "10.97.0.1/26"), true},
	} {
		_, err := s.plugin.of(c.obj).Create(t.Context(), c.obj, dry)
		check(t, "create "+c.name, err, c.refused)
	}
	own := s.admin.create(t, affinity(s.thief+"-10-97-0-128-26", s.thief, "10.97.0.128/26"))
	theirs := s.admin.create(t, affinity(s.victim+"-10-97-0-192-26", s.victim, "10.97.0.192/26"))
	for _, c := range []struct {
		name   string
		obj    *unstructured.Unstructured
		change func(map[string]any)
		want   bool
	}{
		{"its own is given up", own, func(a map[string]any) { a["state"] = "pendingDeletion" }, false},
		{"its own becomes the victim's", own, func(a map[string]any) { a["node"] = s.victim }, true},
		{"its own moves", own, func(a map[string]any) { a["cidr"] = "10.97.0.64/26" }, true},
		{"its own is marked deleted", own, func(a map[string]any) { a["deleted"] = "true" }, true},
		{"the victim's is taken away", theirs, func(a map[string]any) { a["state"] = "pendingDeletion" }, true},
		{"the victim's becomes the thief's", theirs, func(a map[string]any) { a["node"] = s.thief }, true},
		{"the victim's is marked deleted", theirs, func(a map[string]any) { a["deleted"] = "true" }, true},
	} {
		obj := c.obj.DeepCopy()
		c.change(obj.Object["spec"].(map[string]any))
		_, err := s.agent.of(obj).Update(t.Context(), obj, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		check(t, c.name, err, c.want)
	}
	refused(t, "the victim's is deleted", s.agent.of(theirs).Delete(t.Context(), theirs.GetName(), metav1.DeleteOptions{}))
	passed(t, "its own is deleted", s.agent.of(own).Delete(t.Context(), own.GetName(), metav1.DeleteOptions{}))
}

// The name of an affinity that would be too long is shortened, and still identifies the node.
func TestAffinityOfALongName(t *testing.T) {
	cfg := server(t, "auto")
	admin := newUser(t, cfg)
	long := strings.Repeat(strings.Repeat("a", 60)+".", 4)[:243] + "node"
	admin.declare(t, long)
	plugin := newUser(t, labtest.OnNode(t, cfg, "tortie-cni", long))
	a := affinity(longAffinity(t, long, "10.96.255.192/26"), long, "10.96.255.192/26")
	_, err := plugin.of(a).Create(t.Context(), a, metav1.CreateOptions{})
	passed(t, "its own, shortened", err)
	b := affinity("other-10-96-255-128-26-0123456789a", long, "10.96.255.128/26")
	_, err = plugin.of(b).Create(t.Context(), b, metav1.CreateOptions{})
	refused(t, "another's, shortened", err)
}

func handle(id, node string) *unstructured.Unstructured {
	annotations := map[string]any{"projectcalico.org/metadata": "{}"}
	if node != "" {
		annotations["tortie.io/node"] = node
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle", "metadata": map[string]any{"name": strings.ToLower(id), "annotations": annotations},
		"spec": map[string]any{"handleID": id, "block": map[string]any{"10.99.0.0/28": int64(1)}, "deleted": false},
	}}
}

func TestHandles(t *testing.T) {
	s := newScene(t)
	for _, c := range []struct {
		name            string
		obj             *unstructured.Unstructured
		create, changes bool // are refused
	}{
		{"its own", handle("net.Own", s.thief), false, false},
		{"the victim's", handle("net.victims", s.victim), true, true},
		{"of a Calico node", handle("net.calicos", ""), false, false},
		{"of its own tunnel", handle("ipip-tunnel-addr-"+s.thief, ""), false, false},
		{"of the victim's tunnel", handle("ipip-tunnel-addr-"+s.victim, ""), true, true},
		{"of the victim's VXLAN tunnel", handle("vxlan-tunnel-addr-"+s.victim, s.thief), true, true},
		{"of the victim's other VXLAN tunnel", handle("vxlan-v6-tunnel-addr-"+s.victim, ""), true, true},
		{"of its own tunnel, in capitals", handle("IPIP-tunnel-addr-"+s.thief, ""), true, false},
		{"of its own tunnel, made by the victim", handle("ipip-tunnel-addr-"+s.thief, s.victim), true, false},
		{"of the victim's tunnel, in capitals", handle("IPIP-tunnel-addr-"+s.victim, ""), true, true},
		{"of the victim's tunnel, in capitals, its own", handle("vxlan-Tunnel-addr-"+s.victim, s.thief), true, true},
		{"of the victim's WireGuard tunnel", handle("WIREGUARD-tunnel-addr-"+s.victim, s.thief), true, true},
	} {
		_, err := s.plugin.of(c.obj).Create(t.Context(), c.obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		check(t, "create "+c.name, err, c.create)
		made := s.admin.create(t, c.obj)
		next := made.DeepCopy()
		next.Object["spec"].(map[string]any)["block"] = map[string]any{"10.99.1.0/28": int64(1)}
		if !c.changes { // an update with the node's ID makes it the node's
			next.Object["spec"].(map[string]any)["handleID"] = mine(next, s.thief)
			next.SetAnnotations(map[string]string{"tortie.io/node": s.thief})
		}
		_, err = s.plugin.of(next).Update(t.Context(), next, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		check(t, "update "+c.name, err, c.changes)
		err = s.plugin.of(made).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{})
		check(t, "delete "+c.name, err, c.changes)
		if c.changes {
			passed(t, "clean up", s.admin.of(made).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}))
		}
	}
	own := s.admin.create(t, handle("net.mine", s.thief))
	for name, change := range map[string]func(*unstructured.Unstructured){
		"becomes the victim's": func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"tortie.io/node": s.victim}) },
		"loses its owner":      func(o *unstructured.Unstructured) { o.SetAnnotations(nil) },
		"is renamed":           func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["handleID"] = "net.other" },
		"names no block": func(o *unstructured.Unstructured) {
			o.Object["spec"].(map[string]any)["block"] = map[string]any{"x": int64(1)}
		},
		"counts too many": func(o *unstructured.Unstructured) {
			o.Object["spec"].(map[string]any)["block"] = map[string]any{"10.99.0.0/28": int64(4097)}
		},
		"is marked deleted": func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["deleted"] = true },
	} {
		next := own.DeepCopy()
		change(next)
		_, err := s.plugin.of(next).Update(t.Context(), next, metav1.UpdateOptions{})
		refused(t, "a handle "+name, err)
	}
}

// mine returns the handle ID that a node's handle must have: that of a tunnel is its name.
func mine(obj *unstructured.Unstructured, node string) string {
	if strings.HasSuffix(obj.GetName(), "-tunnel-addr-"+node) {
		return obj.GetName()
	}
	id, _, _ := unstructured.NestedString(obj.Object, "spec", "handleID")
	return id
}

// patch is a merge patch of a subresource status.
func patch(change map[string]any) []byte {
	data, err := json.Marshal(change)
	if err != nil {
		panic(err) // it consists of strings
	}
	return data
}

func annotate(key, value string) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}
}

func TestNodes(t *testing.T) {
	s := newScene(t)
	nodes := s.agent.core.CoreV1().Nodes()
	for _, c := range []struct {
		name, node string
		change     map[string]any
		refused    bool
	}{
		{"its address", s.thief, annotate("projectcalico.org/IPv4Address", "192.0.2.1/24"), false},
		{"its word on reflection", s.thief, annotate("tortie.io/reflection", "client"), false},
		{"its AS number", s.thief, annotate("projectcalico.org/ASNumber", "64512"), false},
		{"its tunnel's address", s.thief, annotate("projectcalico.org/IPv4VXLANTunnelAddr", "10.99.0.1"), false},
		{"its IPv6 address", s.thief, annotate("projectcalico.org/IPv6Address", "2001:db8::1/64"), false},
		{"its labels for selectors", s.thief, annotate("projectcalico.org/labels", `{"route-reflector":"true"}`), true},
		{"that it is a route reflector", s.thief, annotate("projectcalico.org/RouteReflectorClusterID", "244.0.0.1"), true},
		{"its MAC address", s.thief, annotate("projectcalico.org/VXLANTunnelMACAddr", "66:00:00:00:00:01"), true},
		{"its MAC address of IPv6", s.thief, annotate("projectcalico.org/VXLANTunnelMACAddrV6", "66:00:00:00:00:01"), true},
		{"its interfaces", s.thief, annotate("projectcalico.org/Interfaces", "[]"), true},
		{"that it is to be no reflector", s.thief, annotate("tortie.io/no-reflector", ""), true},
		{"an address that is none", s.thief, annotate("projectcalico.org/IPv4Address", "x"), true},
		{"an address without a length", s.thief, annotate("projectcalico.org/IPv4Address", "192.0.2.1"), true},
		{"an address of the other family", s.thief, annotate("projectcalico.org/IPv4Address", "2001:db8::1/64"), true},
		{"its loopback address", s.thief, annotate("projectcalico.org/IPv4Address", "127.0.0.1/8"), true},
		{"a group's address", s.thief, annotate("projectcalico.org/IPv4Address", "224.0.0.1/8"), true},
		{"a long AS number", s.thief, annotate("projectcalico.org/ASNumber", "64512"+strings.Repeat("0", 1000)), true},
		{"an unknown value", s.thief, annotate("tortie.io/reflection", strings.Repeat("x", 100000)), true},
		{"its runtimes", s.thief, map[string]any{"status": map[string]any{"runtimeHandlers": []any{map[string]any{"name": "x"}}}}, true},
		{"its features", s.thief, map[string]any{"status": map[string]any{"features": map[string]any{"supplementalGroupsPolicy": true}}}, true},
		{"its phase", s.thief, map[string]any{"status": map[string]any{"phase": "Terminated"}}, true},
		{"a long condition", s.thief, condition("NetworkUnavailable", strings.Repeat("x", 600)), true},
		{"its condition", s.thief, condition("NetworkUnavailable", "y"), false},
		{"the victim's address", s.victim, annotate("projectcalico.org/IPv4Address", "192.0.2.1/24"), true},
		{"the victim's condition", s.victim, condition("NetworkUnavailable", "y"), true},
		{"its readiness", s.thief, condition("Ready", "y"), true},
		{"its labels", s.thief, map[string]any{"metadata": map[string]any{"labels": map[string]any{"zone": "z2"}}}, true},
		{"annotations of others", s.thief, annotate("other", "y"), true},
		{"an owner", s.thief, map[string]any{"metadata": map[string]any{"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "n", "uid": "0"}}}}, true},
		{"its addresses", s.thief, map[string]any{"status": map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": "192.0.2.9"}}}}, true},
		{"its room", s.thief, map[string]any{"status": map[string]any{"capacity": map[string]any{"cpu": "64"}}}, true},
	} {
		_, err := nodes.Patch(t.Context(), c.node, types.StrategicMergePatchType, patch(c.change), metav1.PatchOptions{}, "status")
		check(t, c.name, err, c.refused)
	}
}

func condition(kind, message string) map[string]any {
	return map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": kind, "status": "False", "reason": "CalicoIsUp", "message": message}}}}
}

func TestPods(t *testing.T) {
	s := newScene(t)
	pods := s.plugin.core.CoreV1().Pods("default")
	for _, c := range []struct {
		name, pod string
		change    map[string]any
		refused   bool
	}{
		{"its address", s.thief, annotate("cni.projectcalico.org/podIP", "10.99.0.1/32"), false},
		{"its container", s.thief, annotate("cni.projectcalico.org/containerID", "3f1d9c8a"), false},
		{"no address", s.thief, annotate("cni.projectcalico.org/podIPs", ""), false},
		{"two addresses", s.thief, annotate("cni.projectcalico.org/podIPs", "10.99.0.1/32,fd00::1/128"), false},
		{"what is no address", s.thief, annotate("cni.projectcalico.org/podIPs", "10.99.0.1/32,x"), true},
		{"which address it wants", s.thief, annotate("cni.projectcalico.org/ipAddrs", `["10.99.0.1"]`), true},
		{"a long container", s.thief, annotate("cni.projectcalico.org/containerID", strings.Repeat("x", 300)), true},
		{"the victim's address", s.victim, annotate("cni.projectcalico.org/podIP", "10.99.0.1/32"), true},
		{"annotations of others", s.thief, annotate("other", "y"), true},
		{"its labels", s.thief, map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "other"}}}, true},
		{"its status", s.thief, map[string]any{"status": map[string]any{"podIP": "10.99.0.9", "podIPs": []any{map[string]any{"ip": "10.99.0.9"}}}}, true},
		{"a finalizer", s.thief, map[string]any{"metadata": map[string]any{"finalizers": []any{"thief.example/x"}}}, true},
	} {
		_, err := pods.Patch(t.Context(), c.pod, types.StrategicMergePatchType, patch(c.change), metav1.PatchOptions{}, "status")
		check(t, c.name, err, c.refused)
	}
}

// A node's token can request neither a token of another node nor one without a node.
func TestTokens(t *testing.T) {
	s := newScene(t)
	uid := func(node string) types.UID {
		obj, err := s.admin.core.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		errtest.Must(t, err)
		return obj.UID
	}
	bound := func(kind, name string, uid types.UID) *authv1.BoundObjectReference {
		return &authv1.BoundObjectReference{Kind: kind, APIVersion: "v1", Name: name, UID: uid}
	}
	life := func(seconds int64) *int64 { return &seconds }
	for name, c := range map[string]struct {
		to      *authv1.BoundObjectReference
		life    *int64
		refused bool
	}{
		"its own node":                {bound("Node", s.thief, uid(s.thief)), nil, false},
		"its own node, for a day":     {bound("Node", s.thief, ""), life(24 * 60 * 60), false},
		"its own node, for ten years": {bound("Node", s.thief, ""), life(10 * 365 * 24 * 60 * 60), true},
		"its own node, a second more": {bound("Node", s.thief, ""), life(24*60*60 + 1), true},
		"the victim":                  {bound("Node", s.victim, uid(s.victim)), nil, true},
		"a Secret":                    {bound("Secret", s.thief, ""), nil, true},
		"nothing":                     {nil, nil, true},
	} {
		request := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{BoundObjectRef: c.to, ExpirationSeconds: c.life}}
		_, err := s.agent.core.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "tortie-cni", request, metav1.CreateOptions{})
		check(t, "a token that is bound to "+name, err, c.refused)
	}
}

func TestCluster(t *testing.T) {
	s := newScene(t)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for _, c := range []struct {
		obj     string
		refused bool
	}{
		{`{kind: IPAMConfig, metadata: {name: default}, spec: {strictAffinity: false, autoAllocateBlocks: true}}`, false},
		{`{kind: IPAMConfig, metadata: {name: default}, spec: {strictAffinity: true, autoAllocateBlocks: true}}`, true},
		{`{kind: IPAMConfig, metadata: {name: default}, spec: {strictAffinity: false, autoAllocateBlocks: true, maxBlocksPerHost: 1}}`, true},
		{`{kind: FelixConfiguration, metadata: {name: default}, spec: {logSeverityScreen: Info}}`, false},
		{`{kind: FelixConfiguration, metadata: {name: default}, spec: {logSeverityScreen: Info, vxlanPort: 53}}`, true},
		{`{kind: FelixConfiguration, metadata: {name: default}, spec: {logSeverityScreen: None}}`, true},
		{`{kind: FelixConfiguration, metadata: {name: node.` + s.victim + `}, spec: {logSeverityScreen: Info}}`, true},
		{`{kind: ClusterInformation, metadata: {name: default}, spec: {datastoreReady: true, clusterGUID: 0123456789abcdef0123456789abcdef}}`, false},
		{`{kind: ClusterInformation, metadata: {name: default}, spec: {datastoreReady: false, clusterGUID: 0123456789abcdef0123456789abcdef}}`, true},
	} {
		obj := object(t, "%s", c.obj)
		_, err := s.agent.of(obj).Create(t.Context(), obj, dry)
		check(t, c.obj, err, c.refused)
	}
	info := s.admin.create(t, object(t, `{kind: ClusterInformation, metadata: {name: default}, spec: {datastoreReady: true, clusterGUID: 0123456789abcdef0123456789abcdef, clusterType: "k8s,bgp"}}`))
	for _, c := range []struct {
		change  map[string]any
		refused bool
	}{
		{map[string]any{"clusterType": "k8s,bgp,kdd"}, false},
		{map[string]any{"clusterType": "k8s,bgp," + strings.Repeat("x", 500)}, true},
		{map[string]any{"clusterType": "k8s,bgp,<x>"}, true},
		{map[string]any{"other": "x"}, true},
		{map[string]any{"clusterType": "kdd"}, true},
		{map[string]any{"datastoreReady": false}, true},
		{map[string]any{"clusterGUID": "y"}, true},
		{map[string]any{"calicoVersion": "v1"}, true},
	} {
		next := info.DeepCopy()
		maps.Copy(next.Object["spec"].(map[string]any), c.change)
		_, err := s.agent.of(next).Update(t.Context(), next, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		check(t, fmt.Sprint(c.change), err, c.refused)
	}
	for what, change := range map[string]map[string]any{
		"labels":      {"labels": map[string]any{"a": "b"}},
		"annotations": {"annotations": map[string]any{"tortie.net/upgrading-nodes": s.victim}},
	} {
		_, err := s.agent.of(info).Patch(t.Context(), "default", types.MergePatchType, patch(map[string]any{"metadata": change}), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		refusedByRBAC(t, "patch "+what, err)
		next := info.DeepCopy()
		maps.Copy(next.Object["metadata"].(map[string]any), change)
		_, err = s.agent.of(next).Update(t.Context(), next, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		refused(t, what, err)
	}
	for node, want := range map[string]bool{s.thief: false, s.victim: true} {
		made := s.admin.create(t, object(t, `{kind: CalicoNodeStatus, metadata: {name: ask-%s}, spec: {node: %[1]s, classes: [Agent], updatePeriodSeconds: 10}}`, node))
		change := patch(map[string]any{"status": map[string]any{"lastUpdated": "2026-01-02T03:04:05Z"}})
		_, err := s.agent.of(made).Patch(t.Context(), made.GetName(), types.MergePatchType, change, metav1.PatchOptions{})
		check(t, "answer for "+node, err, want)
		_, err = s.agent.of(made).Patch(t.Context(), made.GetName(), types.MergePatchType, patch(annotate("a", "b")), metav1.PatchOptions{})
		refused(t, "annotate the question for "+node, err)
	}
}

// No token of a node can create, change or delete pools, even where an administrator has granted that.
func TestPools(t *testing.T) {
	s := newScene(t)
	made := s.admin.create(t, object(t, `{kind: IPPool, metadata: {name: pools-test}, spec: {cidr: 10.123.0.0/16}}`))
	refusedByRBAC(t, "create a pool", createPool(t, s.agent, "default-ipv6-ippool", "10.0.0.0/24"))
	s.admin.create(t, object(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: pools-test},
		rules: [{apiGroups: [crd.projectcalico.org], resources: [ippools, ippools/status], verbs: ["*"]}]}`))
	s.admin.create(t, object(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: pools-test},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pools-test},
		subjects: [{kind: ServiceAccount, name: tortie-node, namespace: kube-system}, {kind: ServiceAccount, name: tortie-cni, namespace: kube-system}]}`))
	meshtest.Eventually(t, func() error {
		err := createPool(t, s.agent, "default-ipv4-ippool", "10.0.0.0/16")
		if err == nil || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return nil
		}
		return err // the role is not observed yet
	})
	for account, u := range map[string]*user{"agent": s.agent, "plugins": s.plugin} {
		for name, cidr := range map[string]string{"default-ipv4-ippool": "10.0.0.0/16", "default-ipv6-ippool": "10.0.0.0/24", "mine": "fd00:9::/64"} {
			refused(t, account+" create "+name, createPool(t, u, name, cidr))
		}
		next := made.DeepCopy()
		next.Object["spec"].(map[string]any)["natOutgoing"] = true
		_, err := u.of(next).Update(t.Context(), next, metav1.UpdateOptions{})
		refused(t, account+" update", err)
		_, err = u.of(next).UpdateStatus(t.Context(), next, metav1.UpdateOptions{})
		refused(t, account+" update the status", err)
		refused(t, account+" delete", u.of(made).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}))
	}
}

func createPool(t *testing.T, u *user, name, cidr string) error {
	t.Helper()
	obj := object(t, `{kind: IPPool, metadata: {name: %s}, spec: {cidr: "%s"}}`, name, cidr)
	_, err := u.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// Events may be about any object, but only in the name of the own node.
func TestEvents(t *testing.T) {
	s := newScene(t)
	event := func(name, host string) *unstructured.Unstructured {
		return object(t, `{apiVersion: v1, kind: Event, metadata: {name: %s, namespace: default}, involvedObject: {apiVersion: v1, kind: Node, name: %s},
			type: Warning, reason: Test, message: x, source: {component: tortie-node, host: %[2]s}, count: 1}`, name, host)
	}
	counts := map[string]any{"count": 2}
	for _, c := range []struct {
		name, host      string
		create, changed bool // are refused
	}{
		{"its own", s.thief, false, false},
		{"the victim's", s.victim, true, true},
	} {
		obj := event(c.host+"-event", c.host)
		_, err := s.agent.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		check(t, "create "+c.name, err, c.create)
		made := s.admin.create(t, obj)
		_, err = s.agent.of(made).Patch(t.Context(), made.GetName(), types.MergePatchType, patch(counts), metav1.PatchOptions{})
		check(t, "count "+c.name, err, c.changed)
		for key, value := range map[string]any{"message": "y", "reason": "y", "involvedObject": map[string]any{"name": "y"}, "source": map[string]any{"host": s.thief, "component": "kubelet"}} {
			_, err = s.agent.of(made).Patch(t.Context(), made.GetName(), types.MergePatchType, patch(map[string]any{key: value}), metav1.PatchOptions{})
			refused(t, "change "+key+" of "+c.name, err)
		}
	}
}

// The size of an affinity's or block's range must be the pool's block size. Otherwise a node could claim part of a block that another node is
// about to claim.
func TestRanges(t *testing.T) {
	s := newScene(t)
	for _, pool := range []string{
		`{kind: IPPool, metadata: {name: ranges-4}, spec: {cidr: 10.120.0.0/16, ipipMode: Always}}`,
		`{kind: IPPool, metadata: {name: ranges-28}, spec: {cidr: 10.121.0.0/24, blockSize: 28}}`,
		`{kind: IPPool, metadata: {name: ranges-6}, spec: {cidr: "fd00:120::/112"}}`,
	} {
		s.admin.create(t, object(t, "%s", pool))
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	claim := func(cidr string) *unstructured.Unstructured {
		return affinity(names.Affinity(s.thief, netip.MustParsePrefix(cidr)), s.thief, cidr)
	}
	meshtest.Eventually(t, func() error { // until admission has observed the last pool
		if _, err := s.plugin.of(claim("fd00:120::/128")).Create(t.Context(), claim("fd00:120::/128"), dry); err == nil {
			return errors.New("the policy has not observed the pool")
		}
		return nil
	})
	for _, c := range []struct {
		cidr    string
		refused bool
	}{
		{"10.120.0.0/26", false}, {"10.121.0.16/28", false}, {"fd00:120::40/122", false},
		{"10.120.0.64/27", true}, {"10.120.0.70/32", true}, {"10.120.0.0/25", true}, {"10.121.0.0/26", true}, {"10.121.0.0/20", true},
		{"fd00:120::40/128", true}, {"fd00:120::/121", true},
		{"10.122.0.0/27", false}, // in no pool: ignored by agents
		// These have the names of affinities of nodes NODE-1 and NODE-1-2.
		{"1:fd00:120::40/122", true}, {"1:2:fd00:120::40/122", true}, {"1:fd00:121::40/122", false},
	} {
		a := claim(c.cidr)
		_, err := s.plugin.of(a).Create(t.Context(), a, dry)
		check(t, "claim "+c.cidr, err, c.refused)
	}
	b := emptied(s.block(t, 200, "host:"+s.thief))
	b.SetName("10-120-0-16-28")
	b.Object["spec"].(map[string]any)["cidr"] = "10.120.0.16/28"
	_, err := s.plugin.of(b).Create(t.Context(), b, dry)
	refused(t, "create a block that is a part of one", err)
}

func longAffinity(t *testing.T, node, cidr string) string {
	t.Helper()
	return names.Affinity(node, netip.MustParsePrefix(cidr))
}

// Nodes that migrate from host-local lock the datastore meanwhile, each with its own lock, and only if the chart enables it.
func TestMigrationLocks(t *testing.T) {
	s := newScene(t, "--set", "migrateFromHostLocal=true")
	for _, c := range []struct {
		name             string
		ready, willReady bool
		nodes, next      string
		refused          bool
	}{
		{"the first locks", true, false, "", s.thief, false},
		{"after a lock that was opened by hand", true, false, s.victim, s.thief, false},
		{"the second locks", false, false, s.victim, s.victim + "," + s.thief, false},
		{"one of two ends", false, false, s.victim + "," + s.thief, s.victim, false},
		{"the last ends", false, true, s.thief, "", false},
		{"the lock without a name", true, false, "", "", true},
		{"a note in the victim's name", true, true, "", s.victim, true},
		{"the lock in two names", true, false, "", s.thief + "," + s.thief, true},
		{"the lock in the victim's name", true, false, "", s.victim, true},
		{"the end of the victim's", false, true, s.victim, "", true},
		{"the end of an operator's", false, true, "", "", true},
		{"the end while the victim has not", false, true, s.victim + "," + s.thief, s.victim, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			info := object(t, `{kind: ClusterInformation, metadata: {name: default, annotations: {tortie.net/upgrading-nodes: "%s"}}, spec: {datastoreReady: %v}}`, c.nodes, c.ready)
			made := s.admin.create(t, info)
			made.SetAnnotations(map[string]string{"tortie.net/upgrading-nodes": c.next})
			made.Object["spec"].(map[string]any)["datastoreReady"] = c.willReady
			_, err := s.agent.of(made).Update(t.Context(), made, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			check(t, "update", err, c.refused)
		})
	}
}

// The permission to patch a pod's status exposes any pod: the API server applies a patch before it evaluates policies, and its response to a
// patch with an invalid result contains the pod. Removing the plugins' permission to read pods would hide nothing.
func TestPatchesExposePods(t *testing.T) {
	s := newScene(t)
	_, err := s.agent.core.CoreV1().Pods("default").Get(t.Context(), s.victim, metav1.GetOptions{})
	refusedByRBAC(t, "an agent reads a pod", err)
	text := []byte(`[{"op": "replace", "path": "/status/phase", "value": 1}]`)
	_, err = s.agent.core.CoreV1().Pods("default").Patch(t.Context(), s.victim, types.JSONPatchType, text, metav1.PatchOptions{}, "status")
	if err == nil || !strings.Contains(err.Error(), secret) {
		t.Errorf("the response to an invalid patch does not contain the pod, contrary to docs/security.md: %v", err)
	}
}
