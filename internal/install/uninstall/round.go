package uninstall

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Node is the relevant state of a node.
type Node struct {
	Name string
	// Ready: its kubelet answers; else no pod can run there.
	Ready bool
	// Ours: an agent has run here.
	Ours bool
}

// Cleaner is the pod that cleans a node.
type Cleaner struct {
	Done bool
	// Message is the reason why it is not done: its container's last message.
	Message string
}

// View is the state of the cluster at one moment.
type View struct {
	Nodes []Node
	// Agents are the nodes that still have an agent's pod, and Calico the nodes with one of Calico's agent.
	Agents, Calico map[string]bool
	// Cleaners holds the cleaners by node.
	Cleaners map[string]Cleaner
}

// Order is a request to make a pod on a node.
type Order struct {
	Node string
	// HandOver: Calico takes the node over, so that what it uses stays.
	HandOver bool
}

// Round is the decision from a view.
type Round struct {
	Create []Order
	// Done are the nodes that are clean.
	Done []string
	// Waiting holds, for each other node, the reason why it is not clean.
	Waiting map[string]string
}

// Targets returns the nodes to clean: those where an agent is, or was.
func (v View) Targets() []string {
	var names []string
	for _, n := range v.Nodes {
		if n.Ours || v.Agents[n.Name] {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Next decides what to do about the targets. It is pure. A node is cleaned after its agent has ended, as the agent
// would restore what is removed.
func (v View) Next(targets []string) Round {
	ready := map[string]bool{}
	exists := map[string]bool{}
	for _, n := range v.Nodes {
		exists[n.Name], ready[n.Name] = true, n.Ready
	}
	round := Round{Waiting: map[string]string{}}
	for _, name := range targets {
		cleaner, made := v.Cleaners[name]
		switch {
		case !exists[name], made && cleaner.Done: // a node that is gone needs no cleaning
			round.Done = append(round.Done, name)
		case !ready[name]:
			round.Waiting[name] = notReady
		case v.Agents[name]:
			round.Waiting[name] = "its agent's pod has not ended"
		case !made:
			round.Create = append(round.Create, Order{Node: name, HandOver: v.Calico[name]})
			round.Waiting[name] = "its pod is being made"
		case cleaner.Message != "":
			round.Waiting[name] = cleaner.Message
		default:
			round.Waiting[name] = "its pod has not ended"
		}
	}
	return round
}

const notReady = "its kubelet does not answer"

// failed returns the nodes that were not cleaned, with the reasons, but for those without an answering kubelet, which
// are in unreachable.
func (r Round) failed() (failed, unreachable []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Waiting)) {
		if why := r.Waiting[name]; why == notReady {
			unreachable = append(unreachable, name)
		} else {
			failed = append(failed, name+" ("+why+")")
		}
	}
	return failed, unreachable
}

// shown bounds the nodes that a line names.
const shown = 5

// progress returns a line for people.
func (r Round) progress(total int, left time.Duration) string {
	text := fmt.Sprintf("%d of %d nodes are clean, %s left", len(r.Done), total, left.Round(time.Second))
	names := slices.Sorted(maps.Keys(r.Waiting))
	if len(names) == 0 {
		return text
	}
	more := ""
	if len(names) > shown {
		more = fmt.Sprintf(", and %d more", len(names)-shown)
		names = names[:shown]
	}
	var waits []string
	for _, name := range names {
		waits = append(waits, name+" ("+r.Waiting[name]+")")
	}
	return text + "; waiting for " + strings.Join(waits, ", ") + more
}
