package rights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	authv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

// parallel is the number of concurrent requests: the API server shares the processors of the test.
const parallel = 8

// sampled: the first tier tries one in so many of the requests that must be refused.
const sampled = 8

var dryRun = []string{metav1.DryRunAll}

// everyAccount are permissions of all authenticated users: access reviews.
var everyAccount = []string{"selfsubjectaccessreviews.authorization.k8s.io", "selfsubjectrulesreviews.authorization.k8s.io",
	"selfsubjectreviews.authentication.k8s.io"}

// TestModelIsRBAC: RBAC grants exactly the writes that the model has rules for.
func TestModelIsRBAC(t *testing.T) {
	s := newScene(t)
	labtest.GrantAll(t, s.cfg, labtest.Chart(t))
	for _, namespace := range namespaces {
		wrote, _ := s.rights(t, namespace)
		if d := cmp.Diff(fence.Granted(namespace), wrote); d != "" {
			t.Errorf("writes in %s, by the model (-) and by RBAC (+):\n%s", namespace, d)
		}
	}
}

// namespaces are the release's, the namespace of Events about cluster-scoped objects, and another.
var namespaces = []string{"kube-system", "default", "other"}

// readOnly are the verbs that only read.
var readOnly = []string{"get", "list", "watch"}

// TestReadsAreRBAC: RBAC grants exactly the model's reads: with the default values, with all values that add
// permissions, and without those that remove some.
func TestReadsAreRBAC(t *testing.T) {
	s := newScene(t)
	defer func() {
		for _, kind := range []string{"Role", "RoleBinding"} { // not rendered by the default values
			err := s.admin.any.Resource(kinds[kind]).Namespace("kube-system").Delete(t.Context(), "tortie-node-secrets", metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		labtest.GrantAll(t, s.cfg, labtest.Manifest(t))
	}()
	for _, c := range []struct{ values, off string }{
		{"bgp.enabled=true", "bgp.passwordSecrets migrateFromHostLocal policy.flows.enabled"},
		{"bgp.passwordSecrets={one},migrateFromHostLocal=true,policy.flows.enabled=true", ""},
		{"bgp.passwordSecrets={one},policy.enabled=false", "migrateFromHostLocal policy.enabled policy.flows.enabled"},
		{"bgp.passwordSecrets={one},policy.enabled=false,migrateFromHostLocal=true", "policy.enabled policy.flows.enabled"},
		{"bgp.passwordSecrets={one},bgp.advertiseServices=false", "bgp.advertiseServices migrateFromHostLocal policy.flows.enabled"},
		{"bgp.passwordSecrets={one},bgp.enabled=false,ipPool.ipipMode=Never,ipPool.vxlanMode=Always",
			"bgp.advertiseServices migrateFromHostLocal policy.flows.enabled"},
	} {
		labtest.GrantAll(t, s.cfg, labtest.Chart(t, "--set", c.values))
		for _, namespace := range namespaces {
			want := fence.Readable(namespace, func(value string) bool { return !slices.Contains(strings.Fields(c.off), value) })
			meshtest.Eventually(t, func() error { // until the authorizer has observed it
				_, reads := s.rights(t, namespace)
				if d := cmp.Diff(want, reads); d != "" {
					return fmt.Errorf("with %s, reads in %s, by the model (-) and by RBAC (+):\n%s", c.values, namespace, d)
				}
				return nil
			})
		}
	}
}

// rights returns the permissions of both accounts in a namespace and in the cluster, as "ACCOUNT VERB RESOURCE.GROUP".
func (s *scene) rights(t *testing.T, namespace string) (write, read map[string]bool) {
	t.Helper()
	write, read = map[string]bool{}, map[string]bool{}
	for account, u := range map[string]*user{fence.Agent: s.agent, fence.Plugins: s.plugin} {
		for _, right := range u.may(t, namespace) {
			verb, _, _ := strings.Cut(right, " ")
			if slices.Contains(readOnly, verb) {
				read[account+" "+right] = true
			} else {
				write[account+" "+right] = true
			}
		}
	}
	return write, read
}

// may returns the user's permissions in a namespace and in the cluster, as "VERB RESOURCE.GROUP".
func (u *user) may(t *testing.T, namespace string) (rights []string) {
	t.Helper()
	review := &authzv1.SelfSubjectRulesReview{Spec: authzv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	review, err := u.core.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), review, metav1.CreateOptions{})
	errtest.Must(t, err)
	for _, r := range review.Status.ResourceRules {
		for _, verb := range r.Verbs {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					right := strings.TrimSuffix(resource+"."+group, ".")
					if !slices.Contains(everyAccount, right) {
						rights = append(rights, verb+" "+right)
					}
				}
			}
		}
	}
	return rights
}

// sample is an object of the model.
type sample struct {
	resource string
	whose    fence.Whose
	stored   *unstructured.Unstructured // as stored; for a creation: as it would be stored
}

// samples creates objects of each kind and owner as an administrator.
func (s *scene) samples(t *testing.T) (all []sample) {
	t.Helper()
	add := func(resource string, whose fence.Whose, obj *unstructured.Unstructured) {
		all = append(all, sample{resource, whose, s.admin.create(t, obj)})
	}
	for i, of := range []struct {
		whose fence.Whose
		node  string
	}{{fence.Own, s.thief}, {fence.Others, s.victim}} {
		add(s.resource("blockaffinities"), of.whose,
			s.affinity(fmt.Sprintf("%s-10-97-%d-0-26", of.node, i), of.node, fmt.Sprintf("10.97.%d.0/26", i)))
		add(s.resource("ipamblocks"), of.whose, s.block(t, 150+i, "host:"+of.node))
		add(s.resource("ipamhandles"), of.whose, s.handle("net.model-"+of.node, of.node))
		add(s.resource("caliconodestatuses"), of.whose,
			s.object(t, `{kind: CalicoNodeStatus, metadata: {name: ask-%s},
				spec: {node: %[1]s, classes: [Agent], updatePeriodSeconds: 10}}`, of.node))
		if s.group == groups.V3 { // the chart's definitions of the first group have no such subresource
			asked := all[len(all)-1].stored
			all = append(all, sample{s.resource("caliconodestatuses/status"), of.whose, asked})
		}
		add("events", of.whose, s.event(t, "model-"+of.node, of.node))
		for resource, kind := range map[string]schema.GroupVersionResource{"nodes/status": kinds["Node"], "pods/status": kinds["Pod"]} {
			var at dynamic.ResourceInterface = s.admin.any.Resource(kind)
			if resource == "pods/status" {
				at = s.admin.any.Resource(kind).Namespace("default")
			}
			obj, err := at.Get(t.Context(), of.node, metav1.GetOptions{})
			errtest.Must(t, err)
			all = append(all, sample{resource, of.whose, obj})
		}
	}
	add(s.resource("ipamblocks"), fence.Nobodys, s.block(t, 152, ""))
	add(s.resource("ipamhandles"), fence.Nobodys, s.handle("net.model-calico", ""))
	add(s.resource("clusterinformations"), fence.Cluster, s.object(t, `{kind: ClusterInformation, metadata: {name: default}, spec: {`+
		`datastoreReady: true, clusterGUID: 0123456789abcdef0123456789abcdef, clusterType: "k8s,bgp"}}`))
	return all
}

// templates returns objects that do not exist yet.
func (s *scene) templates(t *testing.T) (all []sample) {
	t.Helper()
	for _, of := range []struct {
		whose fence.Whose
		node  string
	}{{fence.Own, s.thief}, {fence.Others, s.victim}} {
		all = append(all,
			sample{s.resource("blockaffinities"), of.whose, s.affinity(of.node+"-10-96-0-0-26", of.node, "10.96.0.0/26")},
			sample{s.resource("ipamblocks"), of.whose, emptied(s.block(t, 160, "host:"+of.node))},
			sample{s.resource("ipamhandles"), of.whose, s.handle("net.new-"+of.node, of.node)},
			sample{s.resource("caliconodestatuses"),
				of.whose, s.object(t, `{kind: CalicoNodeStatus, metadata: {name: new-%s}, spec: {node: %[1]s}}`, of.node)},
			sample{"events", of.whose, s.event(t, "new-"+of.node, of.node)},
		)
	}
	return append(all,
		sample{s.resource("ipamblocks"), fence.Nobodys, emptied(s.block(t, 160, ""))},
		sample{s.resource("ipamhandles"), fence.Nobodys, s.handle("net.new-calico", "")},
	)
}

func (s *scene) event(t *testing.T, name, host string) *unstructured.Unstructured {
	return s.object(t,
		`{apiVersion: v1, kind: Event, metadata: {name: %s, namespace: default}, involvedObject: {apiVersion: v1, kind: Node, name: %s},
		type: Warning, reason: Test, message: x, source: {component: tortie-node, host: %[2]s}, count: 1}`, name, host)
}

// change is one write of one field.
type change struct {
	path  []string
	value any
	good  bool
}

// changes returns the writes of all fields of an object: the rule's fields with its values, all others with values of
// their type.
func (s *scene) changes(t *testing.T, rule *fence.Rule, fields []change) (all []change) {
	t.Helper()
	if rule != nil {
		for _, f := range rule.Fields {
			for good, values := range map[bool][]any{true: f.Good, false: f.Bad} {
				for _, v := range values {
					all = append(all, change{f.Path, s.filled(t, v), good})
				}
			}
		}
	}
	for _, f := range fields {
		if !known(rule, f.path) {
			all = append(all, f)
		}
	}
	return all
}

// filled replaces the placeholders of node names in a value.
func (s *scene) filled(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	errtest.Must(t, err)
	text = []byte(strings.NewReplacer("{thief}", s.thief, "{victim}", s.victim).Replace(string(text)))
	out := &unstructured.Unstructured{}
	errtest.Must(t, out.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"X","value":%s}`, text)))
	return out.Object["value"]
}

// fields returns the fields that an object may have, with values that differ from its own.
func (s *scene) fields(t *testing.T, resource string) (all []change) {
	t.Helper()
	add := func(value any, path ...string) { all = append(all, change{path: path, value: value}) }
	add("b", "metadata", "labels", "thief.example/a")
	add(strings.Repeat("x", 20000), "metadata", "annotations", "thief.example/a")
	for _, key := range []string{
		api.AnnotationInterfaces, api.AnnotationVXLANMAC, api.AnnotationVXLANMACv6, api.AnnotationReflector, api.AnnotationLabels,
		api.AnnotationIPv4Address, api.NoReflector, api.AnnotationReflection, names.AnnotationMetadata, names.AnnotationNode,
		"tortie.net/upgrading-nodes", api.AnnotationPodIP, api.AnnotationIPAddrs, api.AnnotationHwAddr,
	} {
		add("192.0.2.77/32", "metadata", "annotations", key)
	}
	add([]any{"thief.example/x"}, "metadata", "finalizers")
	add([]any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "0"}}, "metadata", "ownerReferences")
	switch resource {
	case "nodes/status":
		return append(all, typed("spec", reflect.TypeFor[corev1.NodeSpec](), "status", reflect.TypeFor[corev1.NodeStatus]())...)
	case "pods/status":
		return append(all, typed("spec", reflect.TypeFor[corev1.PodSpec](), "status", reflect.TypeFor[corev1.PodStatus]())...)
	case "events":
		for _, f := range typed("", reflect.TypeFor[corev1.Event]()) {
			if f.path[0] != "metadata" && f.path[0] != "TypeMeta" {
				all = append(all, f)
			}
		}
		return all
	}
	add("x", "spec", "thief")
	return append(all, s.schema(t, resource)...)
}

// schema returns the fields of a kind from its CustomResourceDefinition.
func (s *scene) schema(t *testing.T, resource string) (all []change) {
	t.Helper()
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	def, err := s.admin.any.Resource(definitions).Get(t.Context(), strings.Replace(resource, "/status", "", 1), metav1.GetOptions{})
	errtest.Must(t, err)
	versions, _, err := unstructured.NestedSlice(def.Object, "spec", "versions")
	errtest.Must(t, err)
	for _, part := range []string{"spec", "status"} {
		fields, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", part, "properties")
		errtest.Must(t, err)
		for name, field := range fields {
			kind, _ := field.(map[string]any)["type"].(string)
			all = append(all, change{path: []string{part, name}, value: map[string]any{
				"string": "thief", "integer": int64(77), "boolean": true, "array": []any{}, "object": map[string]any{},
			}[kind]})
			if kind == "boolean" {
				all = append(all, change{path: []string{part, name}, value: false})
			}
		}
	}
	return all
}

// typed returns the fields of Go types, under their names.
func typed(parts ...any) (all []change) {
	for i := 0; i < len(parts); i += 2 {
		name := parts[i].(string)
		of, ok := reflect.Type(nil), false
		if i+1 < len(parts) {
			of, ok = parts[i+1].(reflect.Type)
		}
		if !ok {
			panic("name and type")
		}
		for j := range of.NumField() {
			f := of.Field(j)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "" {
				continue
			}
			path := []string{tag}
			if name != "" {
				path = []string{name, tag}
			}
			all = append(all, change{path: path, value: fake(f.Type, 0)})
		}
	}
	return all
}

// fake returns a JSON value of a type.
func fake(of reflect.Type, depth int) any {
	switch of {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "2026-01-02T03:04:05.000000Z"
	case reflect.TypeFor[resource.Quantity]():
		return "77"
	}
	switch of.Kind() {
	case reflect.Pointer:
		return fake(of.Elem(), depth)
	case reflect.String:
		return "thief"
	case reflect.Bool:
		return true
	case reflect.Slice:
		return []any{fake(of.Elem(), depth+1)}
	case reflect.Map:
		return map[string]any{"cpu": fake(of.Elem(), depth+1)}
	case reflect.Struct:
		out := map[string]any{}
		for i := range of.NumField() {
			if tag, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); tag != "" && depth < 2 {
				out[tag] = fake(of.Field(i).Type, depth+1)
			}
		}
		return out
	}
	return int64(77)
}

// send writes one field in a dry run, and returns the resulting object.
func (u *user) send(ctx context.Context, verb string, on *sample, c change) (*unstructured.Unstructured, error) {
	if verb == "patch" {
		return u.patch(ctx, on, c)
	}
	next := on.stored.DeepCopy()
	if c.path != nil {
		if err := unstructured.SetNestedField(next.Object, c.value, c.path...); err != nil {
			return nil, err
		}
	}
	if verb == "create" {
		return u.of(next).Create(ctx, next, metav1.CreateOptions{DryRun: dryRun})
	}
	if next.GetKind() == "IPAMBlock" && !slices.Equal(c.path, []string{"spec", "sequenceNumber"}) {
		spec(next.Object["spec"].(map[string]any)).bump()
	}
	return u.of(next).Update(ctx, next, metav1.UpdateOptions{DryRun: dryRun})
}

func (u *user) patch(ctx context.Context, on *sample, c change) (*unstructured.Unstructured, error) {
	body := map[string]any{}
	if c.path != nil {
		if err := unstructured.SetNestedField(body, c.value, c.path...); err != nil {
			return nil, err
		}
	}
	kind, sub := types.MergePatchType, []string(nil)
	if _, name, ok := strings.Cut(on.resource, "/"); ok {
		name, _, ofCalico := strings.Cut(name, ".")
		if sub = []string{name}; !ofCalico { // which merge by no strategy
			kind = types.StrategicMergePatchType
		}
	}
	return u.of(on.stored).Patch(ctx, on.stored.GetName(), kind, patch(body), metav1.PatchOptions{DryRun: dryRun}, sub...)
}

// matrix sends requests concurrently: all that must be allowed, and in the first tier a sample of those that must be
// refused.
type matrix struct {
	t               *testing.T
	g               errgroup.Group
	allowed, denied int // of all requests, sent or not
	sent            int
	sample          func(what string) bool
}

// expect sends a request, unless it must be refused and the sample, by what, leaves it out.
func (m *matrix) expect(what string, want bool, do func() error) {
	if want {
		m.allowed++
	} else {
		m.denied++
	}
	if !want && !m.sample(what) {
		return
	}
	m.sent++
	m.g.Go(func() error {
		err := do()
		switch {
		case want && err != nil:
			m.t.Errorf("%s: denied, want allowed: %v", what, err)
		case !want && err == nil:
			m.t.Errorf("%s: allowed, want denied", what)
		case !want && !denied(err):
			m.t.Errorf("%s: error %v, want a refusal", what, err)
		}
		return nil
	})
}

// done awaits the answers. The arguments are how many requests to allow, and to refuse, the test must have had at
// least.
func (m *matrix) done(allowed, denied int) {
	m.t.Helper()
	errtest.Must(m.t, m.g.Wait())
	m.t.Logf("%d requests to allow and %d to refuse, %d of them sent", m.allowed, m.denied, m.sent)
	if m.allowed < allowed || m.denied < denied {
		m.t.Errorf("%d requests to allow and %d to refuse, want %d and %d at least", m.allowed, m.denied, allowed, denied)
	}
}

func newMatrix(t *testing.T) *matrix {
	m := &matrix{t: t, sample: tier.Sample(t, sampled)}
	m.g.SetLimit(parallel)
	return m
}

// errNoEffect is a refusal without an error: the API server ignored the field.
var errNoEffect = errors.New("the write has no effect")

func denied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || errors.Is(err, errNoEffect) ||
		strings.Contains(err.Error(), "strategic merge patch")
}

// TestModelFields: each write of each field of each kind, on existing and new objects of each owner, is allowed if a
// rule of the model allows it, and denied otherwise.
func TestModelFields(t *testing.T) { inEachGroup(t, testModelFields) }

func testModelFields(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	m := newMatrix(t)
	fields := map[string][]change{}
	for _, set := range []struct {
		verbs   []string
		samples []sample
	}{{[]string{"update", "patch"}, s.samples(t)}, {[]string{"create"}, s.templates(t)}} {
		for i := range set.samples {
			on := &set.samples[i]
			if fields[on.resource] == nil {
				fields[on.resource] = s.fields(t, on.resource)
			}
			for _, verb := range set.verbs {
				s.tryFields(t, m, verb, on, fields[on.resource])
			}
		}
	}
	m.done(140, 1500)
}

func (s *scene) tryFields(t *testing.T, m *matrix, verb string, on *sample, fields []change) {
	t.Helper()
	for account, u := range map[string]*user{fence.Agent: s.agent, fence.Plugins: s.plugin} {
		if !fence.Granted(on.stored.GetNamespace())[account+" "+verb+" "+on.resource] {
			continue // TestModelIsRBAC
		}
		rule := fence.Find(account, verb, on.resource, on.whose)
		for _, c := range s.changes(t, rule, fields) {
			what := fmt.Sprintf("%s %s %s %s: %s = %.80v", account, verb, on.resource, on.whose, strings.Join(c.path, " "), c.value)
			m.expect(what, rule != nil && c.good, func() error {
				got, err := u.send(t.Context(), verb, on, c)
				if err == nil && !c.good && !differs(on.stored, got, c.path) {
					return errNoEffect
				}
				return err
			})
		}
		what := fmt.Sprintf("%s %s %s %s", account, verb, on.resource, on.whose)
		if verb != "patch" {
			m.expect(what, rule != nil, func() error { _, err := u.send(t.Context(), verb, on, change{}); return err })
		}
	}
}

// differs reports whether a field has changed.
func differs(before, after *unstructured.Unstructured, path []string) bool {
	a, hadIt, _ := unstructured.NestedFieldNoCopy(before.Object, path...)
	b, hasIt, _ := unstructured.NestedFieldNoCopy(after.Object, path...)
	return hadIt != hasIt || !reflect.DeepEqual(a, b)
}

// TestModelDeletes: an object may be deleted by its own node, or by any node if it has no owner, but not while it holds
// addresses of others.
func TestModelDeletes(t *testing.T) { inEachGroup(t, testModelDeletes) }

func testModelDeletes(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	m := newMatrix(t)
	all := s.samples(t)
	for i, owner := range map[int]string{170: "host:" + s.thief, 171: "", 172: "host:" + s.victim} {
		whose := map[string]fence.Whose{"host:" + s.thief: fence.Own, "": fence.Nobodys, "host:" + s.victim: fence.Others}[owner]
		all = append(all, sample{s.resource("ipamblocks"), whose, s.admin.create(t, emptied(s.block(t, i, owner)))})
	}
	for _, on := range all {
		holds := on.stored.GetKind() == "IPAMBlock" && len(on.stored.Object["spec"].(map[string]any)["attributes"].([]any)) > 0
		for account, u := range map[string]*user{fence.Agent: s.agent, fence.Plugins: s.plugin} {
			want := fence.Find(account, "delete", on.resource, on.whose) != nil && !holds
			m.expect(fmt.Sprintf("%s delete %s %s %s", account, on.resource, on.whose, on.stored.GetName()), want, func() error {
				return u.of(on.stored).Delete(t.Context(), on.stored.GetName(), metav1.DeleteOptions{DryRun: dryRun})
			})
		}
	}
	m.done(8, 20)
}

// TestModelClaims: affinities of all nodes, ranges, names, types and states. The last name belongs to the node's
// affinity to another range.
func TestModelClaims(t *testing.T) { inEachGroup(t, testModelClaims) }

func testModelClaims(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	m := newMatrix(t)
	ranges := []string{
		"10.97.0.0/26", "10.97.0.0/20", "10.97.0.0/19", "10.97.0.0/32", "10.97.0.1/26", "10.97.0.0", "0.0.0.0/0", "x", "", "010.97.0.0/26",
		"fd00::40/122", "fd00::/116", "fd00::/115", "fd00::41/128", "fd00:0::40/122", "fd00::41/122", "::/0", "::ffff:10.97.0.0/122",
	}
	for _, node := range []string{s.thief, s.victim, s.thief + "-x", ""} {
		for _, cidr := range ranges {
			suffix := "-" + strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr)
			for _, name := range []string{s.thief + suffix, s.victim + suffix, s.thief + "-x" + suffix, s.thief + "-10-97-0-64-26"} {
				for _, kind := range []string{"", "host", "virtual"} {
					for _, state := range []string{"pending", "confirmed", "x"} {
						a := with(with(s.affinity(strings.TrimRight(name, "-"), node, cidr), "type", kind), "state", state)
						want := node == s.thief && claims(s.thief, a.GetName(), cidr) && kind != "virtual" && state != "x"
						m.expect(fmt.Sprintf("claim %s for %s as %s, %s, %s", cidr, node, name, kind, state), want, func() error {
							_, err := s.plugin.of(a).Create(t.Context(), a, metav1.CreateOptions{DryRun: dryRun})
							return err
						})
					}
				}
			}
		}
	}
	m.done(24, 1500)
}

// claims reports whether name is the name of a node's affinity to a range that may be a block.
func claims(node, name, text string) bool {
	cidr, err := netip.ParsePrefix(text)
	return err == nil && !cidr.Addr().Is4In6() && cidr.Masked().String() == text && cidr.Addr().BitLen()-cidr.Bits() <= 12 &&
		name == names.Affinity(node, cidr)
}

// TestModelHandles: handles of all IDs, in all cases, of all nodes.
func TestModelHandles(t *testing.T) { inEachGroup(t, testModelHandles) }

func testModelHandles(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	m := newMatrix(t)
	tunnels := []string{"ipip-tunnel-addr-", "vxlan-tunnel-addr-", "vxlan-v6-tunnel-addr-", "wireguard-tunnel-addr-",
		"wireguard-v6-tunnel-addr-"}
	prefixes := append([]string{"net.", "Net.", "IPIP-tunnel-addr-", "vxlan-Tunnel-addr-", "VXLAN-V6-TUNNEL-ADDR-"}, tunnels...)
	for _, prefix := range prefixes {
		for _, node := range []string{s.thief, s.victim, s.thief + "-x", strings.ToUpper(s.victim)} {
			for _, by := range []string{"", s.thief, s.victim} {
				id := prefix + node
				lower := strings.ToLower(id)
				ofTunnel := slices.ContainsFunc(tunnels, func(p string) bool { return strings.HasPrefix(lower, p) })
				own := slices.ContainsFunc(tunnels, func(p string) bool { return id == p+s.thief })
				for _, name := range []string{lower, lower + "-x"} {
					h := s.handle(id, by)
					h.SetName(name)
					want := by != s.victim && name == lower && (!ofTunnel || own)
					m.expect(fmt.Sprintf("handle %s of %q as %s", id, by, name), want, func() error {
						_, err := s.agent.of(h).Create(t.Context(), h, metav1.CreateOptions{DryRun: dryRun})
						return err
					})
				}
			}
		}
	}
	m.done(20, 150)
}

// TestModelTokens: tokens of all accounts, bound to all kinds of objects, with all lifetimes.
func TestModelTokens(t *testing.T) {
	s := newScene(t)
	m := newMatrix(t)
	rule := fence.Find(fence.Agent, "create", "serviceaccounts/token", fence.Own)
	for _, account := range []string{"tortie-cni", "tortie-node", "tortie-kube-controllers", "default"} {
		for _, bind := range s.changes(t, &fence.Rule{Fields: rule.Fields[:1]}, nil) {
			for _, life := range s.changes(t, &fence.Rule{Fields: rule.Fields[1:2]}, nil) {
				for user, u := range map[string]*user{fence.Agent: s.agent, fence.Plugins: s.plugin} {
					text, err := json.Marshal(map[string]any{"spec": map[string]any{"boundObjectRef": bind.value, "expirationSeconds": life.value}})
					errtest.Must(t, err)
					request := &authv1.TokenRequest{}
					errtest.Must(t, json.Unmarshal(text, request))
					want := user == fence.Agent && account == "tortie-cni" && bind.good && life.good
					m.expect(fmt.Sprintf("%s asks for a token of %s: %s", user, account, text), want, func() error {
						_, err := u.core.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), account, request, metav1.CreateOptions{})
						return err
					})
				}
			}
		}
	}
	m.done(3, 100)
}

// TestModelAbsent: absent objects can be neither changed nor deleted, and objects of the cluster are created with their
// defaults only.
func TestModelAbsent(t *testing.T) { inEachGroup(t, testModelAbsent) }

func testModelAbsent(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	m := newMatrix(t)
	defaults := map[string]map[string]any{
		"IPAMConfig":         {"strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": int64(0)},
		"FelixConfiguration": {"logSeverityScreen": "Info", "reportingInterval": "0s"},
		"ClusterInformation": {"datastoreReady": true, "clusterGUID": "0123456789abcdef0123456789abcdef", "clusterType": "k8s,bgp,kdd"},
	}
	for kind, spec := range defaults {
		for _, name := range []string{"default", "node." + s.victim, "Default", s.thief} {
			obj := s.object(t, `{kind: %s, metadata: {name: %s}}`, kind, name)
			obj.Object["spec"] = maps.Clone(spec)
			m.expect(fmt.Sprintf("create %s %s", kind, name), name == "default", func() error {
				_, err := s.agent.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
				return err
			})
			m.expect(fmt.Sprintf("plugins create %s %s", kind, name), false, func() error {
				_, err := s.plugin.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
				return err
			})
			m.expect(fmt.Sprintf("delete %s %s", kind, name), false, func() error {
				return s.agent.of(obj).Delete(t.Context(), name, metav1.DeleteOptions{DryRun: dryRun})
			})
		}
		for _, c := range s.fields(t, s.resource(kinds[kind].Resource)) {
			if rule := fence.Find(fence.Agent, "create", s.resource(kinds[kind].Resource), fence.Cluster); known(rule, c.path) {
				continue
			}
			obj := s.object(t, `{kind: %s, metadata: {name: default}}`, kind)
			obj.Object["spec"] = maps.Clone(spec)
			errtest.Must(t, unstructured.SetNestedField(obj.Object, c.value, c.path...))
			if before, had := spec[c.path[len(c.path)-1]]; had && reflect.DeepEqual(before, c.value) {
				continue
			}
			m.expect(fmt.Sprintf("create %s default: %s = %.80v", kind, c.path, c.value), false, func() error {
				got, err := s.agent.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
				if err == nil && !differs(s.object(t, `{kind: %s, metadata: {name: default}}`, kind), got, c.path) {
					return errNoEffect
				}
				return err
			})
		}
	}
	m.done(3, 100)
}

// known reports whether a rule has a field, or one that it is a part of.
func known(rule *fence.Rule, path []string) bool {
	return rule != nil && slices.ContainsFunc(rule.Fields, func(f fence.Field) bool {
		return len(f.Path) <= len(path) && slices.Equal(f.Path, path[:len(f.Path)])
	})
}

// managers returns possible managedFields of an object, with so many characters in the names of fields.
func managers(on *unstructured.Unstructured, characters int, at ...string) []any {
	fields := map[string]any{}
	for i := range characters / 100 {
		fields[fmt.Sprintf("f:%098d", i)] = map[string]any{}
	}
	for _, name := range slices.Backward(at) {
		fields = map[string]any{name: fields}
	}
	return []any{map[string]any{
		"manager": "thief", "operation": "Update", "apiVersion": on.GetAPIVersion(), "time": "2026-01-02T03:04:05Z",
		"fieldsType": "FieldsV1", "fieldsV1": fields,
	}}
}

// TestModelMetadata: the owners and finalizers that others have set on the node's own objects stay, and the writers
// that the API server records: a writer may set these himself, in any length, and all agents would receive them.
func TestModelMetadata(t *testing.T) { inEachGroup(t, testModelMetadata) }

func testModelMetadata(t *testing.T, group groups.Group) {
	s := newSceneIn(t, group)
	m := newMatrix(t)
	places := [][]string{{"f:metadata", "f:annotations"}, {"f:spec"}, {}, {"f:spec", "f:a", "f:b", "f:c", "f:d", "f:e", "f:f"}}
	samples := s.samples(t)
	for i := range samples {
		on := &samples[i]
		for account, u := range map[string]*user{fence.Agent: s.agent, fence.Plugins: s.plugin} {
			for _, verb := range []string{"update", "patch"} {
				if fence.Find(account, verb, on.resource, on.whose) == nil || on.whose == fence.Others {
					continue
				}
				what := fmt.Sprintf("%s %s %s %s", account, verb, on.resource, on.whose)
				s.keep(t, on)
				for _, field := range []string{"finalizers", "ownerReferences"} {
					m.expect(what+": no "+field, false, func() error {
						got, err := u.send(t.Context(), verb, on, change{path: []string{"metadata", field}, value: []any{}})
						if err == nil && !differs(on.stored, got, []string{"metadata", field}) {
							return errNoEffect
						}
						return err
					})
				}
				for _, at := range places {
					m.expect(fmt.Sprintf("%s: managedFields at %s", what, at), false, func() error {
						got, err := u.send(t.Context(), verb, on,
							change{path: []string{"metadata", "managedFields"}, value: managers(on.stored, 200000, at...)})
						if text, _ := json.Marshal(got); err == nil && len(text) < 20000 {
							return errNoEffect
						}
						return err
					})
				}
				if verb == "update" {
					m.expect(what+": nothing", true, func() error { _, err := u.send(t.Context(), verb, on, change{}); return err })
				}
			}
		}
	}
	for _, on := range s.templates(t) {
		for account, u := range map[string]*user{fence.Agent: s.agent, fence.Plugins: s.plugin} {
			if fence.Find(account, "create", on.resource, on.whose) == nil {
				continue
			}
			for _, at := range places {
				m.expect(fmt.Sprintf("%s create %s: managedFields at %s", account, on.resource, at), false, func() error {
					_, err := u.send(t.Context(), "create", &on,
						change{path: []string{"metadata", "managedFields"}, value: managers(on.stored, 200000, at...)})
					return err
				})
			}
		}
	}
	m.done(6, 100)
}

// keep gives an object an owner and a finalizer for the time of the test.
func (s *scene) keep(t *testing.T, on *sample) {
	t.Helper()
	if len(on.stored.GetFinalizers()) > 0 {
		return
	}
	write := func(ctx context.Context, meta map[string]any) *unstructured.Unstructured {
		got, err := s.admin.of(on.stored).Patch(ctx, on.stored.GetName(), types.MergePatchType,
			patch(map[string]any{"metadata": meta}), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
			return on.stored
		}
		return got
	}
	owner := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "0"}
	on.stored = write(t.Context(), map[string]any{"finalizers": []any{"example.com/keep"}, "ownerReferences": []any{owner}})
	t.Cleanup(func() { write(context.Background(), map[string]any{"finalizers": nil, "ownerReferences": nil}) })
}
