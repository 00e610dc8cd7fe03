package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

const (
	// agentLabels select the pods of agents, as the chart labels them.
	agentLabels = "app.kubernetes.io/name=tortie,app.kubernetes.io/component=node"
	// followLabels also select the pods of kube-controllers. Pods of hooks stay after they have ended.
	followLabels = "app.kubernetes.io/name=tortie,app.kubernetes.io/component in (node,kube-controllers)"
	// answerTime is how long an agent that works in a group may take to answer there. It answers within 3 s; one that has
	// just arrived, and was not allowed to write yet, retries after at most 90 s.
	answerTime = 2 * time.Minute
	// askPace is the pause between checks for an answer.
	askPace = time.Second
	// maxSilent bounds the agents that are waited for in vain.
	maxSilent = 20
)

// checkAgents asks the agent of each node in a group, and returns an error that names nodes without an answer: their
// agents use the other group, or do not run.
func (m *Mover) checkAgents(ctx context.Context, in groups.Group) error {
	pods, err := m.pods(ctx, agentLabels)
	if err != nil {
		return err
	}
	nodes := nodesOf(pods)
	if len(nodes) == 0 {
		return fmt.Errorf("no pod on a node has the labels %s in a namespace that counts: which group agents use is not known: set "+
			"POD_NAMESPACE, now %q, to the release's", agentLabels, m.Namespace)
	}
	m.Say("asking the agents of %d nodes whether they use %s", len(nodes), in)
	var mu sync.Mutex
	var silent []string
	err = each(ctx, nodes, func(ctx context.Context, node string) error {
		mu.Lock()
		enough := len(silent) >= maxSilent
		mu.Unlock()
		if enough {
			return nil
		}
		answered, err := m.ask(ctx, in, node)
		if err == nil && !answered {
			mu.Lock()
			defer mu.Unlock()
			silent = append(silent, node)
			m.Say("no answer from node %s", node)
		}
		return err
	})
	if err == nil && len(silent) > 0 {
		slices.Sort(silent)
		err = fmt.Errorf("agents do not answer in %s: they still use %s, or do not run: see their logs; delete Nodes that do not come "+
			"back; nothing was removed: nodes %s", in, in.Other(), strings.Join(silent, ", "))
	}
	return err
}

// pods lists Tortie's pods by labels. A tenant can make pods with these, so that the namespace has to be trusted.
func (m *Mover) pods(ctx context.Context, labels string) ([]*object, error) {
	l := &list{of: (*api.Pod)(nil).ResourceType()}
	if err := m.Stores[groups.V1].Select(ctx, "", labels, "", l); err != nil {
		return nil, fmt.Errorf("list Tortie's pods: %w", err)
	}
	return slices.DeleteFunc(l.items, func(o *object) bool { return !controllers.Trusted(o.Namespace, m.Namespace) }), nil
}

// checkFollow refuses a move that a program does not follow because its pod sets the group.
func (m *Mover) checkFollow(ctx context.Context, to groups.Group) error {
	pods, err := m.pods(ctx, followLabels)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if g := setGroup(pod.Spec); g != "" && g != to {
			return fmt.Errorf("pod %s has CALICO_API_GROUP %s, and stays there: set the chart's value apiGroup to auto", pod.key(), g)
		}
	}
	return nil
}

// setGroup returns the group in the environment of a pod's containers; empty if none is set.
func setGroup(spec json.RawMessage) groups.Group {
	var pod struct {
		Containers []struct {
			Env []struct{ Name, Value string }
		}
	}
	_ = json.Unmarshal(spec, &pod) // as the API server sent it
	for _, c := range pod.Containers {
		for _, e := range c.Env {
			if g, err := groups.Parse(e.Value); e.Name == "CALICO_API_GROUP" && err == nil && g != "" {
				return g
			}
		}
	}
	return ""
}

// nodesOf returns the nodes of pods, sorted, without duplicates.
func nodesOf(pods []*object) (nodes []string) {
	for _, pod := range pods {
		var spec api.PodSpec
		if json.Unmarshal(pod.Spec, &spec) == nil && spec.NodeName != "" {
			nodes = append(nodes, spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// ask reports whether the agent of a node answers in a group in time. The question is a CalicoNodeStatus, which only
// that node's agent can answer, and only while it may write in the group: so the answer proves that it has arrived.
func (m *Mover) ask(ctx context.Context, in groups.Group, node string) (answered bool, err error) {
	store, name := m.Stores[in], names.Question(node)
	if err := withdraw(ctx, store, name); err != nil { // a run that was killed has left it
		return false, err
	}
	spec := api.CalicoNodeStatusSpec{Node: node, Classes: []string{api.ClassAgent}}
	if err := store.Create(ctx, &api.CalicoNodeStatus{Meta: api.Meta{Name: name}, Spec: spec}); err != nil {
		return false, fmt.Errorf("create CalicoNodeStatus %s of %s: %w", name, in, err)
	}
	defer func() {
		err = errors.Join(err, withdraw(context.WithoutCancel(ctx), store, name))
	}()
	for until := time.Now().Add(m.answer); ; {
		q := &api.CalicoNodeStatus{Meta: api.Meta{Name: name}}
		if err := store.Get(ctx, q); err != nil {
			return false, fmt.Errorf("read CalicoNodeStatus %s of %s: %w", name, in, err)
		}
		if answered = q.Status.LastUpdated != nil; answered || !time.Now().Before(until) {
			return answered, nil
		}
		if !wait.Sleep(ctx, askPace) {
			return false, context.Cause(ctx)
		}
	}
}

// withdraw removes a question, if it exists.
func withdraw(ctx context.Context, store *kubernetes.Store, name string) error {
	err := datastore.Retry(ctx, maxPasses, passPace.First, passPace.Most, func() error {
		q := &api.CalicoNodeStatus{Meta: api.Meta{Name: name}}
		if err := store.Get(ctx, q); err != nil {
			return err
		}
		return store.Delete(ctx, q)
	})
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		return fmt.Errorf("remove CalicoNodeStatus %s: %w", name, err)
	}
	return nil
}
