package policyview

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api/groups"
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

// readIn reads a file with one policy, in a cluster of a group.
func readIn(t *testing.T, in, form groups.Group, kind, name, spec string) *change {
	t.Helper()
	c, err := parsePolicies("file", fmt.Appendf(nil,
		"{kind: %s, apiVersion: %s, metadata: {name: %s, namespace: shop}, spec: {%s}}", kind, form, name, spec))
	errtest.Must(t, err)
	c.group = in
	errtest.Must(t, c.read(nil))
	return c
}

// A policy of the file is the one that it replaces when it is applied. In crd.projectcalico.org/v1 Calico's clients find
// one that is stored with a prefix, and kubectl takes the stored name. In projectcalico.org/v3 a name is a name.
func TestDiffByNamesOfClients(t *testing.T) {
	const fresh, changed, none = "shop/web: new", "shop/default.web: changed", "the policy that it deletes is not there"
	const deleted = "enforced it would delete CalicoNetworkPolicy shop/default.web"
	for _, c := range []struct {
		in     groups.Group
		called string // by clients, of the stored default.web
		form   groups.Group
		name   string
		// says is about a policy of the file, staged about one that is staged to be deleted.
		says, staged string
	}{
		{groups.V1, "web", groups.V3, "web", changed, deleted},
		{groups.V1, "web", groups.V3, "default.web", changed, deleted},
		{groups.V1, "default.web", groups.V3, "web", fresh, none},
		{groups.V1, "default.web", groups.V3, "default.web", changed, deleted},
		{groups.V1, "web", groups.V1, "web", fresh, "enforced it would delete CalicoNetworkPolicy shop/web"},
		{groups.V1, "web", groups.V1, "default.web", changed, deleted},
		{groups.V3, "default.web", groups.V3, "web", fresh, none},
		{groups.V3, "default.web", groups.V3, "default.web", changed, deleted},
		{groups.V3, "default.web", groups.V1, "default.web", fresh, none}, // as after a move
		{groups.V3, "default.web", groups.V1, "default.default.web", changed, deleted},
	} {
		s := shop(t).State
		s.Policies = []policy.Policy{{ID: policy.ID{Kind: policy.KindCalicoNetworkPolicy, Namespace: "shop", Name: "default.web"},
			Called: c.called, Tier: policy.TierDefault, Applies: [2]bool{true, false},
			Subject: policy.Pods{Namespace: "shop"}, Rules: [2][]policy.Rule{{{AnyPeer: true, AnyPort: true}}}}}
		_, said := readIn(t, c.in, c.form, "NetworkPolicy", c.name, "types: [Ingress]").over(s)
		_, staged := readIn(t, c.in, c.form, "StagedNetworkPolicy", c.name, "stagedAction: Delete").over(s)
		if said[0] != "CalicoNetworkPolicy "+c.says || !strings.HasSuffix(staged[0], ": "+c.staged) {
			t.Errorf("%+v: %q, staged %q", c, said, staged)
		}
	}
}

// The group of the cluster and that of the file decide on the directions of a policy without types, see groups.Apply.
func TestDiffByTypesOfClients(t *testing.T) {
	for _, kind := range []string{"NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"} {
		for _, c := range []struct {
			in, form groups.Group
			want     [2]bool // ingress, egress
			problem  bool
		}{
			{groups.V1, groups.V3, [2]bool{true, false}, false},
			{groups.V3, groups.V3, [2]bool{false, true}, false},
			{groups.V1, groups.V1, [2]bool{true, true}, true},
			{groups.V3, groups.V1, [2]bool{true, true}, false},
		} {
			read := readIn(t, c.in, c.form, kind, "web", "egress: []")
			all := append(stagedOf(read.staged), read.policies...)
			if len(all) != 1 || all[0].Applies != c.want || len(read.problems) > 0 != c.problem {
				t.Errorf("%s of %s in %s: %+v, problems %q, want %v", kind, c.form, c.in, all, read.problems, c.want)
			}
		}
	}
}
