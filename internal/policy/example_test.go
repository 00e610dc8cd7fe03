package policy_test

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

const onlyClients = `
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: http}]}]
`

// shop is a node with one local pod, web, and a policy that admits clients to its port http.
func shop() policy.State {
	var p api.NetworkPolicy
	if err := yaml.Unmarshal([]byte(onlyClients), &p); err != nil {
		panic(err)
	}
	pod := func(name, addr string, ports ...policy.NamedPort) *policy.Pod {
		return &policy.Pod{
			PodKey: policy.PodKey{Namespace: "shop", Name: name}, Labels: map[string]string{"app": name},
			Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Ports: ports,
		}
	}
	state := policy.State{
		Local:      map[string]policy.PodKey{"cali1": {Namespace: "shop", Name: "web"}},
		Pods:       map[policy.PodKey]*policy.Pod{},
		Namespaces: map[string]map[string]string{"shop": {}},
		Policies:   []policy.Policy{policy.FromNetworkPolicy(&p)},
	}
	for _, p := range []*policy.Pod{
		pod("web", "10.65.0.1", policy.NamedPort{Name: "http", Protocol: policy.TCP, Port: 8080}),
		pod("client", "10.65.1.1"), pod("other", "10.65.1.2"),
	} {
		state.Pods[p.PodKey] = p
	}
	return state
}

// Compile makes what the kernel gets; Decide reads it as the kernel does.
func ExampleCompile() {
	compiled := policy.Compile(shop())
	for _, from := range []string{"10.65.1.1", "10.65.1.2"} {
		for _, port := range []uint16{8080, 22} {
			v := compiled.Decide("cali1", policy.Ingress, netip.MustParseAddr(from), policy.Packet{Protocol: policy.TCP, Port: port})
			fmt.Println(from, port, v.Allow)
		}
	}
	// Output:
	// 10.65.1.1 8080 true
	// 10.65.1.1 22 false
	// 10.65.1.2 8080 false
	// 10.65.1.2 22 false
}

// A Judge names the policy and the rule that decide.
func ExampleJudge_Judge() {
	state := shop()
	judge := policy.NewJudge(policy.Select(state), state.Pods)
	for _, from := range []string{"10.65.1.1", "10.65.1.2"} {
		j, _ := judge.Judge("cali1", policy.Ingress, netip.MustParseAddr(from), policy.Packet{Protocol: policy.TCP, Port: 8080})
		fmt.Println(from, j.Verdict.Allow, j.Policy, j.Rule)
	}
	// Output:
	// 10.65.1.1 true NetworkPolicy shop/web 0
	// 10.65.1.2 false NetworkPolicy shop/web -1
}
