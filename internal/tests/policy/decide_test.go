// Package policy proves network policy: what internal/policy makes of generated clusters is what the reference of policytest says, interpreted
// and as the packets of a node meet it.
package policy

import (
	"flag"
	"fmt"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

var (
	cases = flag.Int("cases", 10_000, "how many packets TestDecide judges")
	seed  = flag.Uint64("seed", 0, "of the first generated cluster; the next ones follow")
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

// While it is not known what labels a namespace has, nothing passes that its labels, whatever they are, could forbid.
func TestUnknownNamespace(t *testing.T) {
	for s := *seed; s < *seed+100; s++ {
		g := policytest.NewGenerator(s)
		c := g.Cluster()
		state := c.State()
		delete(state.Namespaces, "ns-0")
		v := view{c, state, policy.Compile(state)}
		for _, p := range g.Packets(c, perCluster) {
			for d, pod := range ends(c, p) {
				if pod != nil && pod.Spec.NodeName == policytest.Node && v.decide(pod, d, p).Allow && !c.Judge(pod, d == policy.Ingress, p).Allow {
					t.Fatalf("-seed %d: %s passes %s of %s\n%s", s, p, d, keyOf(pod), c)
				}
			}
		}
	}
}

// report is what is left of a failing cluster.
func report(seed uint64, c *policytest.Cluster, p policytest.Packet, check func(*policytest.Cluster) string) string {
	small := policytest.Shrink(c, func(c *policytest.Cluster) bool { return check(c) != "" })
	return fmt.Sprintf("-seed %d: %s: %s\nThe smallest cluster that shows it:\n%s", seed, p, check(small), small)
}

// view is a cluster with what internal/policy makes of it.
type view struct {
	*policytest.Cluster
	policy.State
	*policy.Compiled
}

func newView(c *policytest.Cluster) view {
	state := c.State()
	return view{c, state, policy.Compile(state)}
}

// wrong says in which way the ruleset, or the explanation, and the reference disagree on a packet, empty if they agree.
func (v view) wrong(p policytest.Packet) string {
	explained := policy.Explain(v.State, policy.Party{Address: p.From}, policy.Party{Address: p.To}, policy.Packet{Protocol: p.Protocol, Port: p.Port})
	for d, pod := range ends(v.Cluster, p) {
		if pod == nil {
			continue
		}
		why := explained.Egress
		if d == policy.Ingress {
			why = explained.Ingress
		}
		want := v.Judge(pod, d == policy.Ingress, p)
		if why == nil || why.Pod != keyOf(pod) || why.Verdict.Allow != want.Allow || why.Policy != by(want) || why.Rule != want.Rule {
			return fmt.Sprintf("%s of %s is explained by %+v, the reference says %+v", d, keyOf(pod), why, want)
		}
		if pod.Spec.NodeName != policytest.Node {
			continue
		}
		if got := v.decide(pod, d, p); got.Allow != want.Allow || !got.Allow && got.By != by(want) {
			return fmt.Sprintf("%s of %s: %+v, the reference says %+v", d, keyOf(pod), got, want)
		}
	}
	return ""
}

func (v view) decide(pod *api.Pod, d policy.Direction, p policytest.Packet) policy.Verdict {
	peer := p.To
	if d == policy.Ingress {
		peer = p.From
	}
	return v.Decide(policytest.LinkOf(pod), d, peer, policy.Packet{Protocol: p.Protocol, Port: p.Port})
}

// ends are the pods that a packet goes to or comes from, nil where there is none.
func ends(c *policytest.Cluster, p policytest.Packet) map[policy.Direction]*api.Pod {
	return map[policy.Direction]*api.Pod{policy.Egress: c.PodAt(p.From), policy.Ingress: c.PodAt(p.To)}
}

func by(d policytest.Decision) policy.ID {
	return policy.ID{Kind: d.Kind, Namespace: d.Namespace, Name: d.Name}
}
