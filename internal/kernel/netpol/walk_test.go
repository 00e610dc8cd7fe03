package netpol_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// walked are the policies of policy's doc.go, by kind.
const (
	walkedTier = `
kind: Tier
metadata: {name: security}
spec: {order: 100}
`
	walkedGlobal = `
kind: GlobalNetworkPolicy
metadata: {name: security.no-guests}
spec:
  tier: security
  selector: app == 'web'
  types: [Ingress]
  ingress:
  - {action: Deny, source: {nets: [10.9.0.0/24]}}
  - {action: Pass}
`
	walkedPolicy = `
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: client}}}]
    ports: [{port: http}]
`
)

// TestWalk: the worked example of policy's doc.go is what happens.
func TestWalk(t *testing.T) {
	var tier api.CalicoTier
	var global api.CalicoGlobalNetworkPolicy
	var own api.NetworkPolicy
	errtest.Must(t, yaml.Unmarshal([]byte(walkedTier), &tier))
	errtest.Must(t, yaml.Unmarshal([]byte(walkedGlobal), &global))
	errtest.Must(t, yaml.Unmarshal([]byte(walkedPolicy), &own))
	tiers, problems := policy.FromCalicoTiers([]*api.CalicoTier{&tier})
	first, err := policy.FromCalicoGlobalNetworkPolicy(&global, tiers)
	errtest.Must(t, err)
	second := policy.FromNetworkPolicy(&own)
	if len(problems)+len(first.Problems)+len(second.Problems) > 0 {
		t.Fatal(problems, first.Problems, second.Problems)
	}
	pod := func(name, address string, labels map[string]string, ports ...policy.NamedPort) *policy.Pod {
		return &policy.Pod{PodKey: policy.PodKey{Namespace: "shop", Name: name}, UID: "uid-" + name, Labels: labels,
			Addresses: []netip.Addr{addr(address)}, Ports: ports}
	}
	state := policy.State{
		Local: map[string]policy.PodKey{"cali1": {Namespace: "shop", Name: "web"}}, Pods: map[policy.PodKey]*policy.Pod{},
		Namespaces: map[string]map[string]string{"shop": {}}, Policies: []policy.Policy{first, second},
	}
	for _, p := range []*policy.Pod{
		pod("web", "10.65.0.1", map[string]string{"app": "web"}, policy.NamedPort{Name: "http", Protocol: policy.TCP, Port: 8080}),
		pod("client", "10.65.1.1", map[string]string{"role": "client"}),
	} {
		state.Pods[p.PodKey] = p
	}
	rules := policy.Compile(state)
	ns := netnstest.New(t)
	e := netpol.New(ns.Namespace, "cali")
	t.Cleanup(e.Close)
	mustSync(t, e, &rules.Ruleset)

	doc, err := os.ReadFile("../../policy/doc.go")
	errtest.Must(t, err)
	happens := strings.Join([]string{walkedTier, walkedGlobal, walkedPolicy, rulesetText(&rules.Ruleset), list(t, ns)}, "\n")
	rest, shown := strings.Split(happens, "\n"), 0
	for line := range strings.Lines(string(doc)) {
		text, quoted := strings.CutPrefix(line, "//\t")
		if text = strings.TrimSpace(text); !quoted || text == "..." {
			continue
		}
		i := slices.IndexFunc(rest, func(l string) bool { return strings.TrimSpace(l) == text })
		if shown++; i < 0 {
			t.Errorf("doc.go shows %q, which does not come there", text)
			continue
		}
		rest = rest[i+1:]
	}
	if shown < 30 || t.Failed() {
		t.Errorf("doc.go shows %d lines of\n%s", shown, happens)
	}
}

// rulesetText writes the programs and members of a Ruleset with one port, as doc.go does.
func rulesetText(rs *policy.Ruleset) string {
	var b strings.Builder
	verdict := func(v policy.Verdict) string {
		if v.Allow {
			return "allow"
		}
		return "deny by " + v.By.String()
	}
	list := func(of string, l policy.List) {
		fmt.Fprintf(&b, "  %s\n", of)
		for _, s := range l.Steps {
			peers := fmt.Sprintf("set %#x", s.Set)
			if s.Set == 0 {
				peers = fmt.Sprintf("%s-%s", rs.Nets[s.Nets][0].First, rs.Nets[s.Nets][0].Last)
			}
			fmt.Fprintf(&b, "    %s: %s\n", peers, verdict(s.Verdict))
		}
		fmt.Fprintf(&b, "    else: %s\n", verdict(l.Else))
	}
	for link, endpoint := range rs.Endpoints {
		fmt.Fprintf(&b, "program of ingress behind %s\n", link)
		p := rs.Programs[endpoint.Programs[policy.Ingress]]
		for _, r := range p.Ports[policy.TCP] {
			list(fmt.Sprintf("TCP %d", r.First), r.List)
		}
		list("rest", p.Rest)
	}
	for a, sets := range rs.Members {
		fmt.Fprintf(&b, "members: %s is in set %#x\n", a, sets[0])
	}
	return b.String()
}
