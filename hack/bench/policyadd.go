package main

import (
	"context"
	"fmt"
	"time"
)

// addPair is the same pod's ADD on two nodes, one after the other: where the agent enforces policies, and where it does not.
type addPair struct{ with, without cost }

// Indexes of the nodes of this part, apart from those of other parts.
const policyIndex = 242

// runPolicyADDs alternates between a node with policies and one without.
func (b *bench) runPolicyADDs(ctx context.Context) (all []addPair, err error) {
	policies := "/apis/networking.k8s.io/v1/namespaces/" + namespace + "/networkpolicies"
	if err := b.cluster.do("POST", policies, networkPolicy("all", object{}, object{}, 8080), nil); err != nil {
		return nil, err
	}
	var nodes [2]*policyNode
	for i, mode := range []string{"on", "off"} {
		n, err := b.newPolicyNode(ctx, policyIndex+i, mode, b.size.perRound)
		if err != nil {
			return nil, err
		}
		defer n.end()
		nodes[i] = n
	}
	if err := nodes[0].await(ctx, map[string]int{"endpoints": b.size.perRound}); err != nil {
		return nil, err
	}
	for round := range b.size.rounds + 1 {
		pairs, err := b.addRound(nodes)
		if err != nil {
			return nil, err
		}
		if round > 0 { // in the first one nodes get their blocks
			all = append(all, pairs...)
		}
	}
	return all, ctx.Err()
}

func (b *bench) addRound(nodes [2]*policyNode) ([]addPair, error) {
	pairs := make([]addPair, b.size.perRound)
	var boxes []sandbox
	for i := range pairs {
		for turn := range nodes {
			which := (i + turn) % 2 // the other one comes first each time
			box := newSandbox(nodes[which].subject, nodes[which].node, nodes[which].slots[i])
			took, _, err := box.do(b.cluster, "ADD")
			if err != nil {
				return nil, err
			}
			boxes = append(boxes, box)
			*[]*cost{&pairs[i].with, &pairs[i].without}[which] = took
		}
	}
	for _, box := range boxes {
		if _, _, err := box.do(b.cluster, "DEL"); err != nil {
			return nil, err
		}
	}
	return pairs, nil
}

// more returns how much more an ADD takes with policies: the difference of the medians.
func more(pairs []addPair, of func(cost) time.Duration) time.Duration {
	var with, without durations
	for _, p := range pairs {
		with, without = append(with, of(p.with)), append(without, of(p.without))
	}
	return with.median() - without.median()
}

func describeADDs(pairs []addPair) string {
	var with, without durations
	for _, p := range pairs {
		with, without = append(with, p.with.wall), append(without, p.without.wall)
	}
	return fmt.Sprintf("ADD takes %.2f ms with policies and %.2f without (quartiles %.2f to %.2f, and %.2f to %.2f; %d pairs), CPU %+.3f ms",
		milliseconds(with.median()), milliseconds(without.median()), milliseconds(with.quantile(0.25)), milliseconds(with.quantile(0.75)),
		milliseconds(without.quantile(0.25)), milliseconds(without.quantile(0.75)), len(pairs), milliseconds(more(pairs, cpu)))
}
