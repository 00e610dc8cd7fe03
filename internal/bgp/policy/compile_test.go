package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// ruleOf reads a rule in the notation of an object.
func ruleOf(t testing.TB, text string) api.BGPFilterRule {
	t.Helper()
	var rule api.BGPFilterRule
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&rule); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return rule
}

// rulesOf compiles rules for export.
func rulesOf(t testing.TB, family wire.Family, texts ...string) *Rules {
	t.Helper()
	var spec api.BGPFilterSpec
	for _, text := range texts {
		spec.ExportV4 = append(spec.ExportV4, ruleOf(t, text))
	}
	spec.ExportV6 = spec.ExportV4
	rules, errs := Compile("f", &spec, Export, family)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return rules
}

func p(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func a(text string) netip.Addr { return netip.MustParseAddr(text) }

// Each field of a rule matches the routes that it describes and no others.
func TestRule(t *testing.T) {
	community := func(text string) *wire.Attributes {
		c, err := ParseCommunity(text)
		errtest.Must(t, err)
		return &wire.Attributes{Communities: wire.NewCommunities(c)}
	}
	plain := &wire.Attributes{}
	route := func(prefix string) Route { return Route{Prefix: p(prefix), Attributes: plain} }
	for _, c := range []struct {
		rule    string
		matches []Route
		not     []Route
	}{
		{rule: `{}`, matches: []Route{route("0.0.0.0/0")}, not: []Route{route("fd00::/8")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"Equal"`, matches: []Route{route("10.0.0.0/8")},
			not: []Route{route("10.0.0.0/9"), route("0.0.0.0/0"), route("11.0.0.0/8")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"NotEqual"`, not: []Route{route("10.0.0.0/8")},
			matches: []Route{route("10.0.0.0/9"), route("0.0.0.0/0")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"In"`, matches: []Route{route("10.0.0.0/8"), route("10.2.3.4/32")},
			not: []Route{route("0.0.0.0/0"), route("11.0.0.0/16")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"NotIn"`, not: []Route{route("10.0.0.0/8"), route("10.2.3.4/32")},
			matches: []Route{route("0.0.0.0/0"), route("11.0.0.0/16")}},
		{rule: `{"cidr":"0.0.0.0/0","matchOperator":"In"`, matches: []Route{route("0.0.0.0/0"), route("10.2.3.4/32")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":16,"max":24}`,
			matches: []Route{route("10.1.0.0/16"), route("10.1.1.0/24")},
			not:     []Route{route("10.0.0.0/8"), route("10.0.0.0/15"), route("10.1.1.0/25"), route("11.1.0.0/16")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"NotIn","prefixLength":{"min":16,"max":24}`,
			not:     []Route{route("10.1.0.0/16"), route("10.1.1.0/24")},
			matches: []Route{route("10.0.0.0/8"), route("10.1.1.0/25"), route("11.1.0.0/16")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":25}`, matches: []Route{route("10.1.1.1/32")},
			not: []Route{route("10.1.1.0/24")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":4,"max":9}`, matches: []Route{route("10.0.0.0/8")},
			not: []Route{route("0.0.0.0/4"), route("10.0.0.0/10")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{}`, matches: []Route{route("10.0.0.0/8"), route("10.1.1.1/32")},
			not: []Route{route("0.0.0.0/0")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"Equal","prefixLength":{"max":16}`, matches: []Route{route("10.0.0.0/8")},
			not: []Route{route("10.0.0.0/16")}},
		{rule: `{"cidr":"10.0.0.0/8","matchOperator":"Equal","prefixLength":{"min":16}`, not: []Route{route("10.0.0.0/8"), route("10.0.0.0/16")}},
		{rule: `{"source":"RemotePeers"`, matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain}},
			not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain, Own: true}}},
		{rule: `{"peerType":"eBGP"`, matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain, External: true}},
			not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain}}},
		{rule: `{"peerType":"iBGP"`, not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain, External: true}},
			matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain}}},
		{rule: `{"interface":"eth0"`, matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain, Interface: "eth0"}},
			not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain}, {Prefix: p("10.1.0.0/16"), Attributes: plain, Interface: "eth01"}}},
		{rule: `{"communities":{"values":["64512:100"]}`, matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: community("64512:100")}},
			not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain}, {Prefix: p("10.1.0.0/16"), Attributes: community("64512:101")},
				{Prefix: p("10.1.0.0/16"), Attributes: community("0:64512:100")}}},
		{rule: `{"communities":{"values":["1:2:3"]}`, matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: community("1:2:3")}},
			not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: community("1:2")}}},
		{rule: `{"asPathPrefix":[7,8]`, matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: &wire.Attributes{Path: wire.NewASPath(7, 8, 9)}}},
			not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain},
				{Prefix: p("10.1.0.0/16"), Attributes: &wire.Attributes{Path: wire.NewASPath(8, 7)}}}},
		{rule: `{"priority":512`, matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain, Priority: 512}},
			not: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain}, {Prefix: p("10.1.0.0/16"), Attributes: plain, Priority: 1024}}},
		{rule: `{"priority":512,"peerType":"eBGP"`,
			matches: []Route{{Prefix: p("10.1.0.0/16"), Attributes: plain, Priority: 512, External: true}}, not: []Route{
				{Prefix: p("10.1.0.0/16"), Attributes: plain, Priority: 512}, {Prefix: p("10.1.0.0/16"), Attributes: plain, External: true},
			}},
	} {
		text := strings.TrimSuffix(c.rule, "}") + `,"action":"Accept"}`
		if c.rule == `{}` {
			text = `{"action":"Accept"}`
		} else if strings.HasSuffix(c.rule, "}") {
			text = c.rule + `,"action":"Accept"}`
		}
		rules := rulesOf(t, wire.IPv4, text)
		for _, r := range c.matches {
			if rules.Apply(r).Verdict != Accept {
				t.Errorf("%s does not match %+v", text, r)
			}
		}
		for _, r := range c.not {
			if rules.Apply(r).Verdict != NoMatch {
				t.Errorf("%s matches %+v", text, r)
			}
		}
	}
}

func TestRuleOfIPv6(t *testing.T) {
	rules := rulesOf(t, wire.IPv6, `{"cidr":"fd00::/8","matchOperator":"In","prefixLength":{"min":64,"max":122},"action":"Reject"}`)
	for text, want := range map[string]Verdict{"fd00::/64": Reject, "fd00::40/122": Reject, "fd00::/48": NoMatch, "fd00::1/128": NoMatch,
		"fe00::/64": NoMatch, "::/0": NoMatch} {
		if got := rules.Apply(Route{Prefix: p(text), Attributes: &wire.Attributes{}}); got.Verdict != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// The first rule that matches decides, filters come in their order, and the reason of a rejection names the rule.
func TestOrder(t *testing.T) {
	first := rulesOf(t, wire.IPv4, `{"cidr":"10.1.0.0/16","matchOperator":"In","action":"Accept"}`,
		`{"cidr":"10.0.0.0/8","matchOperator":"In","action":"Reject"}`)
	second := rulesOf(t, wire.IPv4, `{"cidr":"10.0.0.0/8","matchOperator":"In","action":"Accept"}`, `{"action":"Reject"}`)
	for _, c := range []struct {
		rules  *Rules
		prefix string
		want   Verdict
		reason string
	}{
		{nil, "10.1.1.0/24", NoMatch, ""},
		{Join(), "10.1.1.0/24", NoMatch, ""},
		{Join(nil, nil), "10.1.1.0/24", NoMatch, ""},
		{first, "10.1.1.0/24", Accept, ""},
		{first, "10.2.1.0/24", Reject, "filter f rule 2"},
		{first, "11.0.0.0/8", NoMatch, ""},
		{Join(first, nil, second), "10.2.1.0/24", Reject, "filter f rule 2"},
		{Join(second, first), "10.2.1.0/24", Accept, ""},
		{Join(first, second), "11.0.0.0/8", Reject, "filter f rule 2"},
	} {
		got := c.rules.Apply(Route{Prefix: p(c.prefix), Attributes: &wire.Attributes{}})
		if got.Verdict != c.want || got.Reason != c.reason || got.Change.Withdraw != (c.want == Reject) {
			t.Errorf("%s: %+v", c.prefix, got)
		}
	}
	if Join() != nil || Join(first, second).Len() != 4 || (*Rules)(nil).Len() != 0 {
		t.Error("rules are joined wrong")
	}
}

// Operations are done in their order.
func TestOperations(t *testing.T) {
	rules := rulesOf(t, wire.IPv4, `{"action":"Accept","operations":[
		{"prependASPath":{"prefix":[1,2]}}, {"addCommunity":{"value":"64512:100"}}, {"setPriority":{"value":100}},
			{"prependASPath":{"prefix":[3]}},
		{"addCommunity":{"value":"64512:100"}}, {"addCommunity":{"value":"1:2:3"}}, {"setPriority":{"value":512}}]}`)
	want := wire.Change{
		SetLocalPref: true, LocalPref: 2147483647 - 512, Prepend: []uint32{3, 1, 2},
		Add: []Community{{A: 64512, B: 100}, {Large: true, A: 1, B: 2, C: 3}},
	}
	if got := rules.Apply(Route{Prefix: p("10.1.0.0/16"), Attributes: &wire.Attributes{}}); got.Verdict != Accept || !got.Change.Equal(want) {
		t.Errorf("%+v", got)
	}
}

// A fault is named with its field, its value and a remedy, and no rule of the list is used.
func TestCompileErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"action":"Accept","cidr":"10.0.0.0/33","matchOperator":"In"}`: `cidr "10.0.0.0/33" 10.0.0.0/8`,
		`{"action":"Accept","cidr":"10.0.0.0","matchOperator":"In"}`:    `cidr "10.0.0.0"`,
		`{"action":"Accept","cidr":"fd00::/8","matchOperator":"In"}`:    `cidr "fd00::/8" 10.0.0.0/8`,
		`{"action":"Accept","cidr":"::ffff:10.0.0.0/104",` +
			`"matchOperator":"In"}`: `cidr "::ffff:10.0.0.0/104" 10.0.0.0/8`,
		`{"action":"Accept","cidr":"10.0.0.1/8","matchOperator":"In"}`: `cidr "10.0.0.1/8" 10.0.0.0/8`,
		`{"action":"Accept","cidr":"10.0.0.0/8"}`:                      `matchOperator`,
		`{"action":"Accept","cidr":"10.0.0.0/8",` +
			`"matchOperator":"in"}`: `matchOperator "in" Equal NotEqual In NotIn`,
		`{"action":"Accept","matchOperator":"In"}`:                                                        `matchOperator "In" cidr`,
		`{"action":"Accept","prefixLength":{"min":8}}`:                                                    `prefixLength cidr`,
		`{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":33}}`:          `prefixLength.min 33 0 32`,
		`{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"max":-1}}`:          `prefixLength.max -1 0 32`,
		`{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"max":7}}`:           `prefixLength.max 7 10.0.0.0/8 8`,
		`{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":20,"max":16}}`: `prefixLength.max 16 10.0.0.0/8 20`,
		`{"action":"Accept","source":"Local"}`:                                                            `source "Local" RemotePeers`,
		`{"action":"Accept","peerType":"ebgp"}`:                                                           `peerType "ebgp" eBGP iBGP`,
		`{"action":"Accept","interface":"eth0 up"}`:                                                       `"eth0 up" 15`,
		`{"action":"Accept","interface":"sixteen-letters."}`:                                              `interface "sixteen-letters."`,
		`{"action":"Accept","communities":{"values":[]}}`:                                                 `communities.values 0`,
		`{"action":"Accept","communities":{"values":["1:1","2:2"]}}`:                                      `communities.values 2`,
		`{"action":"Accept","communities":{"values":["internet"]}}`:                                       `communities.values "internet"`,
		`{"action":"Accept","asPathPrefix":[64512,0]}`:                                                    `asPathPrefix [64512 0]`,
		`{"action":"Accept","priority":0}`:                                                                `priority 0 1 2147483646 1024`,
		`{"action":"Accept","priority":2147483647}`:                                                       `priority 2147483647`,
		`{"action":"accept"}`: `action "accept" Accept Reject`,
		`{"action":""}`:       `action "" Accept Reject`,
		`{"action":"Reject",` +
			`"operations":[{"setPriority":{"value":1}}]}`: `operations Accept`,
		`{"action":"Accept",` +
			`"operations":[{"setPriority":{"value":1}},{}]}`: `operations[1] 0 addCommunity prependASPath setPriority`,
		`{"action":"Accept","operations":[{"setPriority":{"value":1},` +
			`"addCommunity":{"value":"1:1"}}]}`: `operations[0] 2`,
		`{"action":"Accept",` +
			`"operations":[{"setPriority":{"value":0}}]}`: `operations[0].setPriority.value 0`,
		`{"action":"Accept",` +
			`"operations":[{"addCommunity":{"value":"1:65536"}}]}`: `operations[0].addCommunity.value ` +
			`"1:65536" "65536" 0 65535`,
		`{"action":"Accept",` +
			`"operations":[{"prependASPath":{"prefix":[]}}]}`: `operations[0].prependASPath.prefix 0 1 10`,
		`{"action":"Accept","operations":[{"prependASPath":{"prefix":[1,2,3,4,5,6,7,8,` +
			`9,10,11]}}]}`: `operations[0].prependASPath.prefix 11`,
		`{"action":"Accept",` +
			`"operations":[{"prependASPath":{"prefix":[0]}}]}`: `operations[0].prependASPath.prefix [0]`,
		`{"action":"Accept","operations":[` + strings.Repeat(`{"setPriority":{"value":1}},`, 10) +
			`{"setPriority":{"value":1}}]}`: `operations 11 10`,
	} {
		spec := api.BGPFilterSpec{ImportV4: []api.BGPFilterRule{ruleOf(t, `{"action":"Accept"}`), ruleOf(t, text)}}
		rules, errs := Compile("f", &spec, Import, wire.IPv4)
		if rules != nil || len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "spec.importV4[1].") ||
			!errtest.Has(strings.TrimPrefix(errs[0].Error(), "spec.importV4[1]."), want) {
			t.Errorf("%s: %v, want %q", text, errs, want)
		}
	}
	spec := api.BGPFilterSpec{ExportV6: []api.BGPFilterRule{{}, ruleOf(t, `{"action":"Accept"}`), {Action: "Deny"}}}
	if _, errs := Compile("f", &spec, Export, wire.IPv6); len(errs) != 2 ||
		!strings.HasPrefix(errs[1].Error(), `spec.exportV6[2].action "Deny"`) {
		t.Errorf("%v", errs)
	}
}

// Each list is for one direction and family.
func TestLists(t *testing.T) {
	lists := map[string]api.BGPFilterSpec{}
	reject := []api.BGPFilterRule{{Action: api.FilterReject}}
	lists["import IPv4"] = api.BGPFilterSpec{ImportV4: reject}
	lists["export IPv4"] = api.BGPFilterSpec{ExportV4: reject}
	lists["import IPv6"] = api.BGPFilterSpec{ImportV6: reject}
	lists["export IPv6"] = api.BGPFilterSpec{ExportV6: reject}
	for name, spec := range lists {
		for _, family := range []wire.Family{wire.IPv4, wire.IPv6} {
			for d, word := range map[Direction]string{Import: "import", Export: "export"} {
				rules, errs := Compile("f", &spec, d, family)
				if len(errs) > 0 || (rules.Len() == 1) != (name == fmt.Sprint(word, " ", family)) {
					t.Errorf("%s: %d rules for %s of %s, %v", name, rules.Len(), word, family, errs)
				}
			}
		}
	}
}

// Equal detects any difference.
func TestEqual(t *testing.T) {
	texts := []string{
		`{"action":"Accept"}`, `{"action":"Reject"}`,
		`{"cidr":"10.0.0.0/8","matchOperator":"In","action":"Accept"}`, `{"cidr":"10.0.0.0/8","matchOperator":"NotIn","action":"Accept"}`,
		`{"cidr":"10.0.0.0/8","matchOperator":"Equal","action":"Accept"}`, `{"cidr":"10.0.0.0/9","matchOperator":"In","action":"Accept"}`,
		`{"cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":9},"action":"Accept"}`,
		`{"cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"max":9},"action":"Accept"}`, `{"source":"RemotePeers","action":"Accept"}`,
		`{"interface":"a","action":"Accept"}`, `{"peerType":"eBGP","action":"Accept"}`, `{"peerType":"iBGP","action":"Accept"}`,
		`{"communities":{"values":["0:0"]},"action":"Accept"}`, `{"communities":{"values":["0:1"]},"action":"Accept"}`,
		`{"asPathPrefix":[1],"action":"Accept"}`, `{"asPathPrefix":[2],"action":"Accept"}`, `{"priority":1,"action":"Accept"}`,
		`{"action":"Accept","operations":[{"setPriority":{"value":1}}]}`, `{"action":"Accept","operations":[{"addCommunity":{"value":"1:1"}}]}`,
		`{"action":"Accept","operations":[{"prependASPath":{"prefix":[1]}}]}`,
		`{"action":"Accept","operations":[{"prependASPath":{"prefix":[2]}}]}`,
	}
	for i, text := range texts {
		for k, other := range texts {
			if got := rulesOf(t, wire.IPv4, text).Equal(rulesOf(t, wire.IPv4, other)); got != (i == k) {
				t.Errorf("%s and %s: %t", text, other, got)
			}
		}
		one := rulesOf(t, wire.IPv4, text)
		if two := Join(one, one); two.Equal(one) || one.Equal(nil) || (*Rules)(nil).Equal(one) {
			t.Errorf("%s is like two, or like nothing", text)
		}
		if one.NeedsInterface() != strings.Contains(text, "interface") {
			t.Errorf("%s needs an interface: %t", text, one.NeedsInterface())
		}
	}
	if !(*Rules)(nil).Equal(nil) || (*Rules)(nil).NeedsInterface() {
		t.Error("no rules are not like no rules")
	}
	renamed, _ := Compile("g", &api.BGPFilterSpec{ExportV4: []api.BGPFilterRule{{Action: api.FilterReject}}}, Export, wire.IPv4)
	if renamed.Equal(rulesOf(t, wire.IPv4, `{"action":"Reject"}`)) {
		t.Error("a filter under another name gives the same reason")
	}
}

func TestAccepts(t *testing.T) {
	in := `{"cidr":"10.0.0.0/8","matchOperator":"In","action":"Accept"}`
	for _, c := range []struct {
		rules []string
		want  string
	}{
		{nil, "[]"},
		{[]string{`{"action":"Reject"}`}, "[]"},
		{[]string{in, in, `{"cidr":"10.9.0.0/16","matchOperator":"Equal","action":"Accept"}`}, "[10.0.0.0/8 10.9.0.0/16]"},
		{[]string{`{"cidr":"10.9.0.0/16","matchOperator":"NotIn","action":"Accept"}`}, "[0.0.0.0/0]"},
		{[]string{`{"peerType":"eBGP","action":"Accept"}`}, "[0.0.0.0/0]"},
	} {
		if got := fmt.Sprint(rulesOf(t, wire.IPv4, c.rules...).Accepts(wire.IPv4)); got != c.want {
			t.Errorf("%s accept inside of %s, want %s", c.rules, got, c.want)
		}
	}
	if got := fmt.Sprint(rulesOf(t, wire.IPv6, `{"action":"Accept"}`).Accepts(wire.IPv6)); got != "[::/0]" {
		t.Error(got)
	}
}

func TestMatchName(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"eth0", "eth0", true}, {"eth0", "eth", false}, {"eth0", "eth00", false}, {"*", "eth0", true}, {"*", "", true}, {"eth*", "eth", true},
		{"eth*", "eth0.100", true},
		{"eth*", "veth0", false}, {"*.cali", "vxlan.cali", true}, {"*.cali", "vxlan.calico", false}, {"*a*b", "aab", true},
		{"*a*b", "aba", false}, {"a*a", "a", false}, {"a*a", "aa", true},
		{"*ab*ab", "abab", true}, {"*aab", "aaab", true}, {"**", "x", true}, {"eth0", "", false}, {"a**", "ab", true},
	} {
		if got := matchName(c.pattern, c.name); got != c.want {
			t.Errorf("%s like %q: %t", c.name, c.pattern, got)
		}
	}
}

// FuzzCompile: any object gives rules or errors, and rules decide on any route without a panic, each time alike.
func FuzzCompile(f *testing.F) {
	f.Add(`[{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":9,"max":20},`+
		`"operations":[{"prependASPath":{"prefix":[1]}}]}]`, "10.1.0.0/16", "eth0")
	f.Add(`[{"action":"Reject","cidr":"fd00::/8","matchOperator":"NotIn","communities":{"values":["1:2"]},"asPathPrefix":[1],`+
		`"interface":"*a*"},{"action":"Accept"}]`, "fd00::/64", "aXa")
	f.Fuzz(func(t *testing.T, text, prefix, link string) {
		var list []api.BGPFilterRule
		to, err := netip.ParsePrefix(prefix)
		if json.Unmarshal([]byte(text), &list) != nil || err != nil {
			return
		}
		for _, family := range []wire.Family{wire.IPv4, wire.IPv6} {
			rules, errs := Compile("f", &api.BGPFilterSpec{ImportV4: list, ImportV6: list}, Import, family)
			if len(errs) > 0 {
				if rules != nil {
					t.Fatalf("rules and errors: %v", errs)
				}
				continue
			}
			again, _ := Compile("f", &api.BGPFilterSpec{ImportV4: list, ImportV6: list}, Import, family)
			if rules.Len() != len(list) || !rules.Equal(again) || !again.Equal(rules) {
				t.Fatalf("%d rules of %d, or not alike", rules.Len(), len(list))
			}
			route := Route{Prefix: to.Masked(), Attributes: &wire.Attributes{}, Interface: link, Priority: NormalPriority}
			if one, two := rules.Apply(route), again.Apply(route); !one.equal(two) {
				t.Fatalf("%+v, then %+v", one, two)
			}
		}
	})
}
