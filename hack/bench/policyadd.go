package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// addPair is the same pod's ADD on two nodes, one after the other: where the agent enforces policies, and where it does not.
type addPair struct{ with, without cost }

// Indexes of the nodes of this part, apart from those of other parts.
const policyIndex = 242

// policyADDs is what ADD takes more with policies.
type policyADDs struct {
	pairs    []addPair
	requests [2]int // to the API server, with policies and without
}

const (
	// addPolicies is how many policies select each pod, one of which allows nothing.
	addPolicies = 11
	// pairsPerRound times as many pairs as other measurements have: what is looked for is a hundredth of what one ADD varies by.
	pairsPerRound = 5
)

// runPolicyADDs alternates between a node with policies and one without.
func (b *bench) runPolicyADDs(ctx context.Context) (all policyADDs, err error) {
	if err := b.makeADDPolicies(); err != nil {
		return all, err
	}
	var nodes [2]*policyNode
	for i, mode := range []string{"on", "off"} {
		n, err := b.newPolicyNode(ctx, policyIndex+i, mode, b.size.perRound)
		if err != nil {
			return all, err
		}
		defer n.end()
		nodes[i] = n
	}
	if err := nodes[0].await(ctx, map[string]int{"endpoints": b.size.perRound}); err != nil {
		return all, err
	}
	for round := range pairsPerRound*b.size.rounds + 1 {
		pairs, err := b.addRound(nodes)
		if err != nil || ctx.Err() != nil {
			return all, errors.Join(err, ctx.Err())
		}
		if round > 0 { // in the first one nodes get their blocks
			all.pairs = append(all.pairs, pairs...)
		}
	}
	all.requests, err = b.countADDs(nodes)
	return all, err
}

func (b *bench) makeADDPolicies() error {
	const path = "/apis/networking.k8s.io/v1/namespaces/" + namespace + "/networkpolicies"
	for i := range addPolicies {
		var ports []int
		if i > 0 {
			ports = []int{8080 + i}
		}
		if err := b.cluster.do("POST", path, networkPolicy(fmt.Sprint("all-", i), object{}, object{}, ports...), nil); err != nil {
			return err
		}
	}
	return nil
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

// more returns how much more each ADD took with policies than its neighbour in time without.
func more(pairs []addPair, of func(cost) time.Duration) (all durations) {
	for _, p := range pairs {
		all = append(all, of(p.with)-of(p.without))
	}
	return all
}

// judgeMore judges what ADD takes more. A bound that lies within the range of the median is neither met nor missed by these pairs, and is not judged:
// describeADDs shows the range. What ADD asks the kernel, which is all that it does more, is measured by itself.
func judgeMore(what string, differences durations) []verdict {
	low, high := differences.medianRange()
	v := bounded("ADD, more "+what+" where policies are enforced", microseconds(differences.median()), maxPolicyADD, "µs")
	v.met = microseconds(high) <= maxPolicyADD
	if !v.met && microseconds(low) <= maxPolicyADD {
		return nil
	}
	v.measured += inBrackets(differences)
	return []verdict{v}
}

// inBrackets is the 95 % range of the median.
func inBrackets(differences durations) string {
	low, high := differences.medianRange()
	return fmt.Sprintf(" (%.0f to %.0f)", microseconds(low), microseconds(high))
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func describeADDs(pairs []addPair) string {
	var with, without durations
	for _, p := range pairs {
		with, without = append(with, p.with.wall), append(without, p.without.wall)
	}
	time, processor := more(pairs, wall), more(pairs, cpu)
	return fmt.Sprintf("ADD takes %.2f ms with policies and %.2f without (quartiles %.2f to %.2f, and %.2f to %.2f); of %d pairs the medians of the differences, in brackets "+
		"their 95 %% ranges: time %.0f µs%s, CPU %.0f µs%s", milliseconds(with.median()), milliseconds(without.median()), milliseconds(with.quantile(0.25)),
		milliseconds(with.quantile(0.75)), milliseconds(without.quantile(0.25)), milliseconds(without.quantile(0.75)), len(pairs),
		microseconds(time.median()), inBrackets(time), microseconds(processor.median()), inBrackets(processor))
}

// countADDs counts the requests to the API server of one ADD on each node.
func (b *bench) countADDs(nodes [2]*policyNode) (counts [2]int, err error) {
	p, err := newProxy(b.cluster)
	if err != nil {
		return counts, err
	}
	defer p.Close()
	for i, n := range nodes {
		if err := n.write(kubeconfigPath, p.kubeconfig(b.cluster.token)); err != nil {
			return counts, err
		}
		box := newSandbox(n.subject, n.node, n.slots[0])
		if err := b.cluster.settle(); err != nil {
			return counts, err
		}
		p.take()
		if _, _, err := box.do(b.cluster, "ADD"); err != nil {
			return counts, err
		}
		requests, _ := p.take()
		counts[i] = asked{requests: requests}.count()
		if _, _, err := box.do(b.cluster, "DEL"); err != nil {
			return counts, err
		}
	}
	return counts, nil
}
