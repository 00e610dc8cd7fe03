package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// Node is the node with the local pods; Generator makes a second one.
const Node = "node-0"

// Values for generated objects: few, so that policies, pods and packets meet.
var (
	podLabels       = map[string][]string{"app": {"web", "db", "api"}, "tier": {"x", "y"}}
	namespaceLabels = map[string][]string{"env": {"dev", "prod"}, "team": {"a", "b"}}
	nodeLabels      = map[string][]string{"rack": {"r1", "r2"}}
	portNames       = []string{"http", "dns", "metrics"}
	portNumbers     = []int32{53, 80, 81, 443, 8080}
	protocols       = []string{"TCP", "UDP", "SCTP"}
	cidrs           = []string{
		"0.0.0.0/0", "0.0.0.0/1", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.8/30", "10.0.0.8/29", "10.0.0.7/32", "10.0.0.10/32", "10.0.1.6/31",
		"172.16.0.0/24", "172.16.0.2/32", "192.168.1.0/24", "192.168.1.128/25", "192.168.1.200/32", "10.0.0.11/29", "010.000.000.008/30",
		"::/0", "fd00::/8", "fd00::/64", "fd00::8/125", "fd00::a/128", "fd01::/64", "2001:db8::/32", "2001:db8:8000::/33", "fd00::b/125",
		"::ffff:10.0.0.8/126", "::ffff:10.0.0.8/90",
	}
	unreadableCIDRs = []string{"", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "10.0.0.256/32", "fd00::/129", "fe80::1%eth0/64", "all"}
)

// PodAddress returns the addresses that Generator may give to its i-th pod.
func PodAddress(i int) (v4, v6 netip.Addr) {
	v4 = netip.AddrFrom4([4]byte{10, 0, byte(i / 6), byte(6 + i%6)})
	v6 = netip.MustParseAddr(fmt.Sprintf("fd00::%x", 6+i))
	return v4, v6
}

// MaxPods is the largest number of pods in a generated cluster.
const MaxPods = 12

// Generator makes the same objects from the same seed.
type Generator struct{ *rand.Rand }

// NewGenerator seeds a generator.
func NewGenerator(seed uint64) Generator { return Generator{rand.New(rand.NewPCG(seed, 0))} }

// Cluster generates up to four namespaces, two nodes, up to MaxPods pods and a few policies of both kinds.
func (g Generator) Cluster() *Cluster {
	c := &Cluster{Nodes: []api.Node{g.node(0), g.node(1)}}
	for i := range 1 + g.IntN(4) {
		c.Namespaces = append(c.Namespaces, g.namespace(i))
	}
	for i := range 2 + g.IntN(MaxPods-1) {
		c.Pods = append(c.Pods, g.pod(c, i))
	}
	kinds := g.IntN(4) // one of them has no policy but NetworkPolicies, one none but the others
	for i := range pick(g, 0, 1, 2, 3, 4, 5, 9) {
		if kinds != 0 {
			c.NetworkPolicies = append(c.NetworkPolicies, g.NetworkPolicy(c, i))
		}
	}
	for i := range pick(g, 0, 1, 2, 3, 4, 9) {
		if kinds != 1 {
			c.ClusterNetworkPolicies = append(c.ClusterNetworkPolicies, g.ClusterNetworkPolicy(i))
		}
	}
	return c
}

func (g Generator) node(i int) api.Node {
	return api.Node{
		Meta: api.Meta{Name: fmt.Sprintf("node-%d", i), Labels: g.labels(nodeLabels)},
		Status: api.NodeStatus{Addresses: []api.NodeAddress{
			{Type: "Hostname", Address: fmt.Sprintf("node-%d", i)},
			{Type: "InternalIP", Address: fmt.Sprintf("172.16.0.%d", 1+i)}, {Type: "InternalIP", Address: fmt.Sprintf("fd01::%d", 1+i)},
		}},
	}
}

func (g Generator) namespace(i int) api.Namespace {
	name := fmt.Sprintf("ns-%d", i)
	labels := g.labels(namespaceLabels)
	labels["kubernetes.io/metadata.name"] = name
	return api.Namespace{Meta: api.Meta{Name: name, Labels: labels}}
}

// Relabel changes the labels of a pod.
func (g Generator) Relabel(pod *api.Pod) { pod.Labels = g.labels(podLabels) }

func (g Generator) pod(c *Cluster, i int) api.Pod {
	pod := api.Pod{Meta: api.Meta{
		Namespace: c.Namespaces[g.IntN(len(c.Namespaces))].Name, Name: fmt.Sprintf("pod-%d", i), UID: fmt.Sprintf("uid-%d", i),
		Labels: g.labels(podLabels),
	}}
	node := 0
	if g.chance(25) {
		node = 1
	}
	pod.Spec.NodeName, pod.Spec.HostNetwork, pod.Status.Phase = c.Nodes[node].Name, g.chance(8), "Running"
	pod.Spec.Containers = []api.Container{g.container()}
	pod.Spec.InitContainers = []api.Container{g.container()}
	addresses := c.Nodes[node].Status.Addresses[1:]
	if !pod.Spec.HostNetwork {
		addresses = g.podAddresses(&pod, i)
	}
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, api.PodIP{IP: a.Address})
	}
	pod.Status.PodIP = addresses[0].Address
	if !pod.Spec.HostNetwork && g.chance(50) {
		annotate(&pod)
	}
	return pod
}

// podAddresses gives a pod one or both of its own addresses; a finished pod may show another pod's.
func (g Generator) podAddresses(pod *api.Pod, i int) []api.NodeAddress {
	if g.chance(12) {
		pod.Status.Phase = pick(g, "Succeeded", "Failed")
		i = g.IntN(MaxPods)
	}
	v4, v6 := PodAddress(i)
	all := []api.NodeAddress{{Address: v4.String()}, {Address: v6.String()}}
	from := pick(g, 0, 0, 0, 1)
	return all[from:max(from+1, 1+g.IntN(2))]
}

// annotate writes the addresses as the CNI plugin does.
func annotate(pod *api.Pod) {
	var all []string
	for _, a := range Addresses(pod) {
		all = append(all, netip.PrefixFrom(a, a.BitLen()).String())
	}
	pod.Annotations = map[string]string{api.AnnotationPodIP: all[0], api.AnnotationPodIPs: strings.Join(all, ",")}
}

func (g Generator) container() (c api.Container) {
	for _, name := range portNames {
		if g.chance(35) {
			c.Ports = append(c.Ports,
				api.ContainerPort{Name: name, Protocol: pick(g, "", "TCP", "TCP", "UDP", "SCTP"), ContainerPort: uint16(pick(g, portNumbers...))})
		}
	}
	return c
}

func (g Generator) labels(from map[string][]string) map[string]string {
	labels := map[string]string{}
	for _, key := range sortedKeys(from) {
		if g.chance(70) {
			labels[key] = pick(g, from[key]...)
		}
	}
	return labels
}

// selector generates a selector that matches everything or much of it.
func (g Generator) selector(from map[string][]string) (s api.LabelSelector) {
	for _, key := range sortedKeys(from) {
		switch g.IntN(5) {
		case 0:
			s.MatchLabels = map[string]string{key: pick(g, from[key]...)}
		case 1:
			s.MatchExpressions = append(s.MatchExpressions, g.requirement(key, from[key]))
		}
	}
	return s
}

func (g Generator) requirement(key string, values []string) api.LabelSelectorRequirement {
	r := api.LabelSelectorRequirement{Key: key, Operator: pick(g, "In", "NotIn", "Exists", "DoesNotExist")}
	if r.Operator == "In" || r.Operator == "NotIn" {
		r.Values = []string{pick(g, values...), pick(g, values...)}
	}
	return r
}

// peerSelector generates a selector that may be unreadable.
func (g Generator) peerSelector(from map[string][]string) *api.LabelSelector {
	s := g.selector(from)
	if g.chance(3) {
		s.MatchExpressions = append(s.MatchExpressions, pick(g,
			api.LabelSelectorRequirement{Key: "app", Operator: "Like", Values: []string{"web"}},
			api.LabelSelectorRequirement{Key: "app", Operator: "In"},
			api.LabelSelectorRequirement{Key: "app", Operator: "NotIn"}))
	}
	return &s
}

func (g Generator) cidr() string {
	if g.chance(3) {
		return pick(g, unreadableCIDRs...)
	}
	return pick(g, cidrs...)
}

func (g Generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g Generator, from ...T) T { return from[g.IntN(len(from))] }

// several makes up to n things.
func several[T any](g Generator, n int, one func() T) (all []T) {
	for range g.IntN(n + 1) {
		all = append(all, one())
	}
	return all
}
