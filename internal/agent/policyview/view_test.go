package policyview

import (
	"bytes"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// shopPolicies are the policies of the test's cluster.
const shopPolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
    - from: [{ipBlock: {cidr: 192.0.2.0/24}}]
    - from: [{podSelector: {matchLabels: {app: client}}}]
      ports: [{port: http}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {}}], ports: [{port: 8080}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: quarantine}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  ingress:
    - {name: from-lab, action: Deny, from: [{namespaces: {matchLabels: {lab: "true"}}}]}
`

// shop is a State with two pods on this node and two elsewhere.
func shop(t *testing.T) *known {
	t.Helper()
	c, err := parsePolicies("test", []byte(shopPolicies))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	k := &known{State: policy.State{
		Local: map[string]policy.PodKey{}, Pods: map[policy.PodKey]*policy.Pod{}, Policies: c.policies,
		Namespaces: map[string]map[string]string{"shop": {}, "lab": {"lab": "true"}},
	}}
	for _, p := range []policy.Pod{
		{PodKey: policy.PodKey{Namespace: "shop", Name: "web-1"}, UID: "u1", Labels: map[string]string{"app": "web"},
			Addresses: addresses4("10.0.0.1", "fd00::1"), Ports: []policy.NamedPort{{Name: "http", Protocol: tcp, Port: 8080}}},
		{PodKey: policy.PodKey{Namespace: "shop", Name: "client-1"}, UID: "u2", Labels: map[string]string{"app": "client"},
			Addresses: addresses4("10.0.0.2", "fd00::2")},
		{PodKey: policy.PodKey{Namespace: "shop", Name: "client-2"}, UID: "u3", Labels: map[string]string{"app": "client"},
			Addresses: addresses4("10.0.1.2")},
		{PodKey: policy.PodKey{Namespace: "lab", Name: "mouse"}, UID: "u4", Addresses: addresses4("10.0.1.3")},
	} {
		k.Pods[p.PodKey] = &p
	}
	for _, key := range []policy.PodKey{{Namespace: "shop", Name: "web-1"}, {Namespace: "shop", Name: "client-1"}} {
		k.Local[policies.LinkOf(key)] = key
	}
	return k
}

func addresses4(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// kernel has everything in force except what its fields list.
type kernel struct {
	links   map[string]string
	strange netip.Addr
	closed  bool // to its pods
}

func (k kernel) Link(link string, _ policy.Direction) string                 { return k.links[link] }
func (k kernel) Host(link string, _ policy.Stage, _ policy.Direction) string { return k.links[link] }
func (k kernel) DropsToHost() bool                                           { return k.closed }
func (k kernel) Members(a netip.Addr) bool                                   { return a != k.strange }
func (k kernel) Denied(policy.Direction, policy.ID) uint64                   { return 7 }

func golden(t *testing.T, name string, a answer) {
	t.Helper()
	var out bytes.Buffer
	if err := a.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	difftest.Golden(t, name+".txt", out.String())
}

func TestList(t *testing.T) {
	k := shop(t)
	k.problems = []string{"NetworkPolicy shop/x: spec.ingress[0]: wrong"}
	k.sameLink = []string{"pods shop/a and lab/b are closed: their names give the same link, cali0"}
	compiled := policy.Compile(k.State)
	l := list("node1", k, compiled,
		kernel{links: map[string]string{policies.LinkOf(policy.PodKey{Namespace: "shop", Name: "web-1"}): "closed: the link has no program yet"}})
	golden(t, "list", l)
	for _, p := range l.Pods {
		if p.Ingress.Program != compiled.Endpoints[p.Link].Programs[policy.Ingress] || p.Ingress.Program == "" {
			t.Errorf("%s has the program %q", p.Pod, p.Ingress.Program)
		}
	}
	if err := l.only([]policy.PodKey{{Namespace: "shop", Name: "client-1"}}); err != nil || len(l.Pods) != 1 ||
		l.Pods[0].Pod != "shop/client-1" {
		t.Errorf("%v: %+v", err, l.Pods)
	}
	if err := l.only([]policy.PodKey{{Namespace: "shop", Name: "x"}}); !errtest.Names(err, "shop/x node1") {
		t.Error(err)
	}
	empty := &known{State: policy.State{}}
	golden(t, "list-empty", list("node1", empty, policy.Compile(empty.State), kernel{}))
}

// Host endpoints of the node are listed, and named where they deny.
func TestHostEndpoints(t *testing.T) {
	k := shop(t)
	k.Node = "node1"
	k.HostEndpoints = []policy.HostEndpoint{{Name: "node1-all", Node: "node1", Interface: "*", Labels: map[string]string{"host": "1"}},
		{Name: "node1-eth1", Node: "node1", Interface: "eth1", Allows: true}}
	hosts, err := selector.Parse("has(host)")
	errtest.Must(t, err)
	k.Policies = append(k.Policies, policy.Policy{
		ID: policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: "web"}, Tier: policy.TierDefault, Forward: true,
		Applies: [2]bool{true, false}, Subject: policy.Pods{Calico: true, Labels: hosts},
		Rules: [2][]policy.Rule{{{AnyPeer: true, Ports: []policy.Port{{Protocol: tcp, First: 80, Last: 80}}}}},
	})
	compiled := policy.Compile(k.State)
	golden(t, "list-hosts", list("node1", k, compiled, kernel{links: map[string]string{"eth1": "open: the program is not there"}}))
	own := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true}
	for name, args := range map[string][]string{
		"received": {"198.51.100.1", "192.0.2.1:22"}, "allowed": {"198.51.100.1", "192.0.2.1:80"},
		"forwarded": {"198.51.100.1", "shop/web-1:8080"}, "sent": {"192.0.2.1", "198.51.100.1:80"},
	} {
		asked, err := parseConnection(args)
		errtest.Must(t, err)
		x, err := explain(k, asked, compiled, kernel{}, own)
		errtest.Must(t, err)
		golden(t, "explain-host-"+name, x)
	}
}

// Where a policy before DNAT allows, no other policy judges incoming packets. Outgoing packets are judged by others, at
// pods' interfaces by those for all interfaces.
func TestHostEndpointsAfterDNAT(t *testing.T) {
	k := shop(t)
	k.Node = "node1"
	k.HostEndpoints = []policy.HostEndpoint{{Name: "all", Node: "node1", Interface: policy.AllInterfaces}}
	early := policy.Rule{AnyPeer: true, Ports: []policy.Port{{Protocol: tcp, First: 80, Last: 80}}}
	all := policy.Pods{Calico: true}
	k.Policies = []policy.Policy{
		{ID: policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: "early"}, Tier: policy.TierDefault, Forward: true, PreDNAT: true,
			Applies: [2]bool{true, false}, Subject: all,
			Rules: [2][]policy.Rule{{early}}},
		{ID: policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: "late"}, Tier: policy.TierDefault, Forward: true,
			Applies: [2]bool{true, true}, Subject: all},
	}
	compiled := policy.Compile(k.State)
	node, outside, pod := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("10.0.0.1")
	e := ends{map[netip.Addr]bool{node: true}, map[netip.Addr]bool{pod: true}}
	for name, c := range map[string]struct {
		from, to netip.Addr
		port     uint16
		want     string
	}{
		"to the node":                   {outside, node, 80, ""},
		"to the node, not allowed":      {outside, node, 81, "received"},
		"from the node":                 {node, outside, 80, "sent"},
		"to a pod: as it goes out":      {outside, pod, 80, "forwarded out"},
		"from a pod: as it goes out":    {pod, outside, 80, "forwarded out"},
		"by the node, of no pod's kind": {outside, outside, 81, ""},
	} {
		at, by, denied := e.deniedAt(compiled, policy.AllInterfaces, c.from, c.to, policy.Packet{Protocol: tcp, Port: c.port})
		if denied != (c.want != "") || at.text != c.want || denied && by.Name != "late" {
			t.Errorf("%s: denied %v where it is %q by %s, want %q", name, denied, at.text, by, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	web := policies.LinkOf(policy.PodKey{Namespace: "shop", Name: "web-1"})
	for _, c := range []struct {
		name, question string
		kernel         kernel
		own            string
	}{
		{name: "explain-allowed", question: "shop/client-1 shop/web-1:8080"},
		{name: "explain-named-port", question: "shop/client-2 -> shop/web-1:http/TCP"},
		{name: "explain-denied", question: "shop/client-1 shop/web-1:81"},
		{name: "explain-remote", question: "lab/mouse shop/client-2:80"},
		{name: "explain-admin", question: "lab/mouse shop/web-1:8080"},
		{name: "explain-address", question: "192.0.2.7 shop/web-1/ICMP"},
		{name: "explain-out", question: "shop/client-1 10.96.0.1:443"},
		{name: "explain-pods-address", question: "10.0.0.2 10.0.0.1:8080"},
		{name: "explain-ipv6", question: "fd00::2 shop/web-1:8080"},
		{name: "explain-host", question: "172.16.0.1 shop/web-1:8080", own: "172.16.0.1"},
		{name: "explain-differs", question: "shop/client-1 shop/web-1:8080",
			kernel: kernel{links: map[string]string{web: "there is no table inet tortie-policy"}}},
		{name: "explain-behind", question: "shop/client-1 shop/web-1:8080", kernel: kernel{strange: netip.MustParseAddr("10.0.0.2")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := shop(t)
			asked, err := parseConnection(strings.Fields(c.question))
			if err != nil {
				t.Fatal(err)
			}
			own := map[netip.Addr]bool{}
			if c.own != "" {
				own[netip.MustParseAddr(c.own)] = true
			}
			x, err := explain(k, asked, policy.Compile(k.State), c.kernel, own)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, c.name, x)
		})
	}
}

// asks explains a connection under policies alone.
func asks(t *testing.T, policies, question string, kernel kernel, own map[netip.Addr]bool) *Explained {
	t.Helper()
	k := shop(t)
	c, err := parsePolicies("file", []byte(policies))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	k.Policies = c.policies
	asked, err := parseConnection(strings.Fields(question))
	errtest.Must(t, err)
	x, err := explain(k, asked, policy.Compile(k.State), kernel, own)
	errtest.Must(t, err)
	return x
}

// fromIPv6 allows what comes by IPv6 alone.
const fromIPv6 = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: ` +
	`{matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 'fd00::/64'}}]}]}}`

// Pods with addresses of both families have a verdict in each.
func TestFamilies(t *testing.T) {
	x := asks(t, fromIPv6, "shop/client-1 shop/web-1:8080", kernel{}, nil)
	if x.Allowed || len(x.Notes) != 1 || !strings.Contains(x.Notes[0], "By IPv6 it is allowed: ask for fd00::2 and fd00::1") {
		t.Errorf("allowed %v, notes %q", x.Allowed, x.Notes)
	}
	k := shop(t)
	k.Policies = nil
	c, err := parsePolicies("file", []byte("--- # a comment\n"+fromIPv6+"\n--- # another\n"+
		strings.ReplaceAll(strings.ReplaceAll(fromIPv6, "web", "client"), "'fd00::/64'", "10.0.0.1/32")))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	got := map[string]string{}
	for _, f := range diff(k.State, c, map[policy.PodKey][]port{{Namespace: "shop", Name: "web-1"}: {{tcp, 8080}},
		{Namespace: "shop", Name: "client-1"}: {{tcp, 80}}}, nil).Flows {
		got[strings.Join(f.From, " ")+" "+strings.Join(f.To, " ")] = f.Change + f.Family
	}
	for flow, want := range map[string]string{"shop/client-1 shop/web-1": "deniedIPv4", "shop/client-2 shop/web-1": "denied",
		"shop/web-1 shop/client-1": "deniedIPv6", "shop/client-2 shop/client-1": "denied"} {
		if got[flow] != want {
			t.Errorf("%s: %q, want %q of %q", flow, got[flow], want, got)
		}
	}
}

// Init containers may stay, with ports.
func TestPortsOfInitContainers(t *testing.T) {
	spec := api.PodSpec{Containers: []api.Container{{Ports: []api.ContainerPort{{ContainerPort: 80}}}},
		InitContainers: []api.Container{{Ports: []api.ContainerPort{{ContainerPort: 53, Protocol: "UDP"}, {ContainerPort: 80}}}}}
	if got := containerPorts(&spec); !reflect.DeepEqual(got, []port{{tcp, 80}, {udp, 53}}) {
		t.Error(got)
	}
}

// ICMP in a question means an echo request, in its family.
func TestExplainEcho(t *testing.T) {
	const pings = `{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: web, namespace: shop},
		spec: {selector: app == 'web', types: [Ingress], ingress: [
		{action: Allow, protocol: ICMP, icmp: {type: 8}}, {action: Allow, protocol: ICMPv6, icmp: {type: 128},
			source: {nets: ['fd00::2/128']}}]}}`
	for _, question := range []string{"shop/client-1 shop/web-1/ICMP", "shop/client-1 shop/web-1/ICMPv6"} {
		if x := asks(t, pings, question, kernel{}, nil); !x.Allowed || x.Ingress.Kernel != kernelAgrees || x.Port != 0 {
			t.Errorf("%s: %+v, %+v", question, x, x.Ingress)
		}
	}
}

// Packets of pods to their node that FelixConfiguration forbids are denied, whatever the policies.
func TestExplainToHost(t *testing.T) {
	node := map[netip.Addr]bool{netip.MustParseAddr("172.16.0.1"): true}
	for question, want := range map[string]bool{"shop/client-1 172.16.0.1:53/UDP": false, "shop/client-1 172.16.0.2:53/UDP": true,
		"shop/client-2 172.16.0.1:53/UDP": true} {
		x := asks(t, fromIPv6, question, kernel{closed: true}, node)
		if x.Allowed != want || want == strings.Contains(strings.Join(x.Notes, " "), "defaultEndpointToHostAction") {
			t.Errorf("%s: allowed %v, notes %q", question, x.Allowed, x.Notes)
		}
	}
}

// tooLarge is a policy of namespace shop that is over the limit.
func tooLarge(t *testing.T, subject selector.Selector) policy.Policy {
	t.Helper()
	large := policy.Policy{ID: policy.ID{Kind: "NetworkPolicy", Namespace: "shop", Name: "large"}, Tier: policy.TierDefault,
		Applies: [2]bool{policy.Ingress: true}}
	large.Subject = policy.Pods{Namespace: "shop", Labels: subject}
	rule := policy.Rule{AnyPort: true}
	for i := range 1000 {
		s, err := selector.FromLabels(api.LabelSelector{
			MatchExpressions: []api.LabelSelectorRequirement{{Key: "app", Operator: "NotIn", Values: []string{strconv.Itoa(i)}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		rule.Peers = append(rule.Peers, policy.Peer{Pods: &policy.Pods{Namespace: "shop", Labels: s}})
	}
	large.Rules[policy.Ingress] = []policy.Rule{rule}
	return large
}

// A pod closed by the limit of its namespace's policies is reported as closed by it, not with the verdict of its
// policies.
func TestExplainTooLargePolicies(t *testing.T) {
	k := shop(t)
	large := tooLarge(t, selector.Selector{})
	k.Policies = append(k.Policies, large)
	asked, err := parseConnection([]string{"shop/client-1", "shop/web-1:8080"})
	if err != nil {
		t.Fatal(err)
	}
	compiled := policy.Compile(k.State)
	x, err := explain(k, asked, compiled, kernel{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "explain-too-large", x)
	if l := list("node1", k, compiled, kernel{}); len(l.Problems) != 1 || !strings.Contains(l.Problems[0], "NetworkPolicy shop/large: ") {
		t.Errorf("problems %q", l.Problems)
	}
}

// What cannot be explained names the argument and what to do.
func TestExplainErrors(t *testing.T) {
	for question, want := range map[string]string{
		"shop/gone shop/web-1:80":        "FROM shop/gone",
		"shop/web-1 shop/gone:80":        "TO shop/gone",
		"shop/client-1 shop/web-1:https": `port "https" shop/web-1 TCP http/TCP`,
		"shop/web-1 shop/client-1:http":  `"http" shop/client-1 none`,
		"fd00::9 lab/mouse:80":           "FROM fd00::9 lab/mouse family",
		"10.0.0.9 lab/mouse/ICMPv6":      "10.0.0.9 lab/mouse family ICMPv6",
	} {
		k := shop(t)
		asked, err := parseConnection(strings.Fields(question))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := explain(k, asked, policy.Compile(k.State), kernel{}, nil); !errtest.Names(err, want) {
			t.Errorf("%s: %v, want %q", question, err, want)
		}
	}
}

func TestDiff(t *testing.T) {
	k := shop(t)
	c, err := parsePolicies("file", []byte(`
# A comment alone is no document.
---
apiVersion: v1
kind: List
items:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: shop}
  spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 9090}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: lab, namespace: lab}
spec: {podSelector: {}, policyTypes: [Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: more, namespace: shop}
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{ports: [{port: 9090}, {port: 53, protocol: UDP}]}]}
`))
	errtest.Must(t, err)
	errtest.Must(t, c.read(nil))
	declared := map[policy.PodKey][]port{{Namespace: "shop", Name: "web-1"}: {{tcp, 8080}, {tcp, 9090}}}
	d := diff(k.State, c, declared, nil)
	golden(t, "diff", d)
	if same := diff(k.State, &change{policies: k.Policies}, declared, nil); len(same.Flows) > 0 {
		t.Errorf("the policies as they are change %+v", same.Flows)
	}
}

// A file may have ClusterNetworkPolicies in each known version: their names decide whether they are the cluster's.
func TestDiffOfClusterNetworkPolicies(t *testing.T) {
	k := shop(t)
	declared := map[policy.PodKey][]port{{Namespace: "shop", Name: "web-1"}: {{tcp, 8080}}}
	for _, version := range []string{"v1alpha2", "v1beta1"} {
		c, err := parsePolicies("file", []byte("apiVersion: policy.networking.k8s.io/"+version+`
kind: ClusterNetworkPolicy
metadata: {name: quarantine}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
`))
		errtest.Must(t, err)
		errtest.Must(t, c.read(nil))
		d := diff(k.State, c, declared, nil)
		if got := strings.Join(d.Policies, ", "); got != "ClusterNetworkPolicy quarantine: changed" || len(d.Flows) == 0 {
			t.Errorf("%s: %s, %+v", version, got, d.Flows)
		}
	}
}

// A change that makes programs too large reports so, and its pods are closed, also in directions without the policy.
func TestDiffOfTooLargePolicies(t *testing.T) {
	k := shop(t)
	clients, err := selector.FromLabels(api.LabelSelector{MatchLabels: map[string]string{"app": "client"}})
	if err != nil {
		t.Fatal(err)
	}
	large := &change{policies: []policy.Policy{tooLarge(t, clients)}}
	declared := map[policy.PodKey][]port{{Namespace: "shop", Name: "web-1"}: {{tcp, 8080}}}
	created := diff(k.State, large, declared, nil)
	golden(t, "diff-too-large", created)
	for _, f := range created.Flows {
		if f.Change != changeDenied || !strings.HasSuffix(f.By, " NetworkPolicy shop/large") {
			t.Errorf("%+v", f)
		}
	}
	k.Policies = append(k.Policies, large.policies...)
	if same := diff(k.State, large, declared, nil); len(same.Flows) > 0 || len(same.TooLarge) != 1 ||
		!strings.Contains(same.TooLarge[0], "NetworkPolicy shop/large, as before: ") {
		t.Errorf("as before: %+v", same)
	}
	large.deletes = true
	if gone := diff(k.State, large, declared, nil); len(gone.Flows) != len(created.Flows) || len(gone.TooLarge) > 0 {
		t.Errorf("deleted: %+v", gone)
	}
}

// Calico's policies decide in their tiers, whichever of Calico's apiVersions the file has.
func TestDiffOfCalicosPolicies(t *testing.T) {
	k := shop(t)
	k.Policies = nil
	c, err := parsePolicies("file", []byte(`
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: first.web, namespace: shop}
spec:
  tier: first
  selector: app == 'web'
  types: [Ingress]
  ingress: [{action: Deny, source: {selector: app == 'client'}}, {action: Pass}]
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: all}
spec: {namespaceSelector: has(lab), types: [Egress], egress: [{action: Allow}]}
`))
	errtest.Must(t, err)
	errtest.Must(t, c.read(map[string]policy.Tier{"first": {Name: "first", Order: 1, End: policy.Deny}}))
	d := diff(k.State, c, map[policy.PodKey][]port{{Namespace: "shop", Name: "web-1"}: {{tcp, 8080}}}, nil)
	want := []Flow{{Change: changeDenied, From: []string{"shop/client-1", "shop/client-2"}, To: []string{"shop/web-1"}, Protocol: "TCP",
		Port: 8080, By: "ingress CalicoNetworkPolicy shop/first.web"}}
	if !reflect.DeepEqual(d.Flows, want) || len(d.Problems) > 0 {
		t.Errorf("%+v, problems %v", d.Flows, d.Problems)
	}
}

// What a policy denies when it is created is allowed when it is deleted.
func TestDiffOfDeletion(t *testing.T) {
	k := shop(t)
	without := k.State
	without.Policies = nil
	created := diff(without, &change{policies: k.Policies}, nil, nil)
	deleted := diff(k.State, &change{policies: k.Policies, deletes: true}, nil, nil)
	for i := range created.Flows {
		if created.Flows[i].Change == changeDenied {
			created.Flows[i].Change = changeAllowed
		}
	}
	if len(created.Flows) == 0 || !reflect.DeepEqual(deleted.Flows, created.Flows) {
		t.Errorf("deleted: %+v\ncreated: %+v", deleted.Flows, created.Flows)
	}
	if again := diff(without, &change{policies: k.Policies, deletes: true}, nil, nil); len(again.Flows) > 0 ||
		!strings.HasSuffix(again.Policies[0], ": not there") {
		t.Errorf("policies that are not there: %+v", again)
	}
}

func TestParsePoliciesErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "has no policy",
		"a: [":                      "f, document 1",
		"kind: Pod\napiVersion: v1": `apiVersion "v1", kind "Pod": must be networking.k8s.io/v1 NetworkPolicy`,
		"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy":                                              "metadata.name is empty",
		"kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: x}\nspec: {podSelector: 1}": "document 1",
		"kind: ClusterNetworkPolicy\napiVersion: policy.networking.k8s.io/v1beta2": `apiVersion "policy.networking.k8s.io/v1beta2", ` +
			`kind "ClusterNetworkPolicy": must be networking.k8s.io/v1 NetworkPolicy, ` +
			`policy.networking.k8s.io/v1beta1 or v1alpha2 ClusterNetworkPolicy`,
	} {
		if _, err := parsePolicies("f", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
