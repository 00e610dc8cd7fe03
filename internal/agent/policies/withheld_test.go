package policies

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

var worlds = flag.Uint64("worlds", tier.Size[uint64](20_000, 100_000),
	"how often TestNothingPassesByWhatIsWithheld knows a cluster in part")

// views is how many parts of each cluster are known in turn: to generate it, and to judge packets, takes as long as to
// compile some.
const views = 10

// While the API server has listed a part of what policies name, nothing passes that they deny, and nothing is logged
// that no Log matches, once all is listed: see withhold.
func TestNothingPassesByWhatIsWithheld(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // or the collector takes a quarter of the time
	enough := *worlds / views
	if testing.Short() {
		enough = min(enough, 150)
	}
	var asked, allowed, withheld, logged, atHosts, byHosts atomic.Int64
	t.Run("all", func(t *testing.T) {
		shards := uint64(runtime.GOMAXPROCS(0))
		for first := range shards {
			t.Run(fmt.Sprint(first), func(t *testing.T) {
				t.Parallel()
				for seed := first; seed < enough; seed += shards {
					w := newWithheld(seed)
					for i := range uint64(views) {
						w.judge(t, i)
					}
					asked.Add(w.asked)
					allowed.Add(w.allowed)
					withheld.Add(w.closed)
					logged.Add(w.logged)
					atHosts.Add(w.atHosts)
					byHosts.Add(w.byHosts)
				}
			})
		}
	})
	t.Logf("of %d packets pass %d, %d are logged, %d policies are closed; of %d pass %d host endpoints", asked.Load(), allowed.Load(),
		logged.Load(), withheld.Load(), atHosts.Load(), byHosts.Load())
	if byHosts.Load() == 0 || byHosts.Load() == atHosts.Load() || allowed.Load() == 0 || withheld.Load() == 0 || logged.Load() == 0 ||
		allowed.Load() == asked.Load() {
		t.Error("the test shows nothing")
	}
}

// withheld is a partly known cluster, and packets of this node's pods and host endpoints.
type withheld struct {
	seed                           uint64
	c                              *policytest.Cluster
	full                           cluster.PolicyView
	reader                         cluster.PolicyReader
	packets                        []judged
	hosts                          []atHost
	local                          map[netip.Addr]policy.PodKey
	asked, allowed, closed, logged int64
	atHosts, byHosts               int64 // packets at host endpoints, and those that pass
}

// judged is a packet at one of its ends.
type judged struct {
	policytest.Packet
	direction policy.Direction
	link      string
	peer      netip.Addr
	core      policy.Packet
	// allowed and logs are the results for the whole cluster.
	allowed func() bool
	logs    func() []policytest.Log
}

func newWithheld(seed uint64) *withheld {
	g := policytest.NewGenerator(seed)
	c := g.NamingCluster()
	w := &withheld{seed: seed, c: c, full: fullView(c)}
	for i, p := range g.NamedPackets(c, 24) {
		core := policy.Packet{Protocol: p.Protocol, Port: p.Port, SourcePort: p.SourcePort}
		for d, at := range [2][2]netip.Addr{policy.Ingress: {p.To, p.From}, policy.Egress: {p.From, p.To}} {
			pod, ingress := c.PodAt(at[0]), policy.Direction(d) == policy.Ingress
			if stage := policy.Stage(i) % policy.Stages; len(c.HostEndpoints) > 0 {
				w.hosts = append(w.hosts, atHost{p, stage, policy.Direction(d), at[0], at[1], core,
					sync.OnceValue(func() policy.Verdict { return verdictAtHost(c, stage, ingress, p) })})
			}
			if pod == nil || pod.Spec.NodeName != policytest.Node {
				continue
			}
			w.packets = append(w.packets,
				judged{p, policy.Direction(d), LinkOf(policy.PodKey{Namespace: pod.Namespace, Name: pod.Name}), at[1], core,
					sync.OnceValue(func() bool { return c.Judge(pod, ingress, p).Allow }),
					sync.OnceValue(func() []policytest.Log { return c.Matching(pod, ingress, p) })})
		}
	}
	w.local = map[netip.Addr]policy.PodKey{}
	for _, key := range w.full.Local {
		for _, a := range w.full.Pods[key].Addresses {
			w.local[a] = key
		}
	}
	return w
}

// atHost is a packet at the uplink's host endpoint.
type atHost struct {
	policytest.Packet
	stage     policy.Stage
	direction policy.Direction
	own, peer netip.Addr
	core      policy.Packet
	verdict   func() policy.Verdict // for the whole cluster
}

func verdictAtHost(c *policytest.Cluster, stage policy.Stage, ingress bool, p policytest.Packet) policy.Verdict {
	h := c.Governs(policytest.Uplink, stage)
	if h == nil {
		return policy.Verdict{Allow: true}
	}
	d := c.JudgeHost(h, stage, ingress, p)
	early := stage == policy.Untranslated || stage == policy.Untracked
	return policy.Verdict{Allow: d.Allow, Final: d.Allow && early && d.Kind != ""}
}

// judge knows the i-th part of the cluster.
func (w *withheld) judge(t *testing.T, i uint64) {
	view := withhold(w.full, rand.New(rand.NewPCG(w.seed, i+1)))
	n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
	n.model.reader = w.reader
	n.learn(time.Now(), view)
	w.reader = n.model.reader
	w.closed += int64(len(n.model.closed))
	rules := n.compiled.rules
	// Packets to and from a local pod begin with its route, by which its address is known.
	unrouted := func(a netip.Addr) bool {
		key, local := w.local[a]
		return local && len(view.Pods[key].Addresses) == 0
	}
	for _, p := range w.packets {
		if unrouted(p.peer) {
			continue
		}
		w.asked++
		if rules.Decide(p.link, p.direction, p.peer, p.core).Allow {
			if w.allowed++; !p.allowed() {
				t.Fatalf("seed %d, part %d: %s passes %s of %s\n%s", w.seed, i, p, p.direction, p.link, w.c)
			}
		}
		for _, l := range rules.Logs(p.link, p.direction, p.peer, p.core) {
			w.logged++
			if !slices.Contains(p.logs(), policytest.Log{Kind: l.Policy.Kind, Namespace: l.Policy.Namespace, Name: l.Policy.Name, Rule: l.Rule}) {
				t.Fatalf("seed %d, part %d: %v logs %s %s of %s\n%s", w.seed, i, l, p, p.direction, p.link, w.c)
			}
		}
	}
	for _, p := range w.hosts {
		if unrouted(p.own) || unrouted(p.peer) {
			continue
		}
		w.atHosts++
		got := rules.DecideHost(policytest.Uplink, p.stage, p.direction, p.own, p.peer, p.core)
		if got.Allow {
			w.byHosts++
			if want := p.verdict(); !want.Allow || got.Final && !want.Final {
				t.Fatalf("seed %d, part %d: %s passes %s of the host, stage %d: %+v, want %+v\n%s", w.seed, i, p, p.direction, p.stage, got, want, w.c)
			}
		}
	}
}

// fullView returns the view of a feed that has listed everything.
func fullView(c *policytest.Cluster) cluster.PolicyView {
	state := c.State()
	v := cluster.PolicyView{Complete: true, Node: policytest.Node, Namespaces: state.Namespaces, Pods: state.Pods,
		Nodes: state.Nodes, NodesKnown: true,
		Local: slices.Collect(maps.Values(state.Local))}
	slices.SortFunc(v.Local, comparePods)
	v.NetworkPolicies, v.ClusterNetworkPolicies = pointers(c.NetworkPolicies), pointers(c.ClusterNetworkPolicies)
	v.Calico = cluster.CalicoView{
		NetworkPolicies: pointers(c.CalicoNetworkPolicies), GlobalNetworkPolicies: pointers(c.CalicoGlobalNetworkPolicies),
		Tiers:       pointers(c.Tiers),
		NetworkSets: pointers(c.NetworkSets), GlobalNetworkSets: pointers(c.GlobalNetworkSets), HostEndpoints: pointers(c.HostEndpoints),
		Services: state.Services, Accounts: state.Accounts,
	}
	return v
}

func pointers[T any](all []T) (to []*T) {
	for i := range all {
		to = append(to, &all[i])
	}
	return to
}

// withhold returns the view of a feed that has listed a part: pods of some namespaces, and of others some or none; all
// Namespaces except some with listed pods; nodes and service accounts or not, and some Services. Addresses of pods may
// be unsure. Some may be other pods', or no pod's.
func withhold(v cluster.PolicyView, r *rand.Rand) cluster.PolicyView {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	listed, namespaces := map[string]bool{}, maps.Clone(v.Namespaces)
	all, most := chance(25), 30+r.IntN(60)
	for _, namespace := range slices.Sorted(maps.Keys(v.Namespaces)) {
		if listed[namespace] = all || chance(most); listed[namespace] {
			v.Known = append(v.Known, cluster.PodScope(namespace))
			if chance(30) {
				delete(namespaces, namespace)
			}
		}
	}
	if all {
		v.Known = []cluster.PodScope{""}
	}
	v.Namespaces = namespaces
	known, left := map[policy.PodKey]*policy.Pod{}, []netip.Addr{nobodys}
	var doubted []netip.Addr
	for _, key := range slices.SortedFunc(maps.Keys(v.Pods), comparePods) {
		pod := v.Pods[key]
		_, local := slices.BinarySearchFunc(v.Local, key, comparePods)
		if local && chance(10) { // before the kernel has a route
			without := *pod
			without.Addresses, pod = nil, &without
		}
		if !local {
			if !listed[key.Namespace] && chance(60) {
				left = append(left, pod.Addresses...)
				continue
			}
			switch {
			case chance(20):
				unsure := *pod
				unsure.Unsure = left[r.IntN(len(left)):]
				pod, left = &unsure, []netip.Addr{nobodys}
			case chance(20):
				unsure := *pod
				n := r.IntN(len(pod.Addresses) + 1)
				unsure.Addresses, unsure.Unsure = pod.Addresses[:n:n], pod.Addresses[n:]
				pod = &unsure
			}
		}
		known[key] = pod
		doubted = append(doubted, pod.Unsure...)
	}
	for _, key := range slices.SortedFunc(maps.Keys(known), comparePods) { // several pods may have one
		if _, local := slices.BinarySearchFunc(v.Local, key, comparePods); !local && len(doubted) > 0 && chance(20) {
			another := *known[key]
			another.Unsure, known[key] = append(slices.Clip(another.Unsure), doubted[r.IntN(len(doubted)):]...), &another
		}
	}
	v.Pods = known
	if chance(40) {
		v.Nodes, v.NodesKnown = nil, false
	}
	if chance(30) {
		v.Calico.Accounts, v.AccountsMissing = nil, true
	}
	v.MissingServices, v.Calico.Services = map[string]bool{}, maps.Clone(v.Calico.Services)
	for _, s := range slices.SortedFunc(maps.Keys(v.Calico.Services), func(a, b policy.Service) int {
		return comparePods(policy.PodKey(a), policy.PodKey(b))
	}) {
		if v.MissingServices[s.Name] || chance(30) {
			v.MissingServices[s.Name] = true
		}
	}
	maps.DeleteFunc(v.Calico.Services, func(s policy.Service, _ []policy.ServiceEndpoint) bool { return v.MissingServices[s.Name] })
	return v
}

// nobodys is the address of a pod that does not exist.
var nobodys, _ = policytest.PodAddress(policytest.MaxPods - 1)

func comparePods(a, b policy.PodKey) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
