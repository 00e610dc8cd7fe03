package policies

import (
	"flag"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

var worlds = flag.Uint64("worlds", 2000, "how many clusters TestNothingPassesByWhatIsWithheld knows in part")

// While the API server has listed a part of what policies name, nothing passes that they deny once all is listed: of other nodes' pods some are
// withheld, and of nodes, Services and service accounts all or none.
func TestNothingPassesByWhatIsWithheld(t *testing.T) {
	enough, allowed, withheld := *worlds, 0, 0
	if testing.Short() {
		enough = min(enough, 300)
	}
	for seed := range enough {
		g := policytest.NewGenerator(seed)
		c := g.CalicoCluster()
		view := withhold(c, rand.New(rand.NewPCG(seed, 1)))
		n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
		n.learn(time.Now(), view)
		withheld += len(n.model.closed)
		links, _ := Links(n.model.view.Local)
		for _, p := range g.CalicoPackets(c, 20) {
			for d, at := range [2][2]netip.Addr{policy.Ingress: {p.To, p.From}, policy.Egress: {p.From, p.To}} {
				pod := c.PodAt(at[0])
				if pod == nil || pod.Spec.NodeName != policytest.Node {
					continue
				}
				core := policy.Packet{Protocol: p.Protocol, Port: p.Port, SourcePort: p.SourcePort}
				if p.Protocol == policytest.ICMP || p.Protocol == policytest.ICMPv6 {
					core.Port = uint16(p.Type)<<8 | uint16(p.Code)
				}
				link := linkOf(links, policy.PodKey{Namespace: pod.Namespace, Name: pod.Name})
				if !n.compiled.rules.Decide(link, policy.Direction(d), at[1], core).Allow {
					continue
				}
				if allowed++; !c.Judge(pod, policy.Direction(d) == policy.Ingress, p).Allow {
					t.Fatalf("seed %d: %s passes %s of %s/%s\n%s", seed, p, policy.Direction(d), pod.Namespace, pod.Name, c)
				}
			}
		}
	}
	if allowed == 0 || withheld == 0 {
		t.Errorf("%d packets pass, and %d policies are closed: the test shows nothing", allowed, withheld)
	}
}

func linkOf(links map[string]policy.PodKey, key policy.PodKey) string {
	for link, k := range links {
		if k == key {
			return link
		}
	}
	return ""
}

// withhold is what a feed shows of a cluster while it has listed a part.
func withhold(c *policytest.Cluster, r *rand.Rand) cluster.PolicyView {
	state := c.State()
	v := cluster.PolicyView{Complete: true, Namespaces: state.Namespaces, Pods: state.Pods, Nodes: state.Nodes, NodesKnown: true,
		Local: slices.Collect(maps.Values(state.Local))}
	slices.SortFunc(v.Local, func(a, b policy.PodKey) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	})
	maps.DeleteFunc(v.Pods, func(key policy.PodKey, _ *policy.Pod) bool { return !slices.Contains(v.Local, key) && r.IntN(2) == 0 })
	v.NetworkPolicies, v.ClusterNetworkPolicies = pointers(c.NetworkPolicies), pointers(c.ClusterNetworkPolicies)
	v.Calico = cluster.CalicoView{
		NetworkPolicies: pointers(c.CalicoNetworkPolicies), GlobalNetworkPolicies: pointers(c.CalicoGlobalNetworkPolicies), Tiers: pointers(c.Tiers),
		NetworkSets: pointers(c.NetworkSets), GlobalNetworkSets: pointers(c.GlobalNetworkSets), Services: state.Services, Accounts: state.Accounts,
	}
	if r.IntN(2) == 0 {
		v.Nodes, v.NodesKnown = nil, false
	}
	if r.IntN(2) == 0 {
		v.Calico.Accounts, v.AccountsMissing = nil, true
	}
	if r.IntN(2) == 0 {
		v.MissingServices = map[string]bool{}
		for s := range state.Services {
			v.MissingServices[s.Name] = true
		}
		v.Calico.Services = nil
	}
	return v
}

func pointers[T any](all []T) (to []*T) {
	for i := range all {
		to = append(to, &all[i])
	}
	return to
}
