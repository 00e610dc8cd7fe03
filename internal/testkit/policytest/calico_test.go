package policytest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// calicoWorld is the cluster of the tests below: pods web and db in namespace a, far in b.
const calicoWorld = `
Namespaces:
- {metadata: {name: a, labels: {env: dev}}}
- {metadata: {name: b, labels: {env: prod}}}
Nodes:
- {metadata: {name: node-0}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
- {metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 172.16.0.2}]}}
ServiceAccounts:
- {metadata: {namespace: a, name: robot, labels: {team: blue}}}
- {metadata: {namespace: a, name: default, labels: {team: red}}}
- {metadata: {namespace: b, name: robot, labels: {team: red}}}
Pods:
- metadata: {namespace: a, name: pod-0, labels: {app: web, pcns.env: prod, projectcalico.org/namespace: b}}
  spec: {nodeName: node-0, serviceAccountName: robot,
      containers: [{ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]}]}
  status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}
- metadata: {namespace: a, name: pod-1, labels: {app: db}}
  spec: {nodeName: node-0, serviceAccountName: default, initContainers: [{ports: [{name: http, containerPort: 80}]}]}
  status: {phase: Running, podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}
- metadata: {namespace: b, name: pod-2, labels: {app: web}}
  spec: {nodeName: node-1, serviceAccountName: robot}
  status: {phase: Running, podIPs: [{ip: 10.0.0.3}, {ip: 'fd00::3'}]}
NetworkSets:
- {metadata: {namespace: a, name: partners, labels: {kind: partner}}, spec: {nets: [192.168.1.7/24, nonsense]}}
- {metadata: {namespace: b, name: partners, annotations: {projectcalico.org/metadata: '{"labels": {"kind": "partner"}}'}},
      spec: {nets: [192.168.2.1]}}
GlobalNetworkSets:
- {metadata: {name: world, labels: {kind: partner, scope: world, pcns.env: faked}},
      spec: {nets: [203.0.113.0/24, '2001:db8::/32', 10.0.0.3/32]}}
HostEndpoints:
- {metadata: {name: node-1, labels: {role: host}}, spec: {node: node-1, expectedIPs: [172.16.0.2],
      ports: [{name: http, protocol: TCP, port: 88}]}}
Services:
- metadata: {namespace: a, name: api}
  Endpoints: [{Address: 10.0.0.1, Ports: [{Protocol: TCP, Port: 8080}]}, {Address: 192.168.9.9, Ports: [{Protocol: UDP, Port: 53}]},
      {Address: 10.0.0.3}]
`

// row is policies, each as "kind name spec", those with a namespace in a, and what becomes of packets: of those between
// pods and others, by pods' names.
type row struct {
	policies []string
	packets  map[string]bool
}

// in and out are one policy for ingress or egress of web that allows by its only rule.
func in(rule string) []string {
	return []string{"NetworkPolicy p {selector: app == 'web', types: [Ingress], ingress: [" + rule + "]}"}
}

func out(rule string) []string {
	return []string{"NetworkPolicy p {selector: app == 'web', types: [Egress], egress: [" + rule + "]}"}
}

func globally(direction, rule string) []string {
	return []string{fmt.Sprintf("GlobalNetworkPolicy p {selector: app == 'web', types: [%s], %s: [%s]}", direction,
		strings.ToLower(direction), rule)}
}

// Rows of the fields of a rule.
var ruleRows = map[string]row{
	"no policy": {nil, map[string]bool{"far web TCP 80": true, "web 192.0.2.1 UDP 53": true}},
	"an empty rule matches everything": {in(`{action: Allow}`), map[string]bool{
		"far web TCP 80": true, "192.0.2.1 web ICMP 8/0": true, "192.0.2.1 web 47": true, "fd00::3 fd00::1 UDP 0": true,
	}},
	"actions in any case":           {in(`{action: aLLoW}`), map[string]bool{"far web TCP 80": true}},
	"an action that is none denies": {in(`{action: Accept}, {action: Allow}`), map[string]bool{"far web TCP 80": false}},
	"ipVersion": {in(`{action: Allow, ipVersion: 6}`),
		map[string]bool{"far web TCP 80": false, "fd00::3 fd00::1 TCP 80": true}},
	"an ipVersion that is none": {in(`{action: Allow, ipVersion: 5}`), map[string]bool{"far web TCP 80": false}},
	"and denies all if the rule does": {in(`{action: Deny, ipVersion: 5}, {action: Allow}`),
		map[string]bool{"far web TCP 80": false, "fd00::3 fd00::1 TCP 80": false}},
	"protocol by name": {in(`{action: Allow, protocol: tcp}`),
		map[string]bool{"far web TCP 80": true, "far web UDP 80": false, "far web ICMP 8/0": false}},
	"protocol by number": {in(`{action: Allow, protocol: 17}`), map[string]bool{"far web TCP 80": false, "far web UDP 80": true}},
	"UDPLite": {in(`{action: Allow, protocol: UDPLite}`),
		map[string]bool{"far web 136": true, "far web UDP 80": false}},
	"a protocol that is none": {in(`{action: Allow, protocol: TCPX}`), map[string]bool{"far web TCP 80": false}},
	"protocol 0 is none":      {in(`{action: Allow, protocol: 0}`), map[string]bool{"far web TCP 80": false}},
	"notProtocol": {in(`{action: Allow, notProtocol: TCP}`), map[string]bool{
		"far web TCP 80": false, "far web UDP 80": true, "far web ICMP 8/0": true, "far web 253": true, "fd00::3 fd00::1 TCP 80": false,
	}},
	"protocol and notProtocol": {in(`{action: Allow, protocol: TCP, notProtocol: 6}`),
		map[string]bool{"far web TCP 80": false, "far web UDP 80": false}},
	"type of ICMP": {in(`{action: Allow, protocol: ICMP, icmp: {type: 8}}`),
		map[string]bool{"far web ICMP 8/0": true, "far web ICMP 8/9": true, "far web ICMP 13/0": false, "far web TCP 2048": false}},
	"type and code of ICMP": {in(`{action: Allow, protocol: ICMP, icmp: {type: 3, code: 4}}`),
		map[string]bool{"far web ICMP 3/4": true, "far web ICMP 3/0": false, "far web ICMP 4/4": false}},
	"notICMP": {in(`{action: Allow, protocol: ICMP, notICMP: {type: 8}}`),
		map[string]bool{"far web ICMP 8/0": false, "far web ICMP 13/0": true, "far web TCP 80": false}},
	"notICMP without a type": {in(`{action: Allow, protocol: ICMP, notICMP: {}}`),
		map[string]bool{"far web ICMP 8/0": true, "far web TCP 80": false}},
	"notICMP with a code": {in(`{action: Allow, protocol: ICMP, notICMP: {type: 8, code: 1}}`),
		map[string]bool{"far web ICMP 8/0": true, "far web ICMP 8/1": false}},
	"ICMPv6": {in(`{action: Allow, protocol: ICMPv6, icmp: {type: 128}}`),
		map[string]bool{"fd00::3 fd00::1 ICMPv6 128/0": true, "fd00::3 fd00::1 ICMPv6 8/0": false, "far web ICMP 128/0": false}},
	"icmp without its protocol": {in(`{action: Allow, icmp: {type: 8}}`), map[string]bool{"far web ICMP 8/0": false, "far web TCP 80": false}},
	"a code without its type":   {in(`{action: Allow, protocol: ICMP, icmp: {code: 0}}`), map[string]bool{"far web ICMP 8/0": false}},
	"a type that is none":       {in(`{action: Allow, protocol: ICMP, icmp: {type: 255}}`), map[string]bool{"far web ICMP 255/0": false}},

	"nets": {in(`{action: Allow, source: {nets: [192.0.2.0/31, 10.0.0.3/32]}}`), map[string]bool{
		"far web TCP 80": true, "db web TCP 80": false, "192.0.2.1 web TCP 80": true, "192.0.2.2 web TCP 80": false,
	}},
	"nets with host bits, of one address": {in(`{action: Allow, source: {nets: [192.0.2.77/24, 198.51.100.1]}}`), map[string]bool{
		"192.0.2.200 web TCP 80": true, "198.51.100.1 web TCP 80": true, "198.51.100.2 web TCP 80": false,
	}},
	"notNets": {in(`{action: Allow, source: {notNets: [10.0.0.0/30]}}`),
		map[string]bool{"far web TCP 80": false, "192.0.2.1 web TCP 80": true, "fd00::3 fd00::1 TCP 80": false}},
	"notNets of both families": {in(`{action: Allow, source: {notNets: [10.0.0.0/30, 'fd00::2']}}`), map[string]bool{
		"far web TCP 80": false, "192.0.2.1 web TCP 80": true, "fd00::2 fd00::1 TCP 80": false, "fd00::3 fd00::1 TCP 80": true,
	}},
	"notNets of different families at the ends": {
		in(`{action: Allow, source: {notNets: [192.0.2.0/24]}, destination: {notNets: ['2001:db8::/32']}}`), map[string]bool{
			"far web TCP 80": false, "fd00::3 fd00::1 TCP 80": false,
		},
	},
	"nets and notNets": {in(`{action: Allow, source: {nets: [10.0.0.0/8], notNets: [10.0.0.2/31]}}`), map[string]bool{
		"far web TCP 80": false, "db web TCP 80": false, "10.0.0.4 web TCP 80": true, "192.0.2.1 web TCP 80": false,
	}},
	"notNets of everything match nothing": {in(`{action: Allow, source: {notNets: [0.0.0.0/0]}}`),
		map[string]bool{"far web TCP 80": false, "fd00::3 fd00::1 TCP 80": false}},
	"nets of both families": {in(`{action: Allow, source: {nets: [10.0.0.3/32, 'fd00::2/128']}}`), map[string]bool{
		"far web TCP 80": true, "fd00::2 fd00::1 TCP 80": true, "fd00::3 fd00::1 TCP 80": false,
	}},
	"nets of a family keep the other one out": {in(`{action: Allow, source: {nets: [0.0.0.0/0]}}`),
		map[string]bool{"far web TCP 80": true, "fd00::3 fd00::1 TCP 80": false}},
	"and so do notNets": {in(`{action: Allow, source: {notNets: ['2001:db8::/32']}}`),
		map[string]bool{"far web TCP 80": false, "fd00::3 fd00::1 TCP 80": true}},
	"nets and a selector": {
		globally("Ingress", `{action: Allow, source: {nets: [10.0.0.2/31], selector: app == 'web'}}`),
		map[string]bool{"far web TCP 80": true, "db web TCP 80": false, "db far TCP 80": false},
	},
	"nets alone mean no namespace": {in(`{action: Allow, source: {nets: [10.0.0.0/8]}}`),
		map[string]bool{"far web TCP 80": true}},
	"the destination of ingress is the pod": {in(`{action: Allow, destination: {nets: [10.0.0.1/32]}}`),
		map[string]bool{"far web TCP 80": true, "fd00::3 fd00::1 TCP 80": false}},
	"a selector of the pod's own end": {globally("Ingress", `{action: Allow, destination: {namespaceSelector: env == 'dev'}}`),
		map[string]bool{"db web TCP 80": true, "db far TCP 80": false}},
	"the source of egress is the pod": {out(`{action: Allow, source: {serviceAccounts: {names: [robot]}}}`),
		map[string]bool{"web far TCP 80": true}},
	"and does not match where the rule says not": {out(`{action: Allow, source: {notSelector: app == 'web'}}`),
		map[string]bool{"web far TCP 80": false}},

	"ports": {in(`{action: Allow, protocol: TCP, destination: {ports: [80, '90:95', 0, 65535]}}`), map[string]bool{
		"far web TCP 80": true, "far web TCP 81": false, "far web TCP 90": true, "far web TCP 95": true,
		"far web TCP 96": false, "far web UDP 80": false,
		"far web TCP 0": true, "far web TCP 65535": true,
	}},
	"notPorts": {in(`{action: Allow, protocol: TCP, destination: {notPorts: [80, '90:95']}}`),
		map[string]bool{"far web TCP 80": false, "far web TCP 93": false, "far web TCP 96": true, "far web UDP 96": false}},
	"ports and notPorts": {in(`{action: Allow, protocol: UDP, destination: {ports: ['1:100'], notPorts: [53]}}`),
		map[string]bool{"far web UDP 52": true, "far web UDP 53": false, "far web UDP 101": false}},
	"source ports": {in(`{action: Allow, protocol: TCP, source: {ports: ['1024:65535']}}`),
		map[string]bool{"far web TCP 80 1024": true, "far web TCP 80 1023": false}},
	"source notPorts": {in(`{action: Allow, protocol: TCP, source: {notPorts: [53]}}`),
		map[string]bool{"far web TCP 80 53": false, "far web TCP 53 54": true}},
	"a named port": {in(`{action: Allow, protocol: TCP, destination: {ports: [http]}}`),
		map[string]bool{"far web TCP 8080": true, "far web TCP 80": false, "far web UDP 8080": false}},
	"a name or a number": {in(`{action: Allow, protocol: TCP, destination: {ports: [http, 443]}}`),
		map[string]bool{"far web TCP 8080": true, "far web TCP 443": true, "far web TCP 80": false}},
	"a named port of UDP": {in(`{action: Allow, protocol: UDP, destination: {ports: [dns, http]}}`),
		map[string]bool{"far web UDP 53": true, "far web TCP 53": false, "far web UDP 8080": false}},
	"a name means TCP": {in(`{action: Allow, destination: {ports: [dns, http]}}`),
		map[string]bool{"far web TCP 8080": true, "far web UDP 53": false, "far web TCP 53": false}},
	"not a named port": {in(`{action: Allow, protocol: TCP, destination: {notPorts: [http]}}`),
		map[string]bool{"far web TCP 8080": false, "far web TCP 80": true}},
	"names are the peer's": {out(`{action: Allow, protocol: TCP, destination: {ports: [http]}}`), map[string]bool{
		"web db TCP 80": true, "web db TCP 8080": false, "web far TCP 80": false, "web 172.16.0.2 TCP 88": true, "web 192.0.2.1 TCP 80": false,
	}},
	"a named source port": {out(`{action: Allow, protocol: TCP, source: {ports: [http]}}`),
		map[string]bool{"web far TCP 1 8080": true, "web far TCP 8080 1": false}},
	"not the peer's named port": {out(`{action: Allow, protocol: TCP, destination: {notPorts: [http]}}`),
		map[string]bool{"web db TCP 80": false, "web db TCP 8080": true, "web far TCP 80": true, "web 192.0.2.1 TCP 80": true}},
	"a number needs a protocol": {in(`{action: Allow, destination: {ports: [80, http]}}`),
		map[string]bool{"far web TCP 80": false, "far web UDP 80": false, "far web TCP 8080": true}},
	"a number needs a protocol, also in notPorts": {in(`{action: Allow, destination: {notPorts: [80]}}`),
		map[string]bool{"far web TCP 81": false}},
	"ports that are none": {
		in(`{action: Allow, protocol: TCP, destination: {ports: ['90:80', '65536', '1:99999', 'a b', '']}}`),
		map[string]bool{"far web TCP 80": false, "far web TCP 85": false, "far web TCP 0": false},
	},
	"notPorts that are none": {in(`{action: Allow, protocol: TCP, destination: {notPorts: ['90:80']}}`),
		map[string]bool{"far web TCP 80": false}},

	"a selector means the own namespace": {in(`{action: Allow, source: {selector: "app in {'web', 'db'}"}}`),
		map[string]bool{"db web TCP 80": true, "far web TCP 80": false}},
	"also of network sets": {in(`{action: Allow, source: {selector: kind == 'partner'}}`),
		map[string]bool{"192.168.1.200 web TCP 80": true, "192.168.2.1 web TCP 80": false, "203.0.113.1 web TCP 80": false}},
	"notSelector alone too": {in(`{action: Allow, source: {notSelector: app == 'web'}}`),
		map[string]bool{"db web TCP 80": true, "far web TCP 80": false, "192.168.1.1 web TCP 80": true, "192.0.2.1 web TCP 80": false}},
	"serviceAccounts alone too": {in(`{action: Allow, source: {serviceAccounts: {names: [robot, default]}}}`),
		map[string]bool{"db web TCP 80": true, "far web TCP 80": false}},
	"selector and notSelector": {in(`{action: Allow, source: {selector: has(app), notSelector: app == 'db'}}`),
		map[string]bool{"db web TCP 80": false, "far web TCP 80": false}},
	"namespaceSelector": {in(`{action: Allow, source: {namespaceSelector: env == 'prod'}}`), map[string]bool{
		"far web TCP 80": true, "db web TCP 80": false, "192.168.2.1 web TCP 80": true, "192.168.1.1 web TCP 80": false,
		"203.0.113.1 web TCP 80": false,
	}},
	"a namespace by name": {in(`{action: Allow, source: {namespaceSelector: projectcalico.org/name == 'b'}}`),
		map[string]bool{"far web TCP 80": true, "db web TCP 80": false}},
	"what is not may have none": {in(`{action: Allow, source: {namespaceSelector: env != 'prod'}}`),
		map[string]bool{"db web TCP 80": true, "192.168.2.1 web TCP 80": false, "192.168.1.1 web TCP 80": true, "203.0.113.1 web TCP 80": true,
			"172.16.0.2 web TCP 80": true, "192.0.2.1 web TCP 80": false}},
	"but not beside all()": {in(`{action: Allow, source: {namespaceSelector: all() && env != 'prod'}}`),
		map[string]bool{"db web TCP 80": true, "far web TCP 80": false, "203.0.113.1 web TCP 80": false, "172.16.0.2 web TCP 80": false}},
	"labels cannot pretend one": {in(`{action: Allow, source: {namespaceSelector: env == 'faked'}}`),
		map[string]bool{"203.0.113.1 web TCP 80": false}},
	"namespaceSelector and selector": {in(`{action: Allow, source: {namespaceSelector: all(), selector: app == 'web'}}`),
		map[string]bool{"far web TCP 80": true, "db web TCP 80": false, "172.16.0.2 web TCP 80": false}},
	"all() namespaces": {in(`{action: Allow, source: {namespaceSelector: all()}}`), map[string]bool{"far web TCP 80": true,
		"db web TCP 80": true, "192.168.1.1 web TCP 80": true, "203.0.113.1 web TCP 80": false, "172.16.0.2 web TCP 80": false}},
	"global()": {in(`{action: Allow, source: {namespaceSelector: global()}}`), map[string]bool{"far web TCP 80": true,
		"db web TCP 80": false, "203.0.113.1 web TCP 80": true, "172.16.0.2 web TCP 80": true, "192.0.2.1 web TCP 80": false}},
	"global() and a selector": {in(`{action: Allow, source: {namespaceSelector: global(), selector: has(role)}}`),
		map[string]bool{"203.0.113.1 web TCP 80": false, "172.16.0.2 web TCP 80": true}},
	"service accounts by label": {in(`{action: Allow, source: {namespaceSelector: all(), serviceAccounts: {selector: team == 'red'}}}`),
		map[string]bool{"db web TCP 80": true, "far web TCP 80": true, "203.0.113.1 web TCP 80": false}},
	"service accounts by both": {
		in(`{action: Allow, source: {namespaceSelector: all(), serviceAccounts: {names: [robot], selector: team == 'red'}}}`),
		map[string]bool{"db web TCP 80": false, "far web TCP 80": true},
	},
	"only pods have service accounts": {globally("Ingress", `{action: Allow, source: {serviceAccounts: {selector: team == 'red'}}}`),
		map[string]bool{"203.0.113.1 web TCP 80": false, "172.16.0.2 web TCP 80": false, "db far TCP 80": true}},
	"what has none is not red": {globally("Ingress", `{action: Allow, source: {serviceAccounts: {selector: team != 'red'}}}`),
		map[string]bool{"203.0.113.1 web TCP 80": true, "172.16.0.2 web TCP 80": true, "192.0.2.1 web TCP 80": false, "web far TCP 80": true,
			"db far TCP 80": false}},

	"a selector of a GlobalNetworkPolicy means everything": {
		globally("Ingress", `{action: Allow, source: {selector: has(kind) || app == 'db'}}`), map[string]bool{
			"db web TCP 80": true, "192.168.1.1 web TCP 80": true, "192.168.2.1 web TCP 80": true, "203.0.113.1 web TCP 80": true,
			"192.0.2.1 web TCP 80": false,
		},
	},
	"all() is everything known": {globally("Ingress", `{action: Allow, source: {selector: all()}}`),
		map[string]bool{"db web TCP 80": true, "172.16.0.2 web TCP 80": true, "203.0.113.1 web TCP 80": true, "192.0.2.1 web TCP 80": false}},
	"notSelector alone is also true of unknown ones": {globally("Ingress", `{action: Allow, source: {notSelector: kind == 'partner'}}`),
		map[string]bool{"db web TCP 80": true, "192.0.2.1 web TCP 80": true, "203.0.113.1 web TCP 80": false, "192.168.1.1 web TCP 80": false,
			"far web TCP 80": false}},
	"notSelector of all() is what is unknown": {globally("Ingress", `{action: Allow, source: {notSelector: all()}}`),
		map[string]bool{"db web TCP 80": false, "192.0.2.1 web TCP 80": true}},
	"notSelector and namespaceSelector": {
		globally("Ingress", `{action: Allow, source: {notSelector: app == 'db', namespaceSelector: has(env)}}`),
		map[string]bool{"db web TCP 80": false, "far web TCP 80": true, "192.0.2.1 web TCP 80": false},
	},
	"an address of a pod is also that of a set": {globally("Ingress", `{action: Allow, source: {selector: scope == 'world'}}`),
		map[string]bool{"far web TCP 80": true, "db web TCP 80": false}},
	"no label passes for an inherited one": {globally("Ingress", `{action: Allow, source: {selector: pcns.env == 'faked'}}`),
		map[string]bool{"203.0.113.1 web TCP 80": false}},
	"labels as Calico sees them": {globally("Ingress", `{action: Allow, source: {selector: projectcalico.org/namespace == 'a' && `+
		`projectcalico.org/orchestrator == 'k8s' && projectcalico.org/serviceaccount == 'default'}}`), map[string]bool{
		"db web TCP 80": true, "far web TCP 80": false,
	}},
	"inherited labels": {
		globally("Ingress", `{action: Allow, source: {selector: pcns.env == 'dev' && pcsa.team == 'red'}}`),
		map[string]bool{"db web TCP 80": true, "far web TCP 80": false},
	},
	"names of what is inherited": {globally("Ingress",
		`{action: Allow, source: {selector: pcns.projectcalico.org/name == 'a' && pcsa.projectcalico.org/name == 'default'}}`),
		map[string]bool{"db web TCP 80": true, "far web TCP 80": false}},
	"network sets inherit, too": {
		globally("Ingress", `{action: Allow, source: {selector: pcns.env == 'prod' && projectcalico.org/namespace == 'b'}}`),
		map[string]bool{"192.168.2.1 web TCP 80": true, "192.168.1.1 web TCP 80": false, "far web TCP 80": true},
	},
	"own labels do not pass for Calico's": {
		globally("Ingress", `{action: Allow, source: {selector: pcns.env == 'prod' || projectcalico.org/namespace == 'b'}}`),
		map[string]bool{"web far TCP 80": false, "far web TCP 80": true},
	},

	"a service as the destination": {out(`{action: Allow, destination: {services: {name: api}}}`),
		map[string]bool{"web 192.168.9.9 UDP 53": true, "web 192.168.9.9 UDP 54": false, "web 192.168.9.9 TCP 53": false, "web far TCP 80": false,
			"web 192.0.2.1 UDP 53": false}},
	"a service as the source": {in(`{action: Allow, source: {services: {name: api, namespace: a}}}`),
		map[string]bool{"192.168.9.9 web TCP 1": true, "far web UDP 7": true, "db web TCP 80": false}},
	"a service and a protocol": {out(`{action: Allow, protocol: TCP, destination: {services: {name: api}}}`),
		map[string]bool{"web 192.168.9.9 UDP 53": false}},
	"a service that is not there": {out(`{action: Allow, destination: {services: {name: none}}}`),
		map[string]bool{"web 192.168.9.9 UDP 53": false}},
	"a service of no namespace": {globally("Egress", `{action: Allow, destination: {services: {name: api}}}`),
		map[string]bool{"web 192.168.9.9 UDP 53": false}},
	"a service of a GlobalNetworkPolicy": {globally("Egress", `{action: Allow, destination: {services: {name: api, namespace: a}}}`),
		map[string]bool{"web 192.168.9.9 UDP 53": true}},
	"a service where none can be": {in(`{action: Allow, destination: {services: {name: api}}}`),
		map[string]bool{"far web TCP 8080": false}},
	"a service beside a selector": {out(`{action: Allow, destination: {services: {name: api}, selector: all()}}`),
		map[string]bool{"web 192.168.9.9 UDP 53": false}},
	"a condition on HTTP allows nothing": {in(`{action: Allow, protocol: TCP, http: {methods: [GET]}}`),
		map[string]bool{"far web TCP 80": false}},
	"and is no condition for what denies": {in(`{action: Deny, protocol: TCP, http: {methods: [GET]}}, {action: Allow}`),
		map[string]bool{"far web TCP 80": false, "far web UDP 80": true}},
	"nets of which one cannot be read": {in(`{action: Allow, source: {nets: [nonsense, 192.0.2.0/24]}}`),
		map[string]bool{"192.0.2.1 web TCP 80": true, "far web TCP 80": false}},
	"nets of which none can be read": {in(`{action: Allow, source: {nets: [nonsense]}}`),
		map[string]bool{"192.0.2.1 web TCP 80": false}},
	"what cannot be read is not excluded": {in(`{action: Deny, source: {notNets: [nonsense, 10.0.0.2/32]}}, {action: Allow}`),
		map[string]bool{"far web TCP 80": false, "db web TCP 80": true}},
	"and nothing is allowed then":           {in(`{action: Allow, source: {notNets: [nonsense]}}`), map[string]bool{"far web TCP 80": false}},
	"a selector that is none ends a policy": {in(`{action: Allow, source: {selector: app = 'db'}}`), map[string]bool{"far web TCP 80": true}},
}

// Rows on which pods policies select, and in which order they decide.
var orderRows = map[string]row{
	"a policy without types is for both directions": {[]string{`NetworkPolicy p {selector: app == 'web', ingress: [{action: Allow}]}`},
		map[string]bool{"far web TCP 80": true, "web far TCP 80": false}},
	"types in any case": {[]string{`NetworkPolicy p {types: [ingress]}`},
		map[string]bool{"far web TCP 80": false, "web far TCP 80": true}},
	"rules of another direction count for nothing": {
		[]string{`NetworkPolicy p {types: [Egress], ingress: [{action: Deny}], egress: [{action: Allow}]}`},
		map[string]bool{"far web TCP 80": true, "web far TCP 80": true},
	},
	"a NetworkPolicy is for its namespace": {[]string{`NetworkPolicy p {selector: all()}`},
		map[string]bool{"db web TCP 80": false, "172.16.0.2 far TCP 80": true, "192.0.2.1 far TCP 80": true}},
	"serviceAccountSelector": {[]string{`NetworkPolicy p {serviceAccountSelector: team == 'red', types: [Ingress]}`},
		map[string]bool{"far db TCP 80": false, "far web TCP 80": true}},
	"serviceAccountSelector and selector": {
		[]string{`GlobalNetworkPolicy p {selector: app == 'web', serviceAccountSelector: team == 'red', types: [Ingress]}`},
		map[string]bool{"web db TCP 80": true, "db far TCP 80": false, "db web TCP 80": true},
	},
	"a GlobalNetworkPolicy is for all": {[]string{`GlobalNetworkPolicy p {types: [Ingress]}`},
		map[string]bool{"far db TCP 80": false, "db far TCP 80": false}},
	"namespaceSelector": {[]string{`GlobalNetworkPolicy p {namespaceSelector: env == 'prod', types: [Ingress]}`},
		map[string]bool{"far db TCP 80": true, "db far TCP 80": false}},
	"namespaceSelector all()": {[]string{`GlobalNetworkPolicy p {namespaceSelector: all(), types: [Ingress]}`},
		map[string]bool{"far db TCP 80": false}},
	"namespaceSelector global()": {[]string{`GlobalNetworkPolicy p {namespaceSelector: global(), types: [Ingress]}`},
		map[string]bool{"far db TCP 80": true}},
	"labels as Calico sees them": {
		[]string{`GlobalNetworkPolicy p {selector: projectcalico.org/namespace == 'b' && pcns.env == 'prod', types: [Ingress]}`},
		map[string]bool{"far web TCP 80": true, "db far TCP 80": false},
	},
	"before connection tracking are no pods": {[]string{`GlobalNetworkPolicy p {doNotTrack: true, applyOnForward: true}`},
		map[string]bool{"far db TCP 80": true}},
	"before DNAT are no pods": {
		[]string{`GlobalNetworkPolicy p {preDNAT: true, applyOnForward: true, types: [Ingress]}`}, map[string]bool{"far db TCP 80": true},
	},
	"applyOnForward is for pods as well": {[]string{`GlobalNetworkPolicy p {applyOnForward: true, types: [Ingress]}`},
		map[string]bool{"far db TCP 80": false}},
	"a selector that is none ends a policy": {[]string{`NetworkPolicy p {selector: app =}`,
		`GlobalNetworkPolicy p {namespaceSelector: has (x)}`}, map[string]bool{"far db TCP 80": true}},

	"lower orders first": {[]string{`NetworkPolicy a {order: 2, ingress: [{action: Deny}], types: [Ingress]}`,
		`NetworkPolicy b {order: -1.5, ingress: [{action: Allow}], types: [Ingress]}`}, map[string]bool{"far db TCP 80": true}},
	"no order is last": {[]string{`NetworkPolicy a {ingress: [{action: Deny}], types: [Ingress]}`,
		`NetworkPolicy b {order: 1000000000, ingress: [{action: Allow}], types: [Ingress]}`}, map[string]bool{"far db TCP 80": true}},
	"equal orders by name": {[]string{`NetworkPolicy b {ingress: [{action: Deny}], types: [Ingress]}`,
		`NetworkPolicy default.a {ingress: [{action: Allow}], types: [Ingress]}`}, map[string]bool{"far db TCP 80": true}},
	"equal names: those of no namespace first": {[]string{`NetworkPolicy default.p {ingress: [{action: Deny}], types: [Ingress]}`,
		`GlobalNetworkPolicy p {ingress: [{action: Allow}], types: [Ingress]}`}, map[string]bool{"far db TCP 80": true}},
	"the next policy if no rule matches": {[]string{`NetworkPolicy a {ingress: [{action: Deny, protocol: UDP}], types: [Ingress]}`,
		`NetworkPolicy b {ingress: [{action: Allow, protocol: TCP}], types: [Ingress]}`},
		map[string]bool{"far db TCP 80": true, "far db UDP 80": false, "far db SCTP 80": false}},
	"the first rule that matches": {
		[]string{`NetworkPolicy a {types: [Ingress], ingress: [{action: Allow, protocol: TCP}, {action: Deny}, {action: Allow, protocol: UDP}]}`},
		map[string]bool{"far db TCP 80": true, "far db UDP 80": false},
	},
	"Log goes on": {[]string{`NetworkPolicy a {types: [Ingress], ingress: [{action: Log}, {action: Allow}]}`},
		map[string]bool{"far db TCP 80": true}},
	"Log alone decides nothing": {[]string{`NetworkPolicy a {types: [Ingress], ingress: [{action: Log}]}`},
		map[string]bool{"far db TCP 80": false}},

	"tiers by order": {
		[]string{`Tier t1 {order: 20}`, `Tier t2 {order: 10}`, `NetworkPolicy t1.p {tier: t1, types: [Ingress], ingress: [{action: Deny}]}`,
			`NetworkPolicy t2.p {tier: t2, types: [Ingress], ingress: [{action: Allow}]}`}, map[string]bool{"far db TCP 80": true},
	},
	"tiers of equal order by name": {
		[]string{`Tier t1 {order: 10}`, `Tier t0 {order: 10}`, `NetworkPolicy t1.p {tier: t1, types: [Ingress], ingress: [{action: Deny}]}`,
			`NetworkPolicy t0.p {tier: t0, types: [Ingress], ingress: [{action: Allow}]}`}, map[string]bool{"far db TCP 80": true},
	},
	"a tier without order is last": {[]string{`Tier t1 {}`, `NetworkPolicy t1.p {tier: t1, types: [Ingress], ingress: [{action: Deny}]}`,
		`NetworkPolicy p {types: [Ingress], ingress: [{action: Allow}]}`}, map[string]bool{"far db TCP 80": true}},
	"the end of a tier denies": {
		[]string{`Tier t1 {order: 1}`, `NetworkPolicy t1.p {tier: t1, types: [Ingress], ingress: [{action: Allow, protocol: UDP}]}`,
			`NetworkPolicy p {types: [Ingress], ingress: [{action: Allow}]}`}, map[string]bool{"far db UDP 80": true, "far db TCP 80": false},
	},
	"or passes": {[]string{`Tier t1 {order: 1, defaultAction: Pass}`,
		`NetworkPolicy t1.p {tier: t1, types: [Ingress], ingress: [{action: Deny, protocol: UDP}]}`,
		`NetworkPolicy p {types: [Ingress], ingress: [{action: Allow, protocol: TCP}]}`},
		map[string]bool{"far db UDP 80": false, "far db TCP 80": true, "far db SCTP 80": false}},
	"after the last tier all pass": {[]string{`Tier t1 {order: 1, defaultAction: Pass}`,
		`NetworkPolicy t1.p {tier: t1, types: [Ingress]}`}, map[string]bool{"far db TCP 80": true}},
	"Pass leaves the tier": {
		[]string{`Tier t1 {order: 1}`, `NetworkPolicy t1.a {tier: t1, types: [Ingress], ingress: [{action: Pass, protocol: TCP}]}`,
			`NetworkPolicy t1.b {tier: t1, types: [Ingress], ingress: [{action: Deny}]}`,
			`NetworkPolicy p {types: [Ingress], ingress: [{action: Allow}]}`}, map[string]bool{"far db TCP 80": true, "far db UDP 80": false},
	},
	"Pass of the last tier allows": {[]string{`NetworkPolicy p {types: [Ingress], ingress: [{action: Pass}]}`},
		map[string]bool{"far db TCP 80": true}},
	"a tier for other pods is none": {
		[]string{`Tier t1 {order: 1}`, `NetworkPolicy t1.p {tier: t1, selector: app == 'web', types: [Ingress]}`},
		map[string]bool{"far db TCP 80": true, "far web TCP 80": false},
	},
	"nor is one for the other direction": {[]string{`Tier t1 {order: 1}`,
		`NetworkPolicy t1.p {tier: t1, types: [Egress], egress: [{action: Allow}]}`}, map[string]bool{"far db TCP 80": true}},
	"a missing tier is last, and denies": {
		[]string{`Tier t9 {defaultAction: Pass}`, `NetworkPolicy t9.p {tier: t9, types: [Ingress], ingress: [{action: Allow, protocol: TCP}]}`,
			`NetworkPolicy a.p {tier: a, types: [Ingress], ingress: [{action: Allow, protocol: UDP}]}`}, map[string]bool{
			"far db TCP 80": true, "far db UDP 80": true, "far db SCTP 80": false,
		},
	},
	"the default tier is as it is": {[]string{`Tier default {order: 1, defaultAction: Pass}`, `NetworkPolicy p {types: [Ingress]}`},
		map[string]bool{"far db TCP 80": false}},
	"a default action that is none denies": {[]string{`Tier t1 {order: 1, defaultAction: Allow}`,
		`NetworkPolicy t1.p {tier: t1, types: [Ingress]}`}, map[string]bool{"far db TCP 80": false}},
	"before Kubernetes' NetworkPolicies": {[]string{`K8s p {podSelector: {}, ingress: [{}]}`,
		`NetworkPolicy p {order: 999, types: [Ingress], ingress: [{action: Deny, protocol: TCP}]}`},
		map[string]bool{"far db TCP 80": false, "far db UDP 80": true}},
	"after Kubernetes' NetworkPolicies": {[]string{`K8s p {podSelector: {}, ingress: [{ports: [{port: 80}]}]}`,
		`NetworkPolicy p {order: 1001, types: [Ingress], ingress: [{action: Deny, protocol: TCP}, {action: Allow, protocol: UDP}]}`},
		map[string]bool{"far db TCP 80": true, "far db TCP 81": false, "far db UDP 80": true, "far db SCTP 80": false}},
	"Pass leaves Kubernetes' out": {
		[]string{`K8s p {podSelector: {}}`, `NetworkPolicy p {order: 1, types: [Ingress], ingress: [{action: Pass, protocol: TCP}]}`},
		map[string]bool{"far db TCP 80": true, "far db UDP 80": false},
	},
	"a tier before the admins'": {[]string{`Tier t1 {order: 999}`,
		`NetworkPolicy t1.p {tier: t1, types: [Ingress], ingress: [{action: Allow, protocol: TCP}, {action: Pass}]}`,
		`Cluster p {tier: Admin, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`},
		map[string]bool{"far db TCP 80": true, "far db UDP 80": false}},
	"one between the admins' and Kubernetes'": {[]string{`Tier t1 {order: 2000}`,
		`NetworkPolicy t1.p {tier: t1, types: [Ingress], ingress: [{action: Allow, protocol: TCP}, {action: Pass, protocol: UDP}]}`,
		`Cluster p {tier: Admin, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: ` +
			`{destinationPort: {number: 80}}}]}]}`, `K8s p {podSelector: {}}`}, map[string]bool{
		"far db TCP 80": false, "far db TCP 81": true, "far db UDP 80": false, "far db SCTP 80": false,
	}},
	"the baseline after the default tier": {[]string{`NetworkPolicy p {types: [Ingress], ingress: [{action: Pass, protocol: TCP}]}`,
		`Cluster p {tier: Baseline, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {env: prod}}}]}]}`},
		map[string]bool{"far db TCP 80": false, "web db TCP 80": true, "web db UDP 80": false}},
	"a missing tier after the baseline": {[]string{`NetworkPolicy p {tier: none, types: [Ingress]}`,
		`Cluster p {tier: Baseline, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {env: prod}}}]}]}`},
		map[string]bool{"far db TCP 80": true, "web db TCP 80": false}},
	"both ends must allow": {
		[]string{`NetworkPolicy p {selector: app == 'web', types: [Egress], egress: [{action: Allow, protocol: TCP}]}`,
			`NetworkPolicy q {selector: app == 'db', types: [Ingress], ingress: [{action: Allow, protocol: UDP}]}`},
		map[string]bool{"web db TCP 80": false, "web db UDP 80": false, "web far TCP 80": true, "far db UDP 80": true},
	},
}

func TestCalicoRules(t *testing.T) { testRows(t, ruleRows) }

func TestCalicoOrder(t *testing.T) { testRows(t, orderRows) }

func testRows(t *testing.T, rows map[string]row) {
	for what, r := range rows {
		t.Run(what, func(t *testing.T) {
			c := calicoCluster(t, r.policies)
			for text, want := range r.packets {
				if got := c.Allowed(calicoPacket(t, text)); got != want {
					t.Errorf("%s: %v under %q", text, got, r.policies)
				}
			}
		})
	}
}

// Which rule decides, and which ones only log before.
func TestDecision(t *testing.T) {
	c := calicoCluster(t, []string{
		`Tier t1 {order: 1, defaultAction: Pass}`,
		`GlobalNetworkPolicy t1.log {tier: t1, types: [Ingress], ingress: [{action: Log, protocol: UDP}, {action: Log}, {action: Pass, ` +
			`protocol: TCP}, {action: Log}]}`,
		`NetworkPolicy default.p {types: [Ingress], ingress: [{action: Deny, protocol: SCTP}, {action: Log, protocol: TCP}, {action: Allow, ` +
			`protocol: TCP, destination: {ports: [80]}}]}`,
	})
	for text, want := range map[string]string{
		"far db TCP 80": "true default CalicoNetworkPolicy a/default.p 2 after [{CalicoGlobalNetworkPolicy  t1.log 1} " +
			"{CalicoNetworkPolicy a default.p 1}]",
		"far db TCP 81": "false default CalicoNetworkPolicy a/default.p -1 after [{CalicoGlobalNetworkPolicy  t1.log 1} " +
			"{CalicoNetworkPolicy a default.p 1}]",
		"far db SCTP 81": "false default CalicoNetworkPolicy a/default.p 0 after [{CalicoGlobalNetworkPolicy  t1.log 1} " +
			"{CalicoGlobalNetworkPolicy  t1.log 3}]",
		"db far TCP 81": "true   / -1 after [{CalicoGlobalNetworkPolicy  t1.log 1}]",
	} {
		p := calicoPacket(t, text)
		d := c.Judge(c.PodAt(p.To), true, p)
		if got := fmt.Sprintf("%v %s %s %s/%s %d after %v", d.Allow, d.Tier, d.Kind, d.Namespace, d.Name, d.Rule, d.Logs); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

func calicoCluster(t *testing.T, policies []string) *Cluster {
	t.Helper()
	lists := map[string]string{
		"K8s": "NetworkPolicies", "Cluster": "ClusterNetworkPolicies", "NetworkPolicy": "CalicoNetworkPolicies",
		"GlobalNetworkPolicy": "CalicoGlobalNetworkPolicies", "Tier": "Tiers",
	}
	items := map[string]string{}
	for _, text := range policies {
		f := strings.SplitN(text, " ", 3)
		if lists[f[0]] == "" {
			t.Fatalf("no kind of policy: %s", text)
		}
		items[lists[f[0]]] += fmt.Sprintf("- {metadata: {namespace: %s, name: %s}, spec: %s}\n",
			map[bool]string{true: "a"}[f[0] == "K8s" || f[0] == "NetworkPolicy"], f[1], f[2])
	}
	text := calicoWorld
	for list, all := range items {
		text += list + ":\n" + all
	}
	c := &Cluster{}
	if err := yaml.UnmarshalStrict([]byte(text), c); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return c
}

// calicoPacket reads "web 10.0.0.2 TCP 80 1024", the last of which is the source port, "web db ICMP 8/0", and "web db
// 47".
func calicoPacket(t *testing.T, text string) Packet {
	t.Helper()
	f := append(strings.Fields(text), "0", "0")
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	p := Packet{From: party(f[0]), To: party(f[1])}
	switch kind, code, _ := strings.Cut(f[3], "/"); f[2] {
	case "ICMP":
		p.Protocol, p.Type, p.Code = ICMP, uint8(number(kind)), uint8(number(code))
	case "ICMPv6":
		p.Protocol, p.Type, p.Code = ICMPv6, uint8(number(kind)), uint8(number(code))
	default:
		if p.Protocol = protocolNumber(f[2]); p.Protocol == 0 {
			p.Protocol = uint8(number(f[2]))
		}
		p.Port, p.SourcePort = uint16(number(f[3])), uint16(number(f[4]))
	}
	return p
}

func party(text string) netip.Addr {
	if a, ok := map[string]string{"web": "10.0.0.1", "db": "10.0.0.2", "far": "10.0.0.3"}[text]; ok {
		text = a
	}
	return netip.MustParseAddr(text)
}
