package policytest

import (
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// world is the cluster of the tests below.
const world = `
Namespaces:
- {metadata: {name: a, labels: {env: dev}}}
- {metadata: {name: b, labels: {env: prod}}}
Nodes:
- {metadata: {name: node-0, labels: {rack: r1}}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
- {metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 172.16.0.2}]}}
Pods:
- metadata: {namespace: a, name: pod-0, labels: {app: web}}
  spec: {nodeName: node-0, containers: [{ports: [{name: http, containerPort: 8080}]}]}
  status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}
- {metadata: {namespace: a, name: pod-1, labels: {app: db}}, spec: {nodeName: node-0}, status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}}
- {metadata: {namespace: b, name: pod-2, labels: {app: web}}, spec: {nodeName: node-1}, status: {phase: Running, podIPs: [{ip: 10.0.0.3}]}}
- {metadata: {namespace: b, name: pod-3, labels: {app: web}}, spec: {nodeName: node-1},
      status: {phase: Succeeded, podIPs: [{ip: 10.0.0.4}]}}
- {metadata: {namespace: a, name: pod-4, labels: {app: web}}, spec: {nodeName: node-1, hostNetwork: true},
      status: {phase: Running, podIPs: [{ip: 172.16.0.2}]}}
`

// sentences are sentences of the API's text, each as "namespaced spec" or "cluster spec" of the policies, and packets
// with their verdicts.
var sentences = map[string]struct {
	namespaced, cluster []string
	packets             map[string]bool
}{
	"no policy: all pods can communicate": {packets: map[string]bool{"10.0.0.1 10.0.0.2 TCP 80": true}},
	"isolated by default, for its directions only": {
		namespaced: []string{`{podSelector: {matchLabels: {app: db}}}`},
		packets: map[string]bool{
			"10.0.0.1 10.0.0.2 TCP 80": false, "10.0.0.2 10.0.0.1 TCP 80": true, "172.16.0.1 10.0.0.2 TCP 80": true,
			"172.16.0.2 10.0.0.2 TCP 80": false,
		}},
	"rules of all policies are combined additively": {
		namespaced: []string{`{ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}`,
			`{ingress: [{from: [{namespaceSelector: {matchLabels: {env: prod}}}]}]}`},
		packets: map[string]bool{
			"10.0.0.1 10.0.0.2 TCP 80": true, "10.0.0.1 10.0.0.2 TCP 81": false, "10.0.0.3 10.0.0.2 TCP 81": true, "10.0.0.4 10.0.0.2 TCP 81": false,
			"10.0.0.1 10.0.0.2 UDP 80": false, "10.0.0.3 10.0.0.2 ICMP 0": true, "10.0.0.1 10.0.0.2 ICMP 0": false,
		}},
	"both selectors of one peer must match": {
		namespaced: []string{`{ingress: [{from: [{namespaceSelector: {matchLabels: {env: prod}}, podSelector: {matchLabels: {app: db}}}]}]}`},
		packets:    map[string]bool{"10.0.0.3 10.0.0.2 TCP 80": false}},
	"except, pods in a block, nodes in a block": {
		namespaced: []string{
			`{policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.9/24, except: [10.0.0.3/32]}}, {ipBlock: {cidr: 172.16.0.0/31}}]}]}`,
		},
		packets: map[string]bool{
			"10.0.0.2 10.0.0.1 TCP 80": true, "10.0.0.2 10.0.0.3 TCP 80": false, "10.0.0.2 172.16.0.1 TCP 80": true,
			"10.0.0.2 172.16.0.2 TCP 80": false,
		}},
	"named ports are the destination's": {
		namespaced: []string{`{policyTypes: [Egress], egress: [{ports: [{port: http}, {port: 90, endPort: 95}]}]}`},
		packets: map[string]bool{
			"10.0.0.2 10.0.0.1 TCP 8080": true, "10.0.0.1 10.0.0.2 TCP 8080": false, "10.0.0.1 10.0.0.2 TCP 95": true,
			"10.0.0.1 10.0.0.2 TCP 96": false,
		}},
	"what cannot be read matches nothing": {
		namespaced: []string{
			`{ingress: [{from: [{}, {ipBlock: {cidr: all}}, {ipBlock: {cidr: 0.0.0.0/0, except: [x]}}]}, {ports: [{port: 80, protocol: ANY}]}]}`,
		},
		packets: map[string]bool{"10.0.0.1 10.0.0.2 TCP 80": false}},
	"hostNetwork pods are not selected": {
		namespaced: []string{`{ingress: [{from: [{podSelector: {}}]}]}`},
		packets:    map[string]bool{"172.16.0.2 10.0.0.1 TCP 80": false}},
	"the admin tier first, Pass goes on to NetworkPolicies": {
		namespaced: []string{`{podSelector: {}}`},
		cluster: []string{`{tier: Admin, priority: 2, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`,
			`{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [
				{action: Accept, from: [{namespaces: {matchLabels: {env: prod}}}]},
					{action: Pass, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 53}}}]}]}`},
		packets: map[string]bool{
			"10.0.0.3 10.0.0.2 TCP 80": true, "10.0.0.1 10.0.0.2 TCP 80": false, "10.0.0.1 10.0.0.2 UDP 53": false, "10.0.0.1 10.0.0.3 UDP 53": true,
		}},
	"the baseline tier is for pods that no NetworkPolicy selects": {
		namespaced: []string{`{podSelector: {matchLabels: {app: db}}, ingress: [{}]}`},
		cluster:    []string{`{tier: Baseline, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`},
		packets:    map[string]bool{"10.0.0.1 10.0.0.2 TCP 80": true, "10.0.0.2 10.0.0.1 TCP 80": false}},
	"an unknown peer closes the rule": {
		cluster: []string{`{tier: Admin, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{}, {namespaces: {}}]}, {action: Pass, ` +
			`from: [{}], protocols: [{tcp: {destinationPort: {number: 1}}}]}]}`},
		packets: map[string]bool{"10.0.0.1 10.0.0.2 TCP 80": false}},
	"networks and nodes": {
		cluster: []string{`{tier: Admin, subject: {namespaces: {}}, egress: [{action: Accept, to: [{nodes: {matchLabels: {rack: r1}}}]}, ` +
			`{action: Deny, to: [{networks: [172.16.0.0/24]}]}]}`},
		packets: map[string]bool{"10.0.0.1 172.16.0.1 TCP 80": true, "10.0.0.1 172.16.0.2 TCP 80": false, "10.0.0.1 10.0.0.2 TCP 80": true}},
}

func TestReference(t *testing.T) {
	for sentence, c := range sentences {
		t.Run(sentence, func(t *testing.T) {
			var b strings.Builder
			b.WriteString(world + "NetworkPolicies:\n")
			for _, spec := range c.namespaced {
				b.WriteString("- {metadata: {namespace: a, name: p}, spec: " + spec + "}\n")
			}
			b.WriteString("ClusterNetworkPolicies:\n")
			for _, spec := range c.cluster {
				b.WriteString("- {metadata: {name: p}, spec: " + spec + "}\n")
			}
			var cluster Cluster
			if err := yaml.UnmarshalStrict([]byte(b.String()), &cluster); err != nil {
				t.Fatal(err)
			}
			for text, want := range c.packets {
				if got := cluster.Allowed(packet(t, text)); got != want {
					t.Errorf("%s: %v", text, got)
				}
			}
		})
	}
}

func packet(t *testing.T, text string) Packet {
	f := strings.Fields(text)
	protocol := protocolNumber(f[2])
	if f[2] == "ICMP" {
		protocol = ICMP
	}
	to, err := netip.ParseAddrPort(f[1] + ":" + f[3])
	if err != nil {
		t.Fatal(err)
	}
	return Packet{From: netip.MustParseAddr(f[0]), To: to.Addr(), Protocol: protocol, Port: to.Port()}
}

// A shrunk cluster is as small as possible and still fails.
func TestShrink(t *testing.T) {
	big := NewGenerator(3).Cluster()
	if len(big.Pods) < 3 || len(big.NetworkPolicies)+len(big.ClusterNetworkPolicies) == 0 {
		t.Fatalf("too small from the beginning: %s", big)
	}
	small := Shrink(big, func(c *Cluster) bool { return len(c.Pods) >= 2 && Addresses(&c.Pods[1])[0].IsValid() })
	if len(small.Pods) != 2 ||
		len(small.Namespaces)+len(small.NetworkPolicies)+len(small.ClusterNetworkPolicies)+len(small.Pods[1].Labels) != 0 {
		t.Errorf("not small: %s", small)
	}
}
