package selector

import (
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func requirement(key, operator string, values ...string) api.LabelSelector {
	return api.LabelSelector{MatchExpressions: []api.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func TestFromLabels(t *testing.T) {
	labels := map[string]string{"app": "web", "zone": "a"}
	both := requirement("zone", api.SelectorIn, "b", "a")
	both.MatchLabels = map[string]string{"app": "web"}
	for _, c := range []struct {
		in   api.LabelSelector
		text string
		want bool
	}{
		{api.LabelSelector{}, "", true},
		{api.LabelSelector{MatchLabels: map[string]string{"app": "web", "zone": "a"}}, `app == "web" && zone == "a"`, true},
		{api.LabelSelector{MatchLabels: map[string]string{"app": "web", "zone": "b"}}, `app == "web" && zone == "b"`, false},
		{api.LabelSelector{MatchLabels: map[string]string{"absent": ""}}, `absent == ""`, false},
		{requirement("zone", api.SelectorIn, "b", "a", "b"), `zone in {"a", "b"}`, true},
		{requirement("zone", api.SelectorIn, "b"), `zone == "b"`, false},
		{requirement("absent", api.SelectorIn, ""), `absent == ""`, false},
		{requirement("zone", api.SelectorNotIn, "b", "c"), `zone not in {"b", "c"}`, true},
		{requirement("zone", api.SelectorNotIn, "a"), `zone != "a"`, false},
		{requirement("absent", api.SelectorNotIn, "a"), `absent != "a"`, true},
		{requirement("zone", api.SelectorExists), `has(zone)`, true},
		{requirement("absent", api.SelectorExists), `has(absent)`, false},
		{requirement("absent", api.SelectorDoesNotExist), `!has(absent)`, true},
		{requirement("zone", api.SelectorDoesNotExist), `!has(zone)`, false},
		{both, `app == "web" && zone in {"a", "b"}`, true},
		{requirement("app", api.SelectorIn, `' || "`), `app == "' || \""`, false},               // a value cannot become syntax
		{requirement(`zone) && has(app`, api.SelectorExists), `has("zone) && has(app")`, false}, // nor a key
		{requirement(`app == "web" && zone`, api.SelectorIn, "a"), `"app == \"web\" && zone" == "a"`, false},
	} {
		s, err := FromLabels(c.in)
		if err != nil || s.String() != c.text || s.Matches(labels) != c.want {
			t.Errorf("%+v: %q matches %v, %v; want %q, %v", c.in, s, s.Matches(labels), err, c.text, c.want)
		}
		for _, need := range s.Needs() {
			if c.want && !slices.Contains(need.Values, labels[need.Key]) {
				t.Errorf("%s matches, yet is said to need %s of %q", s, need.Key, need.Values)
			}
		}
	}
	if s, _ := FromLabels(requirement("x", api.SelectorNotIn, "a")); len(s.Needs()) > 0 {
		t.Errorf("a condition that holds without the label needs %q", s.Needs())
	}
	if s, _ := FromLabels(both); len(s.Needs()) != 2 || s.Size() != 2 {
		t.Errorf("%s needs %q, size %d", s, s.Needs(), s.Size())
	}
}

func TestFromLabelsErrors(t *testing.T) {
	for want, in := range map[string]api.LabelSelector{
		`matchExpressions[0] In "a" no`:         requirement("a", api.SelectorIn),
		`matchExpressions[0] Exists "a" values`: requirement("a", api.SelectorExists, "b"),
		`matchExpressions[0] "Gt" "a" NotIn`:    requirement("a", "Gt", "1"),
		"matchExpressions[0] key":               requirement("", api.SelectorExists),
		`matchExpressions[0] NotIn "a"`:         requirement("a", api.SelectorNotIn),
	} {
		if s, err := FromLabels(in); !errtest.Names(err, want) {
			t.Errorf("%+v: %q, %v, want an error with %q", in, s, err, want)
		}
	}
}
