package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// said formats a rule: its action and each condition that it has.
func said(r Rule) string {
	words := []string{[]string{Allow: "allow", Deny: "deny", Pass: "pass", Log: "log"}[r.Action]}
	if r.Family != 0 {
		words = append(words, fmt.Sprintf("v%d", r.Family))
	}
	add := func(name string, ports []Port, any bool) {
		if !any {
			words = append(words, name, saidPorts(ports))
		}
	}
	add("to", r.Ports, r.AnyPort)
	add("not-to", r.Except, r.Except == nil)
	add("of", r.Sources, r.Sources == nil)
	add("not-of", r.ExceptSources, r.ExceptSources == nil)
	for _, p := range r.Peers {
		if p.Service != nil {
			words = append(words, "service "+p.Service.Namespace+"/"+p.Service.Name)
		} else {
			words = append(words, "peer", saidMatch(p.Match))
		}
	}
	if !r.AnyPeer && len(r.Peers) == 0 {
		return words[0] + " nothing"
	}
	if r.Own != nil {
		words = append(words, "own", saidMatch(r.Own))
	}
	return strings.Join(words, " ")
}

func saidPorts(ports []Port) string {
	var all []string
	for _, p := range ports {
		switch {
		case p.Name != "":
			all = append(all, fmt.Sprintf("%d:%s", p.Protocol, p.Name))
		case p.First == 0 && p.Last == lastPort:
			all = append(all, fmt.Sprint(p.Protocol))
		default:
			all = append(all, fmt.Sprintf("%d:%d-%d", p.Protocol, p.First, p.Last))
		}
	}
	return strings.Join(all, ",")
}

func saidMatch(m *Match) string {
	var words []string
	for name, nets := range map[string]any{"nets": m.Nets, "notnets": m.NotNets} {
		if text := fmt.Sprint(nets); text != "[]" {
			words = append(words, name+text)
		}
	}
	if len(words) == 2 && words[0] > words[1] {
		words[0], words[1] = words[1], words[0]
	}
	if m.Not {
		words = append(words, "not")
	}
	if m.Select != nil {
		words = append(words, saidPods(m.Select))
	}
	return "(" + strings.Join(words, " ") + ")"
}

func saidPods(p *Pods) string {
	var words []string
	word := func(name, value string) {
		if value != "" {
			words = append(words, strings.TrimSpace(name+" "+value))
		}
	}
	word("in", p.Namespace)
	word("of", p.Namespaces.String())
	word("with", p.Labels.String())
	word("accounts", strings.Join(p.Accounts, ","))
	word("accounts with", p.AccountLabels.String())
	word("", map[Scope]string{Global: "global"}[p.Scope])
	if p.ByAccount {
		words = append(words, "by account")
	}
	if !p.Calico {
		words = append(words, "NOT CALICO")
	}
	return strings.TrimSpace(strings.Join(words, "; "))
}

// ruleTable has rules of ingress, or of egress, in a NetworkPolicy of namespace x or in a GlobalNetworkPolicy; the rule
// that results; and parts of its one problem: field, value, remedy.
var ruleTable = []struct{ where, rule, want, problem string }{
	{"in", `{"action":"Allow"}`, "allow", ""},
	{"in", `{"action":"dENY"}`, "deny", ""},
	{"in", `{"action":"Log"}`, "log", ""},
	{"in", `{"action":"Pass"}`, "pass", ""},
	{"in", `{"action":"Accept","protocol":"UDP"}`, "deny to 17", `spec.ingress[0].action "Accept" Allow Deny Log Pass`},
	{"in", `{}`, "deny", `spec.ingress[0].action "" Allow`},
	{"in", `{"action":"Allow","metadata":{"annotations":{"a":"b"}}}`, "allow", ""},

	{"in", `{"action":"Allow","ipVersion":4}`, "allow v4", ""},
	{"in", `{"action":"Allow","ipVersion":6}`, "allow v6", ""},
	{"in", `{"action":"Allow","ipVersion":5}`, "allow nothing", `spec.ingress[0].ipVersion "5" 4 6`},
	{"in", `{"action":"Deny","ipVersion":5,"protocol":6}`, "deny to 6", `spec.ingress[0].ipVersion "5" 4 6`},

	{"in", `{"action":"Allow","protocol":"TCP"}`, "allow to 6", ""},
	{"in", `{"action":"Allow","protocol":"sctp"}`, "allow to 132", ""},
	{"in", `{"action":"Allow","protocol":"UDPLite"}`, "allow to 136", ""},
	{"in", `{"action":"Allow","protocol":47}`, "allow to 47", ""},
	{"in", `{"action":"Allow","protocol":"TPC"}`, "allow nothing", `spec.ingress[0].protocol "TPC" TCP UDPLite 255`},
	{"in", `{"action":"Log","protocol":0}`, "log nothing", `spec.ingress[0].protocol "0" 1`},
	{"in", `{"action":"Pass","protocol":256,"ipVersion":4}`, "deny v4", `spec.ingress[0].protocol "256"`},
	{"in", `{"action":"Allow","notProtocol":"ICMP"}`, "allow not-to 1", ""},
	{"in", `{"action":"Allow","protocol":"TCP","notProtocol":6}`, "allow to 6 not-to 6", ""},
	{"in", `{"action":"Allow","notProtocol":"x"}`, "allow nothing", `spec.ingress[0].notProtocol "x"`},

	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{"type":8}}`, "allow to 1:2048-2303", ""},
	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{"type":3,"code":4}}`, "allow to 1:772-772", ""},
	{"in", `{"action":"Allow","protocol":58,"icmp":{"type":0,"code":0}}`, "allow to 58:0-0", ""},
	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{}}`, "allow to 1", ""},
	{"in", `{"action":"Allow","protocol":"ICMPv6","notICMP":{"type":128}}`, "allow to 58 not-to 58:32768-33023", ""},
	{"in", `{"action":"Allow","protocol":"ICMP","notICMP":{}}`, "allow to 1", ""},
	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{"type":8},"notICMP":{"type":8,"code":1}}`,
		"allow to 1:2048-2303 not-to 1:2049-2049", ""},
	{"in", `{"action":"Allow","icmp":{"type":8}}`, "allow nothing", `spec.ingress[0].icmp protocol ICMP ICMPv6`},
	{"in", `{"action":"Deny","protocol":"TCP","notICMP":{"type":8}}`, "deny to 6", `spec.ingress[0].notICMP protocol ICMP ICMPv6`},
	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{"code":1}}`, "allow nothing", `spec.ingress[0].icmp.code "1" type`},
	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{"type":255}}`, "allow nothing", `spec.ingress[0].icmp.type "255" 254`},
	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{"type":-1}}`, "allow nothing", `spec.ingress[0].icmp.type "-1" 254`},
	{"in", `{"action":"Allow","protocol":"ICMP","icmp":{"type":3,"code":256}}`, "allow nothing", `spec.ingress[0].icmp.code "256" 255`},

	{"in", `{"action":"Allow","protocol":"TCP","destination":{"ports":[80,"90:95","http",0,"65535"]}}`,
		"allow to 6:80-80,6:90-95,6:http,6:0-0,6:65535-65535", ""},
	{"in", `{"action":"Allow","protocol":"UDP","destination":{"notPorts":[53,"x-1"]}}`, "allow to 17 not-to 17:53-53,17:x-1", ""},
	{"out", `{"action":"Allow","protocol":"TCP","source":{"ports":["1024:65535"],"notPorts":[2000]}}`,
		"allow to 6 of 6:1024-65535 not-of 6:2000-2000", ""},
	{"in", `{"action":"Allow","destination":{"ports":["http"]}}`, "allow to 6:http", ""},
	{"in", `{"action":"Allow","source":{"ports":["http"]}}`, "allow of 6:http", ""},
	{"in", `{"action":"Allow","destination":{"ports":[80,"http"]}}`, "allow to 6:http",
		`spec.ingress[0].destination.ports[0] "80" protocol TCP UDP SCTP`},
	{"in", `{"action":"Deny","destination":{"ports":[80]}}`, "deny nothing",
		`spec.ingress[0].destination.ports[0] "80" protocol TCP UDP SCTP`},
	{"in", `{"action":"Allow","destination":{"notPorts":[80]}}`, "allow nothing", `spec.ingress[0].destination.notPorts[0] "80" protocol`},
	{"in", `{"action":"Deny","protocol":"ICMP","destination":{"notPorts":["http"]}}`, "deny to 1",
		`spec.ingress[0].destination.notPorts[0] "http" protocol TCP UDP SCTP`},
	{"in", `{"action":"Allow","protocol":"TCP","destination":{"ports":["90:80",80]}}`, "allow to 6:80-80",
		`spec.ingress[0].destination.ports[0] "90:80" 65535`},
	{"in", `{"action":"Allow","protocol":"TCP","destination":{"ports":[65536]}}`, "allow nothing",
		`spec.ingress[0].destination.ports[0] "65536" 65535`},
	{"in", `{"action":"Allow","protocol":"TCP","destination":{"ports":[""]}}`, "allow nothing",
		`spec.ingress[0].destination.ports[0] "" 65535`},
	{"in", `{"action":"Deny","protocol":"TCP","source":{"notPorts":["a b",80]}}`, "deny to 6 not-of 6:80-80",
		`spec.ingress[0].source.notPorts[0] "a b"`},

	{"in", `{"action":"Allow","source":{"nets":["10.1.2.3/8","192.0.2.1","::ffff:192.0.2.2"]}}`,
		"allow peer (nets[10.0.0.0/8 192.0.2.1/32 192.0.2.2/32])", ""},
	{"in", `{"action":"Allow","source":{"notNets":["fd00::/8"]}}`, "allow v6 peer (notnets[fd00::/8])", ""},
	{"out", `{"action":"Deny","destination":{"notNets":["10.0.0.0/8","192.0.2.1"]}}`, "deny v4 peer (notnets[10.0.0.0/8 192.0.2.1/32])", ""},
	{"in", `{"action":"Allow","source":{"notNets":["fd00::/8","10.0.0.0/8"]}}`, "allow peer (notnets[fd00::/8 10.0.0.0/8])", ""},
	{"in", `{"action":"Allow","ipVersion":4,"source":{"notNets":["fd00::/8"]}}`, "allow nothing", ""},
	{"in", `{"action":"Deny","source":{"notNets":["fd00::/8"]},"destination":{"notNets":["10.0.0.0/8"]}}`, "deny nothing", ""},
	{"out", `{"action":"Allow","source":{"nets":["10.0.0.0/8"]},"destination":{"nets":["::/0"],"notNets":["fd00::/8"]}}`,
		"allow v6 peer (nets[::/0] notnets[fd00::/8]) own (nets[10.0.0.0/8])", ""},
	{"in", `{"action":"Allow","source":{"nets":["x","10.0.0.0/8"]}}`, "allow peer (nets[10.0.0.0/8])",
		`spec.ingress[0].source.nets[0] "x" 10.0.0.0/8`},
	{"in", `{"action":"Allow","source":{"nets":["010.0.0.0/8","2001:0db8::/32"]}}`, "allow peer (nets[2001:db8::/32])",
		`spec.ingress[0].source.nets[0] "010.0.0.0/8"`},
	{"in", `{"action":"Deny","source":{"nets":["10.0.0.0/33"]}}`, "deny nothing", `spec.ingress[0].source.nets[0] "10.0.0.0/33"`},
	{"in", `{"action":"Allow","source":{"notNets":["fe80::1%eth0"]}}`, "allow nothing", `spec.ingress[0].source.notNets[0] "fe80::1%eth0"`},
	{"in", `{"action":"Deny","source":{"notNets":["x","10.0.0.0/8"]}}`, "deny peer (notnets[10.0.0.0/8])",
		`spec.ingress[0].source.notNets[0] "x"`},

	{"in", `{"action":"Allow","source":{"selector":"a == 'b'"}}`, "allow peer (in x; with a == 'b')", ""},
	{"global in", `{"action":"Allow","source":{"selector":"a == 'b'"}}`, "allow peer (with a == 'b')", ""},
	{"in", `{"action":"Allow","source":{"notSelector":"has(a)"}}`, "allow peer (in x; with (all()) && !(has(a)))", ""},
	{"global in", `{"action":"Allow","source":{"notSelector":"has(a)"}}`, "allow peer (not with has(a))", ""},
	{"global in", `{"action":"Allow","source":{"selector":"has(b)","notSelector":"has(a) || has(c)"}}`,
		"allow peer (with (has(b)) && !(has(a) || has(c)))", ""},
	{"global out", `{"action":"Allow","destination":{"nets":["10.0.0.0/8"],"notSelector":"has(a)"}}`,
		"allow peer (nets[10.0.0.0/8] not with has(a))", ""},
	{"in", `{"action":"Allow","source":{"namespaceSelector":"has(n)"}}`, "allow peer (of has(n))", ""},
	{"in", `{"action":"Allow","source":{"namespaceSelector":"all()","selector":"has(a)"}}`, "allow peer (of all(); with has(a))", ""},
	{"in", `{"action":"Allow","source":{"namespaceSelector":"n != 'a'"}}`, "allow peer (of n != 'a')", ""},
	{"in", `{"action":"Allow","source":{"namespaceSelector":"all() && n != 'a'"}}`, "allow peer (of all() && n != 'a')", ""},
	{"in", `{"action":"Allow","source":{"namespaceSelector":" "}}`, "allow peer (of all())", ""},
	{"in", `{"action":"Allow","source":{"namespaceSelector":" global( ) ","selector":"has(a)"}}`, "allow peer (with has(a); global)", ""},
	{"in", `{"action":"Allow","source":{"namespaceSelector":"global() || has(n)"}}`, "allow peer (of global() || has(n))", ""},
	{"global in", `{"action":"Allow","source":{"namespaceSelector":"has(n)","notSelector":"has(a)"}}`,
		"allow peer (of has(n); with (all()) && !(has(a)))", ""},
	{"in", `{"action":"Allow","source":{"serviceAccounts":{"names":["a","b"]}}}`, "allow peer (in x; accounts a,b)", ""},
	{"global in", `{"action":"Allow","source":{"serviceAccounts":{"selector":"has(s)"}}}`, "allow peer (accounts with has(s))", ""},
	{"global in", `{"action":"Allow","source":{"serviceAccounts":{}}}`, "allow", ""},
	{"in", `{"action":"Deny","source":{"serviceAccounts":{"names":[],"selector":"has(s)"}}}`, "deny peer (in x; accounts with has(s))", ""},
	{"in", `{"action":"Deny","source":{"serviceAccounts":{"names":[]}}}`, "deny", ""},
	{"in", `{"action":"Allow","source":{"serviceAccounts":{"names":["a-1.b"]}}}`, "allow peer (in x; accounts a-1.b)", ""},
	{"in", `{"action":"Allow","source":{"serviceAccounts":{"names":["a","a,b"]}}}`, "allow nothing",
		`spec.ingress[0].source.serviceAccounts.names[1] "a,b" correct`},
	{"in", `{"action":"Deny","source":{"serviceAccounts":{"names":["A"],"selector":"has(s)"}}}`, "deny peer (in x; accounts with has(s))",
		`spec.ingress[0].source.serviceAccounts.names[0] "A" lower-case`},
	{"global in", `{"action":"Deny","source":{"serviceAccounts":{"names":["a."]}}}`, "deny peer ()",
		`spec.ingress[0].source.serviceAccounts.names[0] "a." dots`},
	{"in", `{"action":"Allow","destination":{"selector":"has(a)"}}`, "allow own (in x; with has(a))", ""},
	{"in", `{"action":"Allow","source":{"selector":"global()"}}`, "allow peer (in x; with global())",
		`spec.ingress[0].source.selector "global()" namespaceSelector`},

	{"out", `{"action":"Allow","destination":{"services":{"name":"web"}}}`, "allow service x/web", ""},
	{"out", `{"action":"Allow","protocol":"TCP","destination":{"services":{"name":"web","namespace":"y"}}}`, "allow to 6 service y/web", ""},
	{"global in", `{"action":"Allow","protocol":"TCP","source":{"services":{"name":"web","namespace":"y"},"ports":[1]}}`,
		"allow to 6 of 6:1-1 service y/web", ""},
	{"global out", `{"action":"Allow","destination":{"services":{"name":"web"}}}`, "allow nothing",
		`spec.egress[0].destination.services.namespace ""`},
	{"out", `{"action":"Allow","destination":{"services":{}}}`, "allow nothing", `spec.egress[0].destination.services.name ""`},
	{"out", `{"action":"Allow","destination":{"services":{"name":"web,dns"}}}`, "allow nothing",
		`spec.egress[0].destination.services.name "web,dns" correct`},
	{"out", `{"action":"Deny","destination":{"services":{"name":"Web"}}}`, "deny",
		`spec.egress[0].destination.services.name "Web" lower-case`},
	{"out", `{"action":"Allow","destination":{"services":{"name":"web","namespace":"-y"}}}`, "allow nothing",
		`spec.egress[0].destination.services.namespace "-y" correct`},
	{"in", `{"action":"Allow","destination":{"services":{"name":"web"}}}`, "allow nothing",
		`spec.ingress[0].destination.services "web" source`},
	{"out", `{"action":"Allow","source":{"services":{"name":"web"}}}`, "allow nothing", `spec.egress[0].source.services "web" destination`},
	{"out", `{"action":"Deny","destination":{"services":{"name":"web"},"selector":"has(a)"}}`, "deny peer (in x; with has(a))",
		`spec.egress[0].destination.services "web" selectors`},
	{"out", `{"action":"Allow","destination":{"services":{"name":"web"},"serviceAccounts":{}}}`, "allow nothing",
		`spec.egress[0].destination.services "web" selectors`},
	{"out", `{"action":"Allow","protocol":"TCP","destination":{"services":{"name":"web"},"ports":[80]}}`, "allow nothing",
		`spec.egress[0].destination.services "web" ports notPorts`},

	{"in", `{"action":"Allow","http":{"methods":["GET"]}}`, "allow nothing", `spec.ingress[0].http "GET" Allow`},
	{"in", `{"action":"Pass","protocol":"TCP","http":{"paths":[{"exact":"/"}]}}`, "deny to 6", `spec.ingress[0].http "/" leave`},
}

func TestCalicoRules(t *testing.T) {
	for _, c := range ruleTable {
		p, err := calicoPolicy(t, c.where, c.rule)
		errtest.Must(t, err)
		d := Ingress
		if strings.HasSuffix(c.where, "out") {
			d = Egress
		}
		if got := said(p.Rules[d][0]); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.where, c.rule, got, c.want)
		}
		text := strings.Join(p.Problems, "\n")
		if (c.problem == "") != (text == "") || len(p.Problems) > 1 || !errtest.Has(text, c.problem) {
			t.Errorf("%s %s: problems %q, want one with %q", c.where, c.rule, p.Problems, c.problem)
		}
	}
}

// calicoPolicy converts one with a single rule, of ingress or egress.
func calicoPolicy(t *testing.T, where, rule string) (Policy, error) {
	t.Helper()
	spec := api.CalicoPolicySpec{Types: []string{"Ingress"}, Ingress: make([]api.CalicoRule, 1)}
	into := spec.Ingress
	if strings.HasSuffix(where, "out") {
		spec = api.CalicoPolicySpec{Types: []string{"Egress"}, Egress: into}
	}
	if err := json.Unmarshal([]byte(rule), &into[0]); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(where, "global") {
		g := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "p"}}
		g.Spec.CalicoPolicySpec = spec
		return FromCalicoGlobalNetworkPolicy(g, nil)
	}
	n := &api.CalicoNetworkPolicy{Meta: api.Meta{Namespace: "x", Name: "p"}}
	n.Spec.CalicoPolicySpec = spec
	return FromCalicoNetworkPolicy(n, nil)
}

// To Calico a policy with a selector that cannot be read is absent, wherever in it that selector is.
func TestCalicoSelectors(t *testing.T) {
	for _, where := range []string{"in", "out", "global in", "global out"} {
		for _, end := range []string{"source", "destination"} {
			for _, field := range []string{"selector", "notSelector", "namespaceSelector", "serviceAccounts.selector"} {
				outer, inner, nested := strings.Cut(field, ".")
				rule := fmt.Sprintf(`{"action":"Allow",%q:{%q:"has (a)"}}`, end, field)
				if nested {
					rule = fmt.Sprintf(`{"action":"Allow",%q:{%q:{%q:"has (a)"}}}`, end, outer, inner)
				}
				direction := map[bool]string{true: "ingress", false: "egress"}[strings.HasSuffix(where, "in")]
				if p, err := calicoPolicy(t, where, rule); !errtest.Names(err,
					fmt.Sprintf(`spec.%s[0].%s.%s "has (a)" correct`, direction, end, field)) {
					t.Errorf("%s %s: %+v, %v", where, rule, p, err)
				}
			}
		}
	}
	deep := strings.Repeat("(", 99) + "has(a)" + strings.Repeat(")", 99)
	if _, err := calicoPolicy(t, "in", `{"action":"Allow","source":{"selector":"has(a)","notSelector":"`+deep+`"}}`); !errtest.Names(err,
		"spec.ingress[0].source.notSelector 100") {
		t.Errorf("brackets that are too deep only beside another selector: %v", err)
	}
}
