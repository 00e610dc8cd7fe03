package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// What calicoctl of Calico 3.28.5 has stored in an API server with this project's definitions, by which nothing was
// refused or lost, is read as it was meant. That release has neither tiers nor staged policies.
func TestCalicoctlsObjects(t *testing.T) {
	stored, err := os.ReadFile("testdata/calicoctl-3.28.jsonl")
	errtest.Must(t, err)
	got := map[string]string{}
	for line := range bytes.Lines(stored) {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		errtest.Must(t, json.Unmarshal(line, &o))
		got[o.Kind+" "+o.Metadata.Name] = meant(t, o.Kind, line)
	}
	policy := func(lines ...string) string { return strings.Join(lines, "\n") }
	difftest.Want(t, "objects of calicoctl", map[string]string{
		"NetworkPolicy default.web": policy(
			"default 100.5 (in default; with role == 'web' && !has(legacy); accounts with tier == 'front') forward false, before "+
				"DNAT false, untracked false", "ingress", "allow to 6:80-80,6:8000-8100,6:http-alt peer (of env in {'prod', 'stage'}; with role "+
				"== 'client'; accounts robot; accounts with team == 'shop')", "log v4 to 17 not-to 6 not-of 17:53-53 peer (notnets[10.0.0.0/8])",
			"pass to 47", "deny v4 to 1:2048-2048 peer (in default; with (all()) && !(role == 'friend'))",
			"allow service shop/front", "egress", "allow v6 to 58 not-to 58:32768-33023", "allow service kube-system/dns",
			"deny to 132 not-to 132:1-1023 peer (nets[192.0.2.0/24 198.51.100.7/32])"),
		"NetworkPolicy default.defaults": policy("default +Inf (in default) forward false, before DNAT false, untracked false",
			"ingress", "allow"),
		"NetworkPolicy default.outward": policy("default +Inf (in default; with all()) forward false, before DNAT false, untracked false",
			"egress", "allow to 17:53-53"),
		"NetworkPolicy default.layer7": policy("default +Inf (in default; with role == 'api') forward false, before DNAT false, untracked false",
			"ingress", "allow nothing",
			`spec.ingress[0].http "GET /public*": is not supported, so that Allow matches nothing: leave it out, or filter requests in the pod`),
		"GlobalNetworkPolicy default.forward": policy(
			"default 10 (of all(); with role == 'gateway') forward true, before DNAT false, untracked false",
			"ingress", "deny peer (with blocked == 'true'; global)", "egress", "allow v4 peer (notnets[10.96.0.0/12])"),
		"GlobalNetworkPolicy default.before-dnat": policy("default +Inf (with has(uplink)) forward true, before DNAT true, untracked false",
			"ingress", "deny to 6:30000-32767"),
		"GlobalNetworkPolicy default.untracked": policy("default +Inf (with has(uplink)) forward true, before DNAT false, untracked true",
			"ingress", "allow to 17:53-53", "egress", "allow to 17 of 17:53-53"),
		"NetworkSet partners": "{Namespace:default Name:partners Labels:map[kind:partner] Nets:[203.0.113.0/24 2001:db8::/32 " +
			"198.51.100.9/32] Private:[] Wide:0}",
		"GlobalNetworkSet blocked": "{Namespace: Name:blocked Labels:map[blocked:true] Nets:[192.0.2.0/24] Private:[] Wide:0}",
		"HostEndpoint node1-all": "{Name:node1-all Labels:map[scope:all] Addresses:[] Ports:[] Node:node1 Interface:* Allows:false " +
			"AllowsWith: Inherits:[]}",
		"HostEndpoint node1-uplink": "{Name:node1-uplink Labels:map[uplink:eth0] Addresses:[192.0.2.1 2001:db8::1] Ports:[{Name:ssh Protocol:6 " +
			"Port:22}] Node:node1 Interface:eth0 Allows:true AllowsWith: Inherits:[]}",
		"FelixConfiguration default": `{"floatingIPs":"Disabled","failsafeInboundHostPorts":[{"protocol":"tcp","port":22},{"protocol":"udp",` +
			`"port":68,"net":"192.0.2.0/24"}],` +
			`"failsafeOutboundHostPorts":[],"defaultEndpointToHostAction":"Accept","disableConntrackInvalidCheck":true}`,
	}, got)
}

// meant returns a stored object as text, as this package reads it.
func meant(t *testing.T, kind string, data []byte) string {
	t.Helper()
	switch kind {
	case "NetworkPolicy":
		return meantPolicy(t, data, FromCalicoNetworkPolicy)
	case "GlobalNetworkPolicy":
		return meantPolicy(t, data, FromCalicoGlobalNetworkPolicy)
	case "NetworkSet":
		return meantAs(t, data, FromCalicoNetworkSet)
	case "GlobalNetworkSet":
		return meantAs(t, data, FromCalicoGlobalNetworkSet)
	case "HostEndpoint":
		return meantAs(t, data, FromCalicoHostEndpoint)
	}
	o := new(api.FelixConfiguration)
	decode(t, string(data), o)
	text, err := json.Marshal(o.Spec)
	errtest.Must(t, err)
	return string(text)
}

func meantAs[T, V any](t *testing.T, data []byte, read func(*T) (V, []string)) string {
	t.Helper()
	o := new(T)
	decode(t, string(data), o)
	value, problems := read(o)
	return strings.TrimSpace(fmt.Sprintf("%+v %s", value, strings.Join(problems, "; ")))
}

func meantPolicy[T any](t *testing.T, data []byte, read func(*T, map[string]Tier) (Policy, error)) string {
	t.Helper()
	o := new(T)
	decode(t, string(data), o)
	p, err := read(o, nil)
	errtest.Must(t, err)
	lines := []string{fmt.Sprintf("%s %v (%s) forward %v, before DNAT %v, untracked %v", p.Tier.Name, p.Order, saidPods(&p.Subject),
		p.Forward, p.PreDNAT, p.NoTrack)}
	for d, rules := range p.Rules {
		if p.Applies[d] {
			lines = append(lines, Direction(d).String())
		}
		for _, rule := range rules {
			lines = append(lines, said(rule))
		}
	}
	return strings.Join(append(lines, p.Problems...), "\n")
}
