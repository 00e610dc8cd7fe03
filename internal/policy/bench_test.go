package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// city is a cluster with 10,000 pods of 100 applications in 100 namespaces, 100 of them local, and 1,000 policies with
// 5 rules each.
func city(dense bool) State {
	s := State{Local: map[string]PodKey{}, Pods: map[PodKey]*Pod{}, Namespaces: map[string]map[string]string{}}
	for i := range 10_000 {
		ns := fmt.Sprintf("ns-%d", i%100)
		s.Namespaces[ns] = map[string]string{"kubernetes.io/metadata.name": ns, "team": fmt.Sprint(i % 10)}
		p := cityPod(i, ns)
		s.Pods[p.PodKey] = p
		if !dense && i < 100 || dense && i%100 == 0 {
			s.Local[fmt.Sprintf("cali%d", i)] = p.PodKey
		}
	}
	for i := range 1000 {
		s.Policies = append(s.Policies, FromNetworkPolicy(cityPolicy(i, dense)))
	}
	return s
}

func cityPod(i int, ns string) *Pod {
	return &Pod{PodKey: PodKey{ns, fmt.Sprintf("pod-%d", i)}, UID: fmt.Sprint(i),
		Labels:    map[string]string{"app": fmt.Sprintf("app-%d", i/100), "pod-template-hash": fmt.Sprint(i / 7), "role": fmt.Sprint(i % 20)},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}}
}

func cityPolicy(i int, dense bool) *api.NetworkPolicy {
	n := &api.NetworkPolicy{Meta: api.Meta{Namespace: fmt.Sprintf("ns-%d", i%100), Name: fmt.Sprintf("policy-%d", i)}}
	if dense {
		n.Namespace = "ns-0"
	}
	for j := range 5 {
		port := int32(1000 + i*5 + j)
		n.Spec.Ingress = append(n.Spec.Ingress, api.NetworkPolicyIngressRule{
			Ports: []api.NetworkPolicyPort{{Port: &api.IntOrString{Number: port}}},
			From: []api.NetworkPolicyPeer{
				{PodSelector: citySelector(i + j), NamespaceSelector: &api.LabelSelector{}},
				{IPBlock: &api.IPBlock{CIDR: fmt.Sprintf("172.16.%d.0/24", (i+j)%100), Except: []string{fmt.Sprintf("172.16.%d.8/29", (i+j)%100)}}},
			},
		})
	}
	return n
}

// citySelector reads two labels, so that pods of one application differ.
func citySelector(i int) *api.LabelSelector {
	return &api.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app-%d", i%100)},
		MatchExpressions: []api.LabelSelectorRequirement{{Key: "role", Operator: api.SelectorNotIn, Values: []string{fmt.Sprint(i % 20)}}}}
}

// admin adds ClusterNetworkPolicies that accept, deny and pass for all pods, some at ports, and some for networks.
func admin(s State, count int) State {
	for i := range count {
		c := &api.ClusterNetworkPolicy{Meta: api.Meta{Name: fmt.Sprintf("admin-%d", i)}}
		c.Spec.Tier, c.Spec.Priority = "Admin", int32(i)
		c.Spec.Subject.Namespaces = &api.LabelSelector{}
		for j, action := range []string{"Accept", "Deny", "Pass", "Deny"} {
			peer := api.ClusterNetworkPolicyPeer{
				Pods: &api.NamespacedPod{PodSelector: api.LabelSelector{MatchLabels: map[string]string{"role": fmt.Sprint((i + j) % 20)}}},
			}
			ports := []api.ClusterNetworkPolicyProtocol{
				{TCP: &api.ClusterNetworkPolicyPorts{DestinationPort: &api.ClusterNetworkPolicyPort{Number: int32(1000 + i*5 + j)}}},
			}
			c.Spec.Ingress = append(c.Spec.Ingress,
				api.ClusterNetworkPolicyIngressRule{Action: action, From: []api.ClusterNetworkPolicyPeer{peer}, Protocols: ports[:j%2]})
			nets := api.ClusterNetworkPolicyPeer{Networks: []string{fmt.Sprintf("10.0.%d.0/24", i%40)}}
			c.Spec.Egress = append(c.Spec.Egress,
				api.ClusterNetworkPolicyEgressRule{Action: action, To: []api.ClusterNetworkPolicyPeer{peer, nets}, Protocols: ports[:j%2]})
		}
		p, err := FromClusterNetworkPolicy(c)
		if err != nil {
			panic(err)
		}
		s.Policies = append(s.Policies, p)
	}
	return s
}

func report(b *testing.B, c *Compiled) {
	members := 0
	for _, ids := range c.Members {
		members += len(ids)
	}
	b.ReportMetric(float64(len(c.Programs)), "programs")
	b.ReportMetric(float64(members), "members")
	b.ReportMetric(float64(len(c.sets.ids)), "sets")
}

func BenchmarkCompile(b *testing.B) {
	for name, s := range map[string]State{"sparse": city(false), "dense": city(true), "sparse with admin": admin(city(false), 20),
		"dense with admin": admin(city(true), 20)} {
		b.Run(name, func(b *testing.B) {
			var c *Compiled
			for b.Loop() {
				c = Compile(s)
			}
			report(b, c)
		})
	}
}

// 30,000 policies with distinct subjects; few or none select one of 100 local pods: of one namespace, of 1,000, and of
// none.
func BenchmarkSelect(b *testing.B) {
	const count = 30_000
	not := func(i int) *api.LabelSelector {
		return &api.LabelSelector{MatchExpressions: []api.LabelSelectorRequirement{
			{Key: "app", Operator: api.SelectorNotIn, Values: []string{fmt.Sprint(i)}},
		}}
	}
	is := func(i int) *api.LabelSelector {
		return &api.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app-%d", i)}}
	}
	for name, c := range map[string]struct {
		subject func(int) *api.LabelSelector
		spread  int // namespaces; 0: of the cluster
	}{"equal, one namespace": {is, 1}, "equal, spread": {is, 1000}, "equal, of the cluster": {is, 0},
		"not equal, one namespace": {not, 1}, "not equal, spread": {not, 1000}, "not equal, of the cluster": {not, 0}} {
		s := city(true)
		s.Policies = nil
		for i := range count {
			p := FromNetworkPolicy(&api.NetworkPolicy{Meta: api.Meta{Namespace: fmt.Sprintf("ns-%d", i%max(c.spread, 1)), Name: fmt.Sprint(i)},
				Spec: api.NetworkPolicySpec{PodSelector: *c.subject(i)}})
			if c.spread == 0 {
				p.Subject.Namespace = ""
			}
			s.Policies = append(s.Policies, p)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Select(s)
			}
		})
	}
}

// A pod comes with new labels, and goes.
func BenchmarkUpdate(b *testing.B) {
	for name, s := range map[string]State{"sparse": city(false), "dense": city(true), "dense with admin": admin(city(true), 20)} {
		b.Run(name, func(b *testing.B) {
			c := Compile(s)
			pod := cityPod(5, "ns-5")
			pod.Name, pod.Addresses = "new", []netip.Addr{netip.MustParseAddr("10.9.9.9")}
			pod.Labels = maps.Clone(pod.Labels)
			i := 0
			for b.Loop() {
				i++
				pod.Labels["role"] = fmt.Sprint(i % 1000)
				s.Pods[pod.PodKey] = pod
				if _, ok := c.Update(s, []PodKey{pod.PodKey}); !ok {
					b.Fatal("compile again")
				}
				delete(s.Pods, pod.PodKey)
				c.Update(s, []PodKey{pod.PodKey})
			}
			b.ReportMetric(float64(len(c.Members[netip.MustParseAddr("10.0.0.5")])), "sets/pod")
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	c := Compile(city(true))
	addr := netip.MustParseAddr("10.0.0.5")
	for b.Loop() {
		c.Decide("cali0", Ingress, addr, Packet{Protocol: TCP, Port: 1100})
	}
}
