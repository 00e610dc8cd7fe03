package rights

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// objectsOf returns the objects of a section of docs/calico-policy.md.
func objectsOf(t *testing.T, section string) (all []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(labtest.Root(), "docs", "calico-policy.md"))
	errtest.Must(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("docs/calico-policy.md has no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	for i, block := range strings.Split(rest, "\n```") {
		if yaml, ok := strings.CutPrefix(block, "yaml\n"); ok && i%2 == 1 {
			for doc := range strings.SplitSeq(yaml, "\n---\n") {
				all = append(all, object(t, "%s", doc))
			}
		}
	}
	return all
}

// The admission policy of the page asks for the rights on tiers that Calico's API server asks for.
func TestRightsOnTiers(t *testing.T) { inEachGroup(t, testRightsOnTiers) }

func testRightsOnTiers(t *testing.T, group groups.Group) {
	labtest.Define(t, group, "networkpolicies", "globalnetworkpolicies")
	cfg := labtest.RESTConfig(t)
	admin := newUser(t, cfg)
	examples := objectsOf(t, "Rights on tiers")
	if len(examples) != 3 {
		t.Fatalf("%d objects in the page, want 3", len(examples))
	}
	for _, o := range examples {
		if o.GetKind() == "ClusterRole" {
			admin.create(t, o)
		}
	}
	labtest.FenceWith(t, cfg, examples)
	t.Cleanup(func() { labtest.Unfence(t, cfg, examples) })
	for _, text := range []string{
		`{"kind":"ClusterRole","metadata":{"name":"calico-platform-tier"},"rules":[
			{"apiGroups":["*"],"resources":["networkpolicies","globalnetworkpolicies"],"verbs":["*"]},
			{"apiGroups":["projectcalico.org"],"resources":["tiers"],"resourceNames":["platform","default"],"verbs":["get"]},
			{"apiGroups":["projectcalico.org"],"resources":["tier.networkpolicies"],"resourceNames":["platform.*"],"verbs":["create","delete"]},
			{"apiGroups":["projectcalico.org"],"resources":["tier.globalnetworkpolicies"],"resourceNames":["one"],"verbs":["*"]}]}`,
		`{"kind":"ClusterRole","metadata":{"name":"calico-blind"},"rules":[
			{"apiGroups":["*"],"resources":["networkpolicies"],"verbs":["*"]},
			{"apiGroups":["projectcalico.org"],"resources":["tier.networkpolicies"],"resourceNames":["default.*"],"verbs":["*"]}]}`,
		`{"kind":"ClusterRoleBinding","metadata":{"name":"tenant"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",` +
			`"name":"calico-default-tier"},"subjects":[{"kind":"User","name":"tenant"}]}`,
		`{"kind":"ClusterRoleBinding","metadata":{"name":"platform"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",` +
			`"name":"calico-platform-tier"},"subjects":[{"kind":"User","name":"platform"}]}`,
		`{"kind":"ClusterRoleBinding","metadata":{"name":"blind"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",` +
			`"name":"calico-blind"},"subjects":[{"kind":"User","name":"blind"}]}`,
	} {
		admin.create(t, object(t, "%s", `{"apiVersion":"rbac.authorization.k8s.io/v1",`+strings.TrimPrefix(text, "{")))
	}
	as := func(name string) *user {
		other := rest.CopyConfig(cfg)
		other.Impersonate.UserName = name
		return newUser(t, other)
	}
	tenant, platform, blind := as("tenant"), as("platform"), as("blind")
	policy := func(text string, args ...any) *unstructured.Unstructured {
		obj := object(t, text, args...)
		labtest.InGroupOf(group, obj)
		return obj
	}
	np := func(name, tier string) *unstructured.Unstructured {
		return policy(`{"kind":"NetworkPolicy","metadata":{"namespace":"default","name":"%s"},"spec":{%s"selector":"all()"}}`, name, tier)
	}
	const inPlatform, inDefault = `"tier":"platform",`, `"tier":"default",`
	for what, made := range map[string]*unstructured.Unstructured{"default.w": np("default.w", ""),
		"platform.w": np("platform.w", inPlatform)} {
		if _, err := admin.of(made).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatalf("the administrator creates %s: %v", what, err)
		}
		t.Cleanup(func() { _ = admin.of(made).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}) })
	}
	creates := func(obj *unstructured.Unstructured) func(*user) error {
		return func(u *user) error {
			_, err := u.of(obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	patches := func(name, spec string) func(*user) error {
		return func(u *user) error {
			_, err := u.of(np(name, "")).Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{`+spec+`}}`),
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	deletes := func(name string) func(*user) error {
		return func(u *user) error {
			return u.of(np(name, "")).Delete(t.Context(), name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		}
	}
	gnp := func(name string) *unstructured.Unstructured {
		return policy(`{"kind":"GlobalNetworkPolicy","metadata":{"name":"%s"},"spec":{"tier":"platform","selector":"all()"}}`, name)
	}
	awaitRight(t, tenant, creates(np("new", "")))
	awaitRight(t, platform, creates(np("new", inPlatform)))
	for what, c := range map[string]struct {
		as      *user
		do      func(*user) error
		refused bool
	}{
		"the tenant creates in no tier":                         {tenant, creates(np("new", "")), false},
		"the tenant creates in tier default":                    {tenant, creates(np("new", inDefault)), false},
		"the tenant creates in an empty tier":                   {tenant, creates(np("new", `"tier":"",`)), false},
		"the tenant creates in another tier":                    {tenant, creates(np("new", inPlatform)), true},
		"the tenant changes its own":                            {tenant, patches("default.w", `"order":1`), false},
		"the tenant moves its own to another tier":              {tenant, patches("default.w", `"tier":"platform"`), true},
		"the tenant changes one of another tier":                {tenant, patches("platform.w", `"order":1`), true},
		"the tenant takes one from another tier":                {tenant, patches("platform.w", `"tier":"default"`), true},
		"the tenant deletes its own":                            {tenant, deletes("default.w"), false},
		"the tenant deletes one of another tier":                {tenant, deletes("platform.w"), true},
		"who may create and delete in a tier creates":           {platform, creates(np("new", inPlatform)), false},
		"who may create and delete in a tier deletes":           {platform, deletes("platform.w"), false},
		"who may create and delete in a tier changes":           {platform, patches("platform.w", `"order":1`), true},
		"who may only get a tier creates":                       {platform, creates(np("new", inDefault)), true},
		"who may write one policy by its name creates it":       {platform, creates(gnp("one")), false},
		"who may write one policy by its name creates another":  {platform, creates(gnp("two")), true},
		"who may not get the tier creates":                      {blind, creates(np("new", "")), true},
		"the administrator creates in a tier that is not there": {admin, creates(np("new", `"tier":"none",`)), false},
	} {
		err := c.do(c.as)
		if apierrors.IsForbidden(err) != c.refused || !c.refused && err != nil ||
			c.refused && !strings.Contains(err.Error(), "writing a policy of a tier takes ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// awaitRight waits until a user has a right that it was just given.
func awaitRight(t *testing.T, u *user, do func(*user) error) {
	t.Helper()
	waittest.For(t, time.Minute, func() error { return do(u) })
}
