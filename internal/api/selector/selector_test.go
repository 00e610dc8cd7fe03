package selector

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestMatches(t *testing.T) {
	labels := map[string]string{"zone": "a", "kind": "edge", "app.kubernetes.io/name": "web-1", "in": "x"}
	for _, tc := range []struct {
		text string
		want bool
	}{
		{"", true},
		{"  ", true},
		{"all()", true},
		{"!all()", false},
		{"zone == 'a'", true},
		{`zone == "b"`, false},
		{"zone != 'a'", false},
		{"zone != 'b'", true},
		{"absent != 'a'", true},
		{"absent == ''", false},
		{"zone in {'a', 'b'}", true},
		{"zone in {}", false},
		{"zone not in {'a'}", false},
		{"absent not in {'a'}", true},
		{"absent in {'a'}", false},
		{"has(zone)", true},
		{"!has(zone)", false},
		{"has(absent)", false},
		{"app.kubernetes.io/name starts with 'web'", true},
		{"app.kubernetes.io/name ends with '-1'", true},
		{"app.kubernetes.io/name contains 'b-'", true},
		{"absent contains ''", false},
		{"zone == 'b' || kind == 'edge' && zone == 'a'", true}, // && binds tighter
		{"(zone == 'b' || kind == 'edge') && zone == 'b'", false},
		{"!zone == 'b'", true}, // ! binds tightest, over the whole comparison
		{"!(zone == 'a' && kind == 'edge')", false},
		{"in == 'x'", true}, // an operator's word is a label name where one is expected
		{"zone=='a'&&has(kind)", true},
		{"zone in {'b', 'a',}", true},
		{"zone notin {'b'}", true},
		{"zone not\tin {'a'}", false},
		{"zone startswith 'a' && zone endswith'a'", true},
		{"has( zone\t)", true},
		{"global() && all( )", true},
		{"has == 'x'", false},
	} {
		s, err := Parse(tc.text)
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		if got := s.Matches(labels); got != tc.want {
			t.Errorf("%q: got %v, want %v", tc.text, got, tc.want)
		}
	}
}

func TestKeys(t *testing.T) {
	for text, want := range map[string][]string{
		"":      nil,
		"all()": nil,
		"has(rack) && zone in {'a', \"b\"} && !(kind == 'edge') || zone not in {}": {"kind", "rack", "zone"},
		"kubernetes.io/metadata.name starts with 'team-'":                          {"kubernetes.io/metadata.name"},
	} {
		s, err := Parse(text)
		errtest.Must(t, err)
		if got := s.Keys(); !slices.Equal(got, want) {
			t.Errorf("%q is decided by %q, want %q", text, got, want)
		}
	}
}

// Labels that everything has which the selector matches, and no others.
func TestNeeds(t *testing.T) {
	for text, want := range map[string][]Need{
		"a == '1'":                           {{"a", []string{"1"}}},
		"a in {'2', '1', '2'} && has(b)":     {{"a", []string{"1", "2"}}},
		"(a == '1' && c != '1') && b == '2'": {{"a", []string{"1"}}, {"b", []string{"2"}}},
		"a == '1' || b == '2'":               nil,
		"!(a == '1')":                        nil,
		"a not in {'1'} && a in {}":          nil,
		"all()":                              nil,
	} {
		s, err := Parse(text)
		if err != nil || !reflect.DeepEqual(s.Needs(), want) {
			t.Errorf("%s needs %v, %v, want %v", text, s.Needs(), err, want)
		}
	}
	if s, err := Parse("a == '1' && (a != '2' || !has(b))"); err != nil || s.Size() != 3 {
		t.Errorf("%d conditions, %v, want 3", s.Size(), err)
	}
	if s, err := Parse("!all() || !global() || a == '1'"); err != nil || s.Size() != 3 {
		t.Errorf("%d conditions with those without a label, %v, want 3", s.Size(), err)
	}
}

func TestScoped(t *testing.T) {
	in, inNone := map[string]string{"name": "x", "env": "dev"}, map[string]string(nil)
	for text, want := range map[string][2]bool{ // of what is in a namespace, and in none
		"all()": {true, false}, "global()": {false, true}, "!global()": {true, false}, "env == 'dev' || global()": {true, true},
		"env != 'dev'": {false, true},
	} {
		s, err := ParseScoped(text, "name")
		errtest.Must(t, err)
		if got := [2]bool{s.Matches(in), s.Matches(inNone)}; got != want || s.Global() != strings.Contains(text, "global") {
			t.Errorf("%q: %v, want %v; global() is in it: %v", text, got, want, s.Global())
		}
	}
	if s, err := Parse("'global()' == x"); err == nil || s.Global() {
		t.Error("a value is a function")
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"zone = 'a'":                "6 '='",
		"zone == a":                 "quoted",
		"zone ==":                   "ends quoted",
		"zone == 'a":                "9 ' closed",
		"has(":                      "label",
		"has(zone":                  "ends ')'",
		"some(zone)":                "some() has(LABEL)",
		"zone in {'a' 'b'}":         "'}'",
		"zone in {,}":               "quoted",
		"zone in {'a',,}":           "quoted",
		"has (zone)":                "5 ==",
		"zone'('":                   "5 ==",
		"zone ==\n'a'":              "'\\n'",
		"zone not 'a'":              "'in'",
		"zone == 'a' zone":          "operator end",
		"&& zone == 'a'":            "label",
		"(zone == 'a'":              "')'",
		strings.Repeat("!", 100000): "100",
	} {
		_, err := Parse(text)
		if !errtest.Names(err, want) {
			t.Errorf("%.40q: error %.200v, want one with %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("has(rack) && zone in {'a', \"b\"} && !(kind == 'edge') || x not in {} ")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		negated, err := Parse("!(" + text + ")")
		if strings.Trim(text, blanks) == "" || err != nil {
			return // too deep by one, or nothing to negate
		}
		for _, labels := range []map[string]string{nil, {"zone": "a"}} {
			if s.Matches(labels) == negated.Matches(labels) {
				t.Errorf("%q and its negation agree on %v", text, labels)
			}
		}
	})
}
