package policyview

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// readTime bounds reading the API server: 30,000 pods take a few seconds.
	readTime = 30 * time.Second
	// failTime is how long requests may fail.
	failTime = 3 * time.Second
)

// known is the part of the API server's state that the command reads.
type known struct {
	policy.State
	tiers  map[string]policy.Tier // Calico's
	staged []policy.Staged        // if these are read
	// problems are the invalid parts of policies, by policy.
	problems []string
	// sameLink are pods of this node that are closed because they have the same link.
	sameLink []string
}

// everything is an Interest in all pods.
func everything(*known) policy.Interest { return policy.Interest{All: true} }

// ofThisNode is the Interest that the agent has.
func ofThisNode(k *known) policy.Interest { return k.Interest() }

// read reads what a feed shows, with the pods that want asks for; staged: with staged policies, which the feed watches.
// It opens the feed's watches and ends them.
func read(ctx context.Context, feed *cluster.PolicyFeed, staged bool, want func(*known) policy.Interest) (*known, error) {
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = feed.Run(running) }()
	defer func() { stop(); <-ended }()
	began := time.Now()
	tick := time.NewTicker(failTime)
	defer tick.Stop()
	for {
		view := feed.Take()
		if view.Listed && (!staged || view.Staged.Listed) {
			interest := want(stateOf(&view))
			feed.Want(interest)
			if view = feed.Take(); view.Complete && view.KnowsAll(interest) {
				return stateOf(&view), nil
			}
		}
		select {
		case <-feed.Changed():
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
			if view.Err != nil || time.Since(began) > readTime {
				return nil, unread(&view)
			}
		}
	}
}

// unread explains why not everything could be read.
func unread(view *cluster.PolicyView) error {
	err := view.Err
	if err == nil {
		err = errors.New("it answers too slowly")
	}
	return unreadable(err)
}

// unreadable adds the remedy, unless the error has its own.
func unreadable(err error) error {
	if of := (*cluster.VersionError)(nil); errors.As(err, &of) {
		return fmt.Errorf("read policies and pods from the API server: %w", err)
	}
	return fmt.Errorf(
		"read policies and pods from the API server: %w: ClusterRole tortie-node has the rights if the chart's value policy.enabled is true", err)
}

// stateOf makes the model of a view.
func stateOf(view *cluster.PolicyView) *known {
	var reader cluster.PolicyReader
	state := reader.State(view)
	k := &known{State: state.State, tiers: state.Tiers, staged: state.Staged}
	k.Local, k.sameLink = policies.Links(view.Local)
	k.Pods = maps.Clone(view.Pods)
	for id, problems := range state.Invalid {
		for _, problem := range problems {
			k.problems = append(k.problems, fmt.Sprintf("%s: %s", id, problem))
		}
	}
	for id, problems := range state.LeftOut {
		for _, problem := range problems {
			k.problems = append(k.problems, fmt.Sprintf("%s counts for nothing: %s", id, problem))
		}
	}
	slices.Sort(k.problems)
	return k
}

// addInterfaces adds the interfaces of this node, of whose host endpoints some may be found by them; more: there will
// be others.
func (k *known) addInterfaces(more bool) error {
	if !more && !k.HasHosts() {
		return nil
	}
	kernel, err := netlinkx.Open()
	if err != nil {
		return err
	}
	defer kernel.Close()
	k.Interfaces, err = policies.Interfaces(kernel)
	return err
}

// selecting returns the policies that count for a pod, by direction, in the order in which they decide.
func (k *known) selecting(pod policy.PodKey) (names [2][]string) {
	names = [2][]string{{}, {}}
	e := policy.Explain(k.State, policy.Party{Pod: pod}, policy.Party{Pod: pod}, policy.Packet{Protocol: tcp, Port: 1})
	for _, j := range []*policy.Judgement{e.Ingress, e.Egress} {
		for _, id := range j.Selecting {
			names[j.Direction] = append(names[j.Direction], id.String())
		}
	}
	return names
}
