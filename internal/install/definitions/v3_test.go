package definitions_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// TestV3Facts compares the facts that clients of Calico's definitions of projectcalico.org/v3 rely on with a list that
// was made from these definitions, of release 3.33.
func TestV3Facts(t *testing.T) {
	text, err := os.ReadFile("testdata/v3/facts.csv")
	errtest.Must(t, err)
	want, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	errtest.Must(t, err)
	got := [][]string{want[0]}
	for _, d := range read(t, labtest.DefinitionsDir(groups.V3)) {
		got = append(got, facts(d))
	}
	difftest.Want(t, "definitions", want, got)
}

// facts returns the row of facts.csv for a definition.
func facts(d *unstructured.Unstructured) []string {
	text := func(path ...string) string {
		s, _, _ := unstructured.NestedString(d.Object, append([]string{"spec"}, path...)...)
		return s
	}
	short, _, _ := unstructured.NestedStringSlice(d.Object, "spec", "names", "shortNames")
	version := onlyVersion(d)
	_, status, _ := unstructured.NestedMap(version, "subresources", "status")
	return []string{
		text("names", "kind"), text("scope"), text("names", "plural"), text("names", "singular"), strings.Join(short, " "),
		strings.Join(members(version, "additionalPrinterColumns", "name"), ", "), fmt.Sprint(status),
		strings.Join(members(version, "selectableFields", "jsonPath"), " "),
	}
}

func onlyVersion(d *unstructured.Unstructured) map[string]any {
	versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
	version, _ := versions[0].(map[string]any)
	return version
}

// members returns one member of each object in a list.
func members(of map[string]any, list, member string) (all []string) {
	items, _, _ := unstructured.NestedSlice(of, list)
	for _, item := range items {
		object, _ := item.(map[string]any)
		all = append(all, fmt.Sprint(object[member]))
	}
	return all
}

// v3 is a real API server with the definitions of projectcalico.org/v3.
type v3 struct {
	*cluster
	kinds map[string]*unstructured.Unstructured // definitions by kind
	said  map[string]bool                       // messages of refusals, by "KIND: message"
}

func newV3(t *testing.T) *v3 {
	t.Helper()
	c := &v3{cluster: newCluster(t), kinds: map[string]*unstructured.Unstructured{}, said: map[string]bool{}}
	all := read(t, labtest.DefinitionsDir(groups.V3))
	c.apply(t, all) // returns when each is Established
	for _, d := range all {
		kind, _, _ := unstructured.NestedString(d.Object, "spec", "names", "kind")
		c.kinds[kind] = d
	}
	return c
}

// client returns a client for objects of a kind, in namespace default if they are in one.
func (c *v3) client(t *testing.T, kind string) dynamic.ResourceInterface {
	t.Helper()
	d := c.kinds[kind]
	if d == nil {
		t.Fatalf("no definition of kind %s", kind)
	}
	plural, _, _ := unstructured.NestedString(d.Object, "spec", "names", "plural")
	client := c.cluster.client.Resource(schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: plural})
	if scope, _, _ := unstructured.NestedString(d.Object, "spec", "scope"); scope == "Namespaced" {
		return client.Namespace("default")
	}
	return client
}

// object returns an object of projectcalico.org/v3.
func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return fromYAML(t, fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: %s, metadata: {name: %s}, spec: %s}", kind, name, spec))
}

// try creates an object without storing it, and returns what would be stored.
func (c *v3) try(t *testing.T, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	options := metav1.CreateOptions{FieldValidation: "Strict", DryRun: []string{metav1.DryRunAll}}
	made, err := c.client(t, obj.GetKind()).Create(t.Context(), obj, options)
	c.hear(obj.GetKind(), err)
	return made, err
}

// hear notes the rules that a refusal names.
func (c *v3) hear(kind string, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return
	}
	for _, cause := range status.Status().Details.Causes {
		_, message, _ := strings.Cut(cause.Message, ": ")
		for rule := range c.rules(kind) {
			if strings.HasSuffix(message, rule) {
				c.said[kind+": "+rule] = true
			}
		}
	}
}

// rules returns the messages of the rules of a kind.
func (c *v3) rules(kind string) map[string]bool {
	all := map[string]bool{}
	collectRules(onlyVersion(c.kinds[kind])["schema"], all)
	return all
}

func collectRules(node any, into map[string]bool) {
	switch node := node.(type) {
	case []any:
		for _, item := range node {
			collectRules(item, into)
		}
	case map[string]any:
		for _, message := range members(node, "x-kubernetes-validations", "message") {
			into[message] = true
		}
		for _, item := range node {
			collectRules(item, into)
		}
	}
}

// TestV3Definitions has a real API server with the definitions of projectcalico.org/v3. Each is Established. They
// accept what Calico's definitions accept, with the same defaults, and refuse what these refuse, with the field and a
// remedy. Each rule refuses something here.
func TestV3Definitions(t *testing.T) {
	c := newV3(t)
	t.Run("taken", c.takes)
	t.Run("refused", c.refuses)
	t.Run("golden", c.keepsGolden)
	t.Run("immutable", c.refusesChanges)
	t.Run("status", c.hasStatus)
	t.Run("tier", c.selectsByTier)
	for kind := range c.kinds {
		for rule := range c.rules(kind) {
			if !c.said[kind+": "+rule] {
				t.Errorf("%s: nothing was refused by the rule %q: add an object", kind, rule)
			}
		}
	}
}

// othersCase are the policies of the corpus with names of protocols such as tcp, which Calico 3.33 refuses.
var othersCase = map[string]bool{"protocols": true, "security.no-types": true}

// takes has the corpus of policies, and takenV3.
func (c *v3) takes(t *testing.T) {
	for _, obj := range stored(t) {
		obj.SetAPIVersion("projectcalico.org/v3")
		if obj.GetKind() == "Tier" || strings.Contains(obj.GetKind(), "Global") || obj.GetKind() == "HostEndpoint" {
			obj.SetNamespace("")
		} else {
			obj.SetNamespace("default")
		}
		_, err := c.try(t, obj)
		if othersCase[obj.GetName()] == (err == nil) || err != nil && !errtest.Names(err, "spec.ingress[0].protocol") {
			t.Errorf("%s %s of the corpus: %v", obj.GetKind(), obj.GetName(), err)
		}
	}
	for _, o := range takenV3 {
		made, err := c.try(t, object(t, o.kind, o.name, o.spec))
		if err != nil {
			t.Errorf("%s %s with %s: %v", o.kind, o.name, o.spec, err)
			continue
		}
		want := fromYAML(t, "{apiVersion: projectcalico.org/v3, kind: "+o.kind+", spec: "+o.spec+"}").Object["spec"].(map[string]any)
		for key, value := range fromYAML(t, "{apiVersion: projectcalico.org/v3, kind: "+o.kind+", spec: {"+o.defaults+"}}").
			Object["spec"].(map[string]any) {
			want[key] = value
		}
		difftest.Want(t, fmt.Sprintf("%s %s with %s", o.kind, o.name, o.spec), want, made.Object["spec"].(map[string]any))
	}
}

// refuses has refusedV3 and refused. All kinds of policies refuse what a NetworkPolicy refuses, and staged kinds what
// their unstaged kinds refuse.
func (c *v3) refuses(t *testing.T) {
	all := slices.Clone(refusedV3)
	for _, r := range refused {
		kinds := []string{r.kind}
		switch r.kind {
		case anyNP:
			kinds = []string{anyNP, anyGNP, "Staged" + anyNP, "Staged" + anyGNP}
		case anyGNP:
			kinds = []string{anyGNP, "Staged" + anyGNP}
		}
		for _, kind := range kinds {
			all = append(all, refusal{kind, "a", r.spec, r.want})
		}
	}
	for _, r := range all {
		if _, err := c.try(t, object(t, r.kind, r.name, r.spec)); !apierrors.IsInvalid(err) || !errtest.Names(err, r.want) {
			t.Errorf("%s %s with %s: %v, want an error with %q", r.kind, r.name, r.spec, err, r.want)
		}
	}
	for _, kind := range []string{"IPPool", "Tier"} {
		bare := fromYAML(t, "{apiVersion: projectcalico.org/v3, kind: "+kind+", metadata: {name: a}}")
		if _, err := c.try(t, bare); !apierrors.IsInvalid(err) || !errtest.Names(err, "spec Required") {
			t.Errorf("%s without a spec: %v", kind, err)
		}
	}
}

// golden are the Go types of the golden objects.
var golden = map[string]func() api.Resource{
	"IPAMBlock": func() api.Resource { return &api.IPAMBlock{} }, "IPAMHandle": func() api.Resource { return &api.IPAMHandle{} },
	"BlockAffinity": func() api.Resource { return &api.BlockAffinity{} }, "IPPool": func() api.Resource { return &api.IPPool{} },
	"IPAMConfiguration":  func() api.Resource { return &api.IPAMConfig{} },
	"ClusterInformation": func() api.Resource { return &api.ClusterInformation{} },
}

// keepsGolden creates objects as Calico has written them, and reads them back. Written by our Go types they are the
// same again.
func (c *v3) keepsGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/v3/golden.yaml")
	errtest.Must(t, err)
	for _, one := range strings.Split(string(text), "\n---\n")[1:] {
		want := fromYAML(t, one)
		client := c.client(t, want.GetKind())
		if _, err := client.Create(t.Context(), want, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			t.Errorf("%s: %v", want.GetKind(), err)
			continue
		}
		got, err := client.Get(t.Context(), want.GetName(), metav1.GetOptions{})
		errtest.Must(t, err)
		difftest.Want(t, want.GetKind(), want.Object["spec"], got.Object["spec"])
		difftest.Want(t, want.GetKind()+" labels", want.GetLabels(), got.GetLabels())
		difftest.Want(t, want.GetKind()+" annotations", want.GetAnnotations(), got.GetAnnotations())
		again := c.rewrite(t, client, got)
		difftest.Want(t, want.GetKind()+" written anew", want.Object["spec"], again.Object["spec"])
		difftest.Want(t, want.GetKind()+" labels written anew", want.GetLabels(), again.GetLabels())
	}
}

// rewrite reads an object by its Go type and replaces it by what that writes.
func (c *v3) rewrite(t *testing.T, client dynamic.ResourceInterface, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	text, err := obj.MarshalJSON()
	errtest.Must(t, err)
	typed := golden[obj.GetKind()]()
	errtest.Must(t, json.Unmarshal(text, typed))
	text, err = groups.V3.Manifest(typed)
	errtest.Must(t, err)
	written := &unstructured.Unstructured{}
	errtest.Must(t, written.UnmarshalJSON(text))
	updated, err := client.Update(t.Context(), written, metav1.UpdateOptions{FieldValidation: "Strict"})
	errtest.Must(t, err)
	return updated
}

// refusesChanges changes immutable fields of a pool, and mutable ones.
func (c *v3) refusesChanges(t *testing.T) {
	client := c.client(t, "IPPool")
	pool, err := client.Create(t.Context(), object(t, "IPPool", "fixed", "{cidr: 10.1.0.0/16, blockSize: 26}"), metav1.CreateOptions{})
	errtest.Must(t, err)
	for _, change := range []struct {
		field string
		value any
		want  string
	}{
		{"cidr", "10.2.0.0/16", "spec.cidr change disable"}, {"blockSize", int64(27), "spec.blockSize change disable"}, {"disabled", true, ""},
	} {
		changed := pool.DeepCopy()
		set(t, changed.Object, change.value, "spec", change.field)
		_, err := client.Update(t.Context(), changed, metav1.UpdateOptions{})
		c.hear("IPPool", err)
		if (err == nil) != (change.want == "") || err != nil && !errtest.Names(err, change.want) {
			t.Errorf("%s of a pool becomes %v: %v, want %q", change.field, change.value, err, change.want)
		}
	}
}

// hasStatus writes the status of the kinds that have a subresource for it, with a condition where there are some.
func (c *v3) hasStatus(t *testing.T) {
	condition := `{conditions: [{type: Ready, status: "True", reason: OK, message: m, lastTransitionTime: "2026-11-30T00:00:00Z"}]}`
	for _, o := range []struct{ kind, spec, status, bad, want string }{
		{"IPPool", "{cidr: 10.9.0.0/16}", condition, "{conditions: [{type: Ready, status: Yes}]}", "status.conditions[0].reason Required"},
		{"Tier", "{}", condition, "{conditions: [{type: Ready, status: Yes}]}", "status.conditions[0].lastTransitionTime Required"},
		{"CalicoNodeStatus", "{node: n1}", "{agent: {birdV4: {state: Ready}}}", "{agent: 1}", "status.agent integer object"},
		{"KubeControllersConfiguration", "{controllers: {}}", "{environmentVars: {A: b}}", "{environmentVars: 1}",
			"status.environmentVars object"},
	} {
		client := c.client(t, o.kind)
		made, err := client.Create(t.Context(), object(t, o.kind, "status", o.spec), metav1.CreateOptions{})
		errtest.Must(t, err)
		write := func(status string) (*unstructured.Unstructured, error) {
			with := made.DeepCopy()
			set(t, with.Object, fromYAML(t, "{apiVersion: v1, kind: A, status: "+status+"}").Object["status"], "status")
			return client.UpdateStatus(t.Context(), with, metav1.UpdateOptions{})
		}
		if _, err := write(o.bad); !apierrors.IsInvalid(err) || !errtest.Names(err, o.want) {
			t.Errorf("%s with status %s: %v, want an error with %q", o.kind, o.bad, err, o.want)
		}
		got, err := write(o.status)
		if err != nil {
			t.Errorf("%s with status %s: %v", o.kind, o.status, err)
			continue
		}
		want := fromYAML(t, "{apiVersion: v1, kind: A, status: "+o.status+"}").Object["status"]
		if diff := cmp.Diff(want, got.Object["status"]); diff != "" {
			t.Errorf("%s: status (-want +got):\n%s", o.kind, diff)
		}
	}
}

// selectsByTier lists policies by their tier, which those without have by default.
func (c *v3) selectsByTier(t *testing.T) {
	for _, kind := range []string{anyNP, anyGNP, "Staged" + anyNP, "Staged" + anyGNP} {
		client := c.client(t, kind)
		for name, spec := range map[string]string{"none": "{}", "security": "{tier: security}"} {
			_, err := client.Create(t.Context(), object(t, kind, name, spec), metav1.CreateOptions{})
			errtest.Must(t, err)
		}
		for tier, want := range map[string]string{"default": "none", "security": "security", "other": ""} {
			list, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.tier=" + tier})
			errtest.Must(t, err)
			var names []string
			for _, item := range list.Items {
				names = append(names, item.GetName())
			}
			if strings.Join(names, " ") != want {
				t.Errorf("%s of tier %s: %q, want %q", kind, tier, names, want)
			}
		}
	}
}
