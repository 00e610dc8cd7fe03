package policyview

import (
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const stagedFile = `
apiVersion: projectcalico.org/v3
kind: StagedNetworkPolicy
metadata: {name: web, namespace: shop}
spec: {selector: app == 'web', types: [Ingress], ingress: [{action: Deny, source: {selector: app == 'client'}}]}
---
apiVersion: crd.projectcalico.org/v1
kind: StagedGlobalNetworkPolicy
metadata: {name: later}
spec: {stagedAction: Learn, types: [Ingress]}
---
apiVersion: crd.projectcalico.org/v1
kind: StagedKubernetesNetworkPolicy
metadata: {name: old, namespace: shop}
spec: {stagedAction: Delete}
`

// Staged policies of a file are judged as if they were enforced, in the place of the policies that they are for.
func TestDiffOfStagedPolicies(t *testing.T) {
	k := shop(t)
	k.Policies = []policy.Policy{{ID: policy.ID{Kind: policy.KindCalicoNetworkPolicy, Namespace: "shop", Name: "default.web"},
		Called: "web", Tier: policy.TierDefault, Applies: [2]bool{true, false},
		Subject: policy.Pods{Namespace: "shop"}, Rules: [2][]policy.Rule{{{AnyPeer: true, AnyPort: true}}}}}
	c, err := parsePolicies("file", []byte(stagedFile))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	d := diff(k.State, c, map[policy.PodKey][]port{{Namespace: "shop", Name: "web-1"}: {{tcp, 8080}}}, nil)
	said := []string{
		"StagedNetworkPolicy shop/web: enforced it would change CalicoNetworkPolicy shop/default.web",
		"StagedKubernetesNetworkPolicy shop/old: the policy that it deletes is not there",
		"StagedGlobalNetworkPolicy later: nothing is tried out (stagedAction)",
	}
	if !slices.Equal(d.Policies, said) {
		t.Errorf("said %q", d.Policies)
	}
	if len(d.Flows) == 0 ||
		slices.ContainsFunc(d.Flows, func(f Flow) bool {
			return f.Change != changeDenied || f.By != "ingress CalicoNetworkPolicy shop/default.web"
		}) {
		t.Errorf("%+v", d.Flows)
	}
	c, err = parsePolicies("file", []byte(stagedFile))
	errtest.Must(t, err)
	c.deletes = true
	if err := c.read(nil); err == nil || !strings.Contains(err.Error(), "StagedNetworkPolicy shop/web: -delete changes nothing") {
		t.Errorf("deletion: %v", err)
	}
}

// explain reports the verdict with staged policies, where it differs, and the staged policy that causes it.
func TestExplainStagedPolicies(t *testing.T) {
	k := shop(t)
	c, err := parsePolicies("file", []byte(stagedFile+`
---
apiVersion: crd.projectcalico.org/v1
kind: StagedKubernetesNetworkPolicy
metadata: {name: client, namespace: shop}
spec: {stagedAction: Delete}
`))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	k.staged = c.staged
	asked, err := parseConnection([]string{"shop/client-1", "shop/web-1:8080"})
	errtest.Must(t, err)
	x, err := explain(k, asked, policy.Compile(k.State), kernel{}, nil)
	errtest.Must(t, err)
	if !x.Allowed {
		t.Error("staged policies decide")
	}
	golden(t, "explain-staged", x)
	k.staged = k.staged[1:2]
	if x, err = explain(k, asked, policy.Compile(k.State), kernel{}, nil); err != nil || x.Egress.Staged != nil || x.Ingress.Staged != nil {
		t.Errorf("%v, %+v, want nothing of a staged policy that changes nothing", err, x)
	}
}
