package rights

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

// scene is a cluster of two nodes with a pod and a block each. The attacker has tokens of the first. Calico's objects
// are in one of their groups.
type scene struct {
	group         groups.Group
	admin         *user
	agent, plugin *user // with tokens of node thief
	cfg           *rest.Config
	thief, victim string
}

func newScene(t *testing.T, args ...string) *scene {
	t.Helper()
	return newSceneIn(t, groups.V1, args...)
}

func newSceneIn(t *testing.T, group groups.Group, args ...string) *scene {
	t.Helper()
	cfg := server(t, "auto", args...)
	name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	s := &scene{group: group, admin: newUser(t, cfg), cfg: cfg, thief: name + "-thief", victim: name + "-victim"}
	for _, node := range []string{s.thief, s.victim} {
		s.admin.declare(t, node)
		s.pod(t, node)
	}
	s.agent = newUser(t, labtest.OnNode(t, cfg, "tortie-node", s.thief))
	s.plugin = newUser(t, labtest.OnNode(t, cfg, "tortie-cni", s.thief))
	s.awaitParameters(t)
	return s
}

// awaitParameters waits until the node's writes depend on no parameter of a policy: until admission has found the
// definition of pools, which it looks for now and then, and has observed that another test's ClusterInformation is
// gone.
func (s *scene) awaitParameters(t *testing.T) {
	t.Helper()
	a := s.affinity(names.Affinity(s.thief, netip.MustParsePrefix("10.98.0.0/26")), s.thief, "10.98.0.0/26")
	meshtest.Eventually(t, func() error {
		_, err := s.plugin.of(a).Create(t.Context(), a, metav1.CreateOptions{DryRun: dryRun})
		return err
	})
}

// resource returns the name that the scene's group has for a resource of the first.
func (s *scene) resource(name string) string { return fence.In(s.group, name+"."+api.Group) }

// object is object, in the scene's group.
func (s *scene) object(t testing.TB, text string, args ...any) *unstructured.Unstructured {
	t.Helper()
	return in(s.group, object(t, text, args...))
}

func (s *scene) affinity(name, node, cidr string) *unstructured.Unstructured {
	return in(s.group, affinity(name, node, cidr))
}

func (s *scene) handle(id, node string) *unstructured.Unstructured {
	return in(s.group, handle(id, node))
}

// secret is a literal value in the environment of all pods.
const secret = "a literal secret"

// pod creates a pod of the node with the node's name.
func (s *scene) pod(t *testing.T, node string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"other": "x"}},
		Spec: corev1.PodSpec{NodeName: node,
			Containers: []corev1.Container{{Name: "c", Image: "none", Env: []corev1.EnvVar{{Name: "A", Value: secret}}}}},
	}
	if _, err := s.admin.core.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// refused fails the test unless the chart's admission policies, and nothing else, denied the request. An expression
// that cannot be evaluated results in Invalid.
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

// block returns a block of 16 addresses at 10.99.N.0/28: the first two are the victim's, the third is the thief's, the
// fourth is in cooldown, the fifth is assigned without a node, the sixth has an empty attribute, the rest is free.
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
	return in(s.group, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
		"metadata": map[string]any{"name": fmt.Sprintf("10-99-%d-0-28", n)}, "spec": spec,
	}})
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

// drop removes the first attribute, which has become unused, and renumbers the others.
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

func TestBlocks(t *testing.T) { inEachGroup(t, testBlocks) }

func testBlocks(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
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
		{"release what it does not hold", victims, func(_ *unstructured.Unstructured, _ spec) {}, false},
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
		{"list a held address as free", victims,
			func(_ *unstructured.Unstructured, b spec) { b["unallocated"] = append(b.list("unallocated"), int64(0)) }, true},
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
		{"forge the time of the claim", victims,
			func(_ *unstructured.Unstructured, b spec) { b["affinityClaimTime"] = "2030-01-02T03:04:05Z" }, true},
		{"list the victim's as free in its own block", thiefs,
			func(_ *unstructured.Unstructured, b spec) { b["unallocated"] = append(b.list("unallocated"), int64(0)) }, true},
		{"lose a free address of its own block", thiefs,
			func(_ *unstructured.Unstructured, b spec) { b["unallocated"] = b.list("unallocated")[1:] }, true},
		{"exhaust the sequence number of its own block", thiefs,
			func(_ *unstructured.Unstructured, b spec) { b["sequenceNumber"] = int64(1<<63 - 1) }, true},
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
		{"annotations of the victim's", victims, func(o *unstructured.Unstructured, _ spec) {
			o.SetAnnotations(map[string]string{"projectcalico.org/metadata": "{}"})
		}, true},
		{"long annotations of its own", thiefs, func(o *unstructured.Unstructured, _ spec) {
			o.SetAnnotations(map[string]string{"projectcalico.org/metadata": strings.Repeat("x", 1025)})
		}, true},
		{"labels of its own", thiefs, func(o *unstructured.Unstructured, _ spec) { o.SetLabels(map[string]string{"a": "b"}) }, true},
		{"unknown fields", thiefs, func(_ *unstructured.Unstructured, b spec) { b["other"] = "x" }, true},
		{"let the garbage collector delete it", victims, func(o *unstructured.Unstructured, _ spec) {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "0"}})
		}, true},
		{"keep others from deleting it", victims,
			func(o *unstructured.Unstructured, _ spec) { o.SetFinalizers([]string{"thief.example/x"}) }, true},
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

func TestBlocksComeAndGo(t *testing.T) { inEachGroup(t, testBlocksComeAndGo) }

func testBlocksComeAndGo(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
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

// The name of an affinity that would be too long is shortened, and still identifies the node.
func TestAffinityOfALongName(t *testing.T) { inEachGroup(t, testAffinityOfALongName) }

func testAffinityOfALongName(t *testing.T, group groups.Group) {
	cfg := server(t, "auto")
	admin := newUser(t, cfg)
	long := strings.Repeat(strings.Repeat("a", 60)+".", 4)[:242] + "node" + string(group[:1])
	admin.declare(t, long)
	plugin := newUser(t, labtest.OnNode(t, cfg, "tortie-cni", long))
	a := in(group, affinity(longAffinity(t, long, "10.96.255.192/26"), long, "10.96.255.192/26"))
	_, err := plugin.of(a).Create(t.Context(), a, metav1.CreateOptions{})
	passed(t, "its own, shortened", err)
	b := in(group, affinity("other-10-96-255-128-26-0123456789a", long, "10.96.255.128/26"))
	_, err = plugin.of(b).Create(t.Context(), b, metav1.CreateOptions{})
	refused(t, "another's, shortened", err)
}

func handle(id, node string) *unstructured.Unstructured {
	annotations := map[string]any{"projectcalico.org/metadata": "{}"}
	if node != "" {
		annotations["tortie.io/node"] = node
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle",
		"metadata": map[string]any{"name": strings.ToLower(id), "annotations": annotations},
		"spec":     map[string]any{"handleID": id, "block": map[string]any{"10.99.0.0/28": int64(1)}, "deleted": false},
	}}
}

func TestHandles(t *testing.T) { inEachGroup(t, testHandles) }

func testHandles(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	for _, c := range []struct {
		name            string
		obj             *unstructured.Unstructured
		create, changes bool // are refused
	}{
		{"its own", s.handle("net.Own", s.thief), false, false},
		{"the victim's", s.handle("net.victims", s.victim), true, true},
		{"of a Calico node", s.handle("net.calicos", ""), false, false},
		{"of its own tunnel", s.handle("ipip-tunnel-addr-"+s.thief, ""), false, false},
		{"of the victim's tunnel", s.handle("ipip-tunnel-addr-"+s.victim, ""), true, true},
		{"of the victim's VXLAN tunnel", s.handle("vxlan-tunnel-addr-"+s.victim, s.thief), true, true},
		{"of the victim's other VXLAN tunnel", s.handle("vxlan-v6-tunnel-addr-"+s.victim, ""), true, true},
		{"of its own tunnel, in capitals", s.handle("IPIP-tunnel-addr-"+s.thief, ""), true, false},
		{"of its own tunnel, made by the victim", s.handle("ipip-tunnel-addr-"+s.thief, s.victim), true, false},
		{"of the victim's tunnel, in capitals", s.handle("IPIP-tunnel-addr-"+s.victim, ""), true, true},
		{"of the victim's tunnel, in capitals, its own", s.handle("vxlan-Tunnel-addr-"+s.victim, s.thief), true, true},
		{"of the victim's WireGuard tunnel", s.handle("WIREGUARD-tunnel-addr-"+s.victim, s.thief), true, true},
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
	next := s.admin.create(t, s.handle("net.mine", s.thief))
	next.SetAnnotations(nil)
	_, err := s.plugin.of(next).Update(t.Context(), next, metav1.UpdateOptions{})
	refused(t, "a handle loses its owner", err)
}

// mine returns the required handle ID of a node's handle: for a tunnel it is its name.
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

// No token of a node can create, change or delete pools, even where an administrator has granted that.
func TestPools(t *testing.T) { inEachGroup(t, testPools) }

func testPools(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	made := s.admin.create(t, s.object(t, `{kind: IPPool, metadata: {name: pools-test}, spec: {cidr: 10.123.0.0/16}}`))
	refusedByRBAC(t, "create a pool", s.createPool(t, s.agent, "default-ipv6-ippool", "10.0.0.0/24"))
	s.admin.create(t, s.object(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: pools-test},
		rules: [{apiGroups: [%s], resources: [ippools, ippools/status], verbs: ["*"]}]}`, path.Dir(string(group))))
	s.admin.create(t, s.object(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: pools-test},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pools-test},
		subjects: [{kind: ServiceAccount, name: tortie-node, namespace: kube-system},
			{kind: ServiceAccount, name: tortie-cni, namespace: kube-system}]}`))
	meshtest.Eventually(t, func() error {
		err := s.createPool(t, s.agent, "default-ipv4-ippool", "10.0.0.0/16")
		if err == nil || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return nil
		}
		return err // the role is not observed yet
	})
	for account, u := range map[string]*user{"agent": s.agent, "plugins": s.plugin} {
		for name, cidr := range map[string]string{"default-ipv4-ippool": "10.0.0.0/16",
			"default-ipv6-ippool": "10.0.0.0/24", "mine": "fd00:9::/64"} {
			refused(t, account+" create "+name, s.createPool(t, u, name, cidr))
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

func (s *scene) createPool(t *testing.T, u *user, name, cidr string) error {
	t.Helper()
	obj := s.object(t, `{kind: IPPool, metadata: {name: %s}, spec: {cidr: "%s"}}`, name, cidr)
	_, err := u.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// The size of an affinity's or block's range must be the pool's block size. Otherwise a node could claim part of a
// block that another node is about to claim.
func TestRanges(t *testing.T) { inEachGroup(t, testRanges) }

func testRanges(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	for _, pool := range []string{
		`{kind: IPPool, metadata: {name: ranges-4}, spec: {cidr: 10.120.0.0/16, ipipMode: Always}}`,
		`{kind: IPPool, metadata: {name: ranges-28}, spec: {cidr: 10.121.0.0/24, blockSize: 28}}`,
		`{kind: IPPool, metadata: {name: ranges-6}, spec: {cidr: "fd00:120::/112"}}`,
	} {
		s.admin.create(t, s.object(t, "%s", pool))
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	claim := func(cidr string) *unstructured.Unstructured {
		return s.affinity(names.Affinity(s.thief, netip.MustParsePrefix(cidr)), s.thief, cidr)
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

// The blocks of an older pool do not depend on a pool that overlaps it, once the condition of the latter shows the
// overlap.
func TestRangesOfAMaskedPool(t *testing.T) { inEachGroup(t, testRangesOfAMaskedPool) }

func testRangesOfAMaskedPool(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	s.admin.create(t, s.object(t, `{kind: IPPool, metadata: {name: masked-old}, spec: {cidr: 10.123.0.0/24, blockSize: 28}}`))
	young := s.admin.create(t, s.object(t, `{kind: IPPool, metadata: {name: masked-young}, spec: {cidr: 10.123.0.0/25}}`))
	claim := func(cidr string) error {
		a := s.affinity(names.Affinity(s.thief, netip.MustParsePrefix(cidr)), s.thief, cidr)
		_, err := s.plugin.of(a).Create(t.Context(), a, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	meshtest.Eventually(t, func() error { // until admission has observed both
		if claim("10.123.0.0/28") == nil || claim("10.123.0.192/26") == nil {
			return errors.New("the policy has not observed the pools")
		}
		return nil
	})
	young.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": api.Allocatable, "status": "False", "reason": api.PoolOverlap, "message": "overlaps",
		"lastTransitionTime": "2026-11-28T20:00:00Z",
	}}}
	_, err := s.plugin.of(young).UpdateStatus(t.Context(), young, metav1.UpdateOptions{})
	refusedByRBAC(t, "a node masks a pool", err)
	_, err = s.admin.of(young).UpdateStatus(t.Context(), young, metav1.UpdateOptions{})
	errtest.Must(t, err)
	meshtest.Eventually(t, func() error { return claim("10.123.0.0/28") })
	refused(t, "claim of the younger pool's size", claim("10.123.0.0/26"))
}

func longAffinity(t *testing.T, node, cidr string) string {
	t.Helper()
	return names.Affinity(node, netip.MustParsePrefix(cidr))
}

// Nodes that migrate from host-local lock the datastore meanwhile, each with its own lock, and only if the chart
// enables it.
func TestMigrationLocks(t *testing.T) { inEachGroup(t, testMigrationLocks) }

func testMigrationLocks(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group, "--set", "migrateFromHostLocal=true")
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
			info := s.object(t,
				`{kind: ClusterInformation, metadata: {name: default, annotations: {tortie.net/upgrading-nodes: "%s"}}, spec: {datastoreReady: %v}}`,
				c.nodes, c.ready)
			made := s.admin.create(t, info)
			made.SetAnnotations(map[string]string{"tortie.net/upgrading-nodes": c.next})
			made.Object["spec"].(map[string]any)["datastoreReady"] = c.willReady
			_, err := s.agent.of(made).Update(t.Context(), made, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			check(t, "update", err, c.refused)
		})
	}
}

// The permission to patch a pod's status exposes any pod: the API server applies a patch before it evaluates policies,
// and its response to a patch with an invalid result contains the pod. Removing the plugins' permission to read pods
// would hide nothing.
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
