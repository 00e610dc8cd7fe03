package policyview

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// readTime bounds reading the API server: 30,000 pods take a few seconds.
	readTime = 30 * time.Second
	// failTime is how long requests may fail before read gives up.
	failTime = 3 * time.Second
)

// known is the part of the API server's state that the commands use.
type known struct {
	policy.State
	group  groups.Group           // of Calico's objects; empty: there are no definitions
	tiers  map[string]policy.Tier // Calico's
	staged []policy.Staged        // if they were requested
	// problems are the invalid parts of policies, by policy.
	problems []string
	// sameLink are pods of this node that are closed because they share a link.
	sameLink []string
}

// everything returns the Interest in all pods.
func everything(*known) policy.Interest { return policy.Interest{All: true} }

// ofThisNode returns the agent's Interest.
func ofThisNode(k *known) policy.Interest { return k.Interest() }

// read returns the state of a feed, with the pods of the Interest that want returns; staged: with staged policies,
// which the feed must watch. It runs the feed until it returns.
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

// unread returns the error of a view that could not be read in time.
func unread(view *cluster.PolicyView) error {
	err := view.Err
	if err == nil {
		err = errors.New("it answers too slowly")
	}
	return unreadable(err)
}

// unreadable adds the remedy to an error of reading, unless it has its own.
func unreadable(err error) error {
	if of := (*cluster.VersionError)(nil); errors.As(err, &of) {
		return fmt.Errorf("read policies and pods from the API server: %w", err)
	}
	return fmt.Errorf(
		"read policies and pods from the API server: %w: ClusterRole tortie-node has the rights if the chart's value policy.enabled is true", err)
}

// stateOf converts a view.
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

// addInterfaces adds the interfaces of this node, if it has host endpoints: some are found by them. more: it will have
// host endpoints.
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

// selecting returns the policies that select a pod, by direction, in the order of evaluation.
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
