package policyview

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// passing is a policy of tier first that allows what comes from network sets.
const passing = `
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: first.web, namespace: shop}
spec:
  tier: first
  selector: app == 'web'
  types: [Ingress]
  ingress: [{action: Allow, source: {selector: kind == 'friend'}}]
`

const friends = `
apiVersion: crd.projectcalico.org/v1
kind: NetworkSet
metadata: {name: friends, namespace: shop, labels: {kind: friend}}
spec: {nets: [10.0.0.2]}
`

func tierFirst(action string) string {
	return "\n---\napiVersion: crd.projectcalico.org/v1\nkind: Tier\nmetadata: {name: first}\nspec: {order: 5, defaultAction: " +
		action + "}\n---\n"
}

// diffOf is what a file changes in a state, or its deletion.
func diffOf(t *testing.T, file string, deletes bool, of *policy.State, tiers map[string]policy.Tier) *Difference {
	t.Helper()
	c, err := parsePolicies("file", []byte(file))
	errtest.Must(t, err)
	c.deletes = deletes
	errtest.Must(t, c.read(tiers))
	return diff(*of, c, map[policy.PodKey][]port{{Namespace: "shop", Name: "web-1"}: {{tcp, 8080}}}, nil)
}

// Tiers and network sets of a file count for all policies, also for those that are in force.
func TestDiffOfTiersAndSets(t *testing.T) {
	s := shop(t).State
	s.Policies = nil
	only := func(change, by string, from ...string) []Flow {
		return []Flow{{Change: change, From: from, To: []string{"shop/web-1"}, Protocol: "TCP", Port: 8080, By: by}}
	}
	const denies = "ingress CalicoNetworkPolicy shop/first.web"
	d := diffOf(t, passing+tierFirst("Pass"), false, &s, nil)
	if want := []string{"Tier first: new", "CalicoNetworkPolicy shop/first.web: new"}; !slices.Equal(d.Policies, want) ||
		len(d.Flows)+len(d.Problems) > 0 {
		t.Errorf("a tier that passes on, and a policy: %+v", d)
	}
	first := map[string]policy.Tier{"first": {Name: "first", Order: 5, End: policy.Pass}}
	c, err := parsePolicies("file", []byte(passing))
	errtest.Must(t, err)
	errtest.Must(t, c.read(first))
	s.Policies = c.policies
	d = diffOf(t, tierFirst("Deny"), false, &s, first)
	if want := []string{"lab/mouse", "shop/client-1", "shop/client-2"}; d.Policies[0] != "Tier first: changed" ||
		flows(d.Flows) != flows(append(only(changeDenied, denies, want[0]), only(changeDenied, denies, want[1:]...)...)) {
		t.Errorf("the tier denies: %+v", d)
	}
	s.Policies[0].Tier.End = policy.Deny
	first["first"] = s.Policies[0].Tier
	d = diffOf(t, friends, false, &s, first)
	if d.Policies[0] != "NetworkSet shop/friends: new" ||
		!reflect.DeepEqual(d.Flows, withFamily(only(changeAllowed, denies, "shop/client-1"), "IPv4")) {
		t.Errorf("a set: %+v", d)
	}
	s.Sets = []policy.NetworkSet{{Namespace: "shop", Name: "friends", Labels: map[string]string{"kind": "friend"},
		Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}}}
	d = diffOf(t, friends, true, &s, first)
	if d.Policies[0] != "NetworkSet shop/friends: deleted" ||
		!reflect.DeepEqual(d.Flows, withFamily(only(changeDenied, denies, "shop/client-1"), "IPv4")) {
		t.Errorf("without the set: %+v", d)
	}
	if d = diffOf(t, tierFirst("Pass"), true, &s, nil); d.Policies[0] != "Tier first: not there" {
		t.Errorf("%+v", d)
	}
}

func withFamily(all []Flow, family string) []Flow {
	all[0].Family = family
	return all
}

func flows(all []Flow) (text string) {
	for _, f := range all {
		text += f.Change + " " + several(f.From) + " " + several(f.To) + " " + f.By + "\n"
	}
	return text
}

// A policy in the form of Calico's clients is the stored one, which may have a prefix in its name; in stored form it is
// another one.
func TestDiffByNamesOfClients(t *testing.T) {
	s := shop(t).State
	s.Policies = []policy.Policy{{ID: policy.ID{Kind: policy.KindCalicoNetworkPolicy, Namespace: "shop", Name: "default.web"},
		Called: "web", Tier: policy.TierDefault, Applies: [2]bool{true, false},
		Subject: policy.Pods{Namespace: "shop"}, Rules: [2][]policy.Rule{{{AnyPeer: true, AnyPort: true}}}}}
	for version, want := range map[string]string{"projectcalico.org/v3": "CalicoNetworkPolicy shop/default.web: changed",
		"crd.projectcalico.org/v1": "CalicoNetworkPolicy shop/web: new"} {
		d := diffOf(t, "kind: NetworkPolicy\napiVersion: "+version+
			"\nmetadata: {name: web, namespace: shop}\nspec: {types: [Ingress], ingress: [{action: Deny}]}", false, &s, nil)
		if d.Policies[0] != want || len(d.Flows) > 0 != (version == "projectcalico.org/v3") {
			t.Errorf("%s: %+v", version, d)
		}
	}
}

// Calico's clients derive types from the rules, kubectl does not: an object stored without types is for both
// directions.
func TestDiffByTypesOfClients(t *testing.T) {
	s := shop(t).State
	s.Policies = nil
	for _, c := range []struct{ version, kind, rules, want string }{
		{"projectcalico.org/v3", "NetworkPolicy", "ingress: [{action: Deny}]", "ingress"},
		{"projectcalico.org/v3", "GlobalNetworkPolicy", "egress: [{action: Deny}]", "egress"},
		{"projectcalico.org/v3", "StagedNetworkPolicy", "selector: all()", "ingress"},
		{"projectcalico.org/v3", "StagedGlobalNetworkPolicy", "egress: [{action: Deny}], ingress: [{action: Allow}]", "egress"},
		{"projectcalico.org/v3", "NetworkPolicy", "types: [Egress], ingress: [{action: Allow}]", "egress"},
		{"crd.projectcalico.org/v1", "NetworkPolicy", "ingress: [{action: Allow}]", "egress"},
	} {
		d := diffOf(t, fmt.Sprintf("{kind: %s, apiVersion: %s, metadata: {name: web, namespace: shop}, spec: {%s}}", c.kind, c.version, c.rules),
			false, &s, nil)
		if len(d.Flows) == 0 || slices.ContainsFunc(d.Flows, func(f Flow) bool { return !strings.HasPrefix(f.By, c.want+" ") }) ||
			(len(d.Problems) > 0) != (c.version != "projectcalico.org/v3") {
			t.Errorf("%+v: %+v", c, d)
		}
	}
}
