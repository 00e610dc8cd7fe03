// Package policy proves network policy: internal/policy decides generated clusters as the reference of policytest does,
// interpreted and as the packets of a node meet it.
package policy

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

var (
	cases       = flag.Int("cases", 10_000, "how many packets TestDecide judges")
	calicoCases = flag.Int("calico-cases", tier.Size(20_000, 100_000), "how many packets TestCalico judges")
	seed        = flag.Uint64("seed", 0, "of the first generated cluster; the next ones follow")
)

// perCluster is how many packets are judged in each cluster.
const perCluster = 50

// The ruleset decides on every packet as the reference does, and a denied one is counted for the same policy.
func TestDecide(t *testing.T) {
	judged := 0
	for s := *seed; judged < *cases; s++ {
		g := policytest.NewGenerator(s)
		c := g.Cluster()
		v := newView(c)
		for _, p := range g.Packets(c, perCluster) {
			judged++
			if v.wrong(p) != "" {
				t.Fatal(report(s, c, p, func(c *policytest.Cluster) string { return newView(c).wrong(p) }))
			}
		}
	}
}

// So it does with Calico's policies among the others.
func TestCalico(t *testing.T) {
	judged, enough := 0, *calicoCases
	if testing.Short() {
		enough = min(enough, 10_000)
	}
	for s := *seed; judged < enough; s++ {
		g := policytest.NewGenerator(s)
		c := g.CalicoCluster()
		v := newView(c)
		for _, p := range g.CalicoPackets(c, perCluster) {
			judged++
			if v.wrong(p) != "" {
				t.Fatal(report(s, c, p, func(c *policytest.Cluster) string { return newView(c).wrong(p) }))
			}
		}
	}
}

// While labels of a namespace or of service accounts are not known, nothing passes that these labels, whatever they
// are, could forbid.
func TestUnknownLabels(t *testing.T) {
	unknown(t, policytest.Generator.Cluster, policytest.Generator.Packets, func(s *policy.State) { delete(s.Namespaces, "ns-0") })
	unknown(t, policytest.Generator.CalicoCluster, policytest.Generator.CalicoPackets, func(s *policy.State) { delete(s.Namespaces, "ns-0") })
	unknown(t, policytest.Generator.CalicoCluster, policytest.Generator.CalicoPackets, func(s *policy.State) { s.Accounts = nil })
}

var worlds = flag.Uint64("worlds", tier.Size[uint64](500, 2000), "in how many clusters TestUnknownLabels forgets one thing, three times")

func unknown(t *testing.T, cluster func(policytest.Generator) *policytest.Cluster,
	packets func(policytest.Generator, *policytest.Cluster, int) []policytest.Packet, forget func(*policy.State)) {
	t.Helper()
	enough := *worlds
	if testing.Short() {
		enough = min(enough, 300)
	}
	for s := *seed; s < *seed+enough; s++ {
		g := policytest.NewGenerator(s)
		c := cluster(g)
		state := c.State()
		forget(&state)
		v := view{c, state, policy.Compile(state), nil}
		for _, p := range packets(g, c, perCluster) {
			for d, pod := range ends(c, p) {
				if pod != nil && pod.Spec.NodeName == policytest.Node && v.decide(pod, d, p).Allow && !c.Judge(pod, d == policy.Ingress, p).Allow {
					t.Fatalf("-seed %d: %s passes %s of %s\n%s", s, p, d, keyOf(pod), c)
				}
			}
		}
	}
}

// Pods outside of the Interest make no difference to the node's pods.
func TestInterest(t *testing.T) {
	left := 0
	for s := *seed; s < *seed+400; s++ {
		g := policytest.NewGenerator(s)
		c := g.CalicoCluster()
		state, all := c.State(), len(c.Pods)
		interest, local := state.Interest(), slices.Collect(maps.Values(state.Local))
		maps.DeleteFunc(state.Pods, func(key policy.PodKey, _ *policy.Pod) bool {
			return !interest.All && !slices.Contains(interest.Namespaces, key.Namespace) && !slices.Contains(local, key)
		})
		left += all - len(state.Pods)
		v := view{c, state, policy.Compile(state), nil}
		for _, p := range g.CalicoPackets(c, perCluster) {
			for d, pod := range ends(c, p) {
				if pod == nil || pod.Spec.NodeName != policytest.Node {
					continue
				}
				if got, want := v.decide(pod, d, p), c.Judge(pod, d == policy.Ingress, p); got.Allow != want.Allow || !got.Allow && got.By != by(want) {
					t.Fatalf("-seed %d: %s: %s of %s with an interest in %+v: %+v, the reference says %+v\n%s", s, p, d,
						keyOf(pod), interest, got, want, c)
				}
			}
		}
	}
	if left == 0 {
		t.Error("all pods are of interest")
	}
}

// report shows a failing cluster.
func report(seed uint64, c *policytest.Cluster, p policytest.Packet, check func(*policytest.Cluster) string) string {
	small := policytest.Shrink(c, func(c *policytest.Cluster) bool { return check(c) != "" })
	return fmt.Sprintf("-seed %d: %s: %s\nThe smallest cluster that shows it:\n%s", seed, p, check(small), small)
}

// view is a cluster with what internal/policy makes of it.
type view struct {
	*policytest.Cluster
	policy.State
	*policy.Compiled
	judge *policy.Judge // of clusters with a host endpoint
}

func newView(c *policytest.Cluster) view {
	state := c.State()
	return view{c, state, policy.Compile(state), nil}
}

// wrong returns how the ruleset, or the explanation, differs from the reference on a packet, empty if they agree.
func (v view) wrong(p policytest.Packet) string {
	explained := policy.Explain(v.State, policy.Party{Address: p.From}, policy.Party{Address: p.To}, coreOf(p))
	for d, pod := range ends(v.Cluster, p) {
		if pod == nil {
			continue
		}
		why := explained.Egress
		if d == policy.Ingress {
			why = explained.Ingress
		}
		want := v.Judge(pod, d == policy.Ingress, p)
		if why == nil || why.Pod != keyOf(pod) || why.Verdict.Allow != want.Allow || why.Policy != by(want) || why.Rule != want.Rule ||
			why.Tier != want.Tier || !slices.Equal(why.Logs, logsOf(want)) {
			return fmt.Sprintf("%s of %s is explained by %+v, the reference says %+v", d, keyOf(pod), why, want)
		}
		if pod.Spec.NodeName != policytest.Node {
			continue
		}
		if got := v.decide(pod, d, p); got.Allow != want.Allow || !got.Allow && got.By != by(want) && !v.unnamed(got, d, why) {
			return fmt.Sprintf("%s of %s: %+v, the reference says %+v", d, keyOf(pod), got, want)
		}
		if got := v.Logs(policytest.LinkOf(pod), d, peerOf(d, p), coreOf(p)); !slices.Equal(got, logsOf(want)) {
			return fmt.Sprintf("%s of %s logs for %v, the reference says %+v", d, keyOf(pod), got, want)
		}
	}
	return ""
}

// namedDenials is how many policies of a tier a program denies by name; the others share a verdict that has their kind
// alone.
const namedDenials = 4

// unnamed reports whether a denial is by a policy that shares its verdict with others.
func (v view) unnamed(got policy.Verdict, d policy.Direction, why *policy.Judgement) bool {
	denying := 0
	for _, p := range v.State.Policies {
		if p.Tier.Name == why.Tier && slices.Contains(why.Selecting, p.ID) &&
			slices.ContainsFunc(p.Rules[d], func(r policy.Rule) bool { return r.Action == policy.Deny }) {
			denying++
		}
	}
	return got.By == policy.ID{Kind: why.Policy.Kind} && denying > namedDenials
}

func (v view) decide(pod *api.Pod, d policy.Direction, p policytest.Packet) policy.Verdict {
	return v.Decide(policytest.LinkOf(pod), d, peerOf(d, p), coreOf(p))
}

func peerOf(d policy.Direction, p policytest.Packet) netip.Addr {
	if d == policy.Ingress {
		return p.From
	}
	return p.To
}

// coreOf is a packet as policies read it.
func coreOf(p policytest.Packet) policy.Packet {
	to := policy.Packet{Protocol: p.Protocol, Port: p.Port, SourcePort: p.SourcePort}
	if p.Protocol == policytest.ICMP || p.Protocol == policytest.ICMPv6 {
		to.Port = uint16(p.Type)<<8 | uint16(p.Code)
	}
	return to
}

// ends are the pods that a packet goes to or comes from, nil where there is none.
func ends(c *policytest.Cluster, p policytest.Packet) map[policy.Direction]*api.Pod {
	return map[policy.Direction]*api.Pod{policy.Egress: c.PodAt(p.From), policy.Ingress: c.PodAt(p.To)}
}

func by(d policytest.Decision) policy.ID {
	return policy.ID{Kind: d.Kind, Namespace: d.Namespace, Name: d.Name}
}

func logsOf(d policytest.Decision) (all []policy.LogRule) {
	for _, l := range d.Logs {
		all = append(all, policy.LogRule{Policy: policy.ID{Kind: l.Kind, Namespace: l.Namespace, Name: l.Name}, Rule: l.Rule})
	}
	return all
}
