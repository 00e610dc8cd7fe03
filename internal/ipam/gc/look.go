package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// live is the current state of some nodes, their pods, and some Services.
type live struct {
	mu       sync.Mutex // guards all below
	nodes    []inventory.Node
	pods     []inventory.Pod
	services []inventory.Service
}

// look reads the nodes, pods and Services of holders from the API server: a few pods of a node one by one, more by one
// list of that node's pods. A pod that is on another node now does not use the addresses, so it need not be found.
func (w *sweep) look(ctx context.Context, due []audit.Candidate) (*inventory.Index, error) {
	pods, services := map[string]map[inventory.PodKey]bool{}, map[inventory.PodKey]bool{}
	for i := range due {
		for _, a := range due[i].Holder.Addresses {
			if a.Class == inventory.LoadBalancer {
				services[inventory.PodKey{Namespace: a.Namespace, Name: a.Service}] = true
				continue
			}
			if pods[a.Node] == nil {
				pods[a.Node] = map[inventory.PodKey]bool{}
			}
			if a.Class == inventory.OfPod {
				pods[a.Node][inventory.PodKey{Namespace: a.Namespace, Name: a.Pod}] = true
			}
		}
	}
	l := live{services: []inventory.Service{}} // known, although there may be none
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for key := range services {
		service := inventory.Service{Meta: api.Meta{Name: key.Name, Namespace: key.Namespace}}
		g.Go(func() error { return get(ctx, &l, w.Cluster, service, &l.services) })
	}
	for node, of := range pods {
		g.Go(func() error { return l.node(ctx, w.Cluster, node) })
		if len(of) > fewPods {
			g.Go(func() error { return l.podsOn(ctx, w.Cluster, node) })
			continue
		}
		for key := range of {
			pod := inventory.Pod{Meta: api.Meta{Name: key.Name, Namespace: key.Namespace}}
			g.Go(func() error { return get(ctx, &l, w.Cluster, pod, &l.pods) })
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return (&inventory.View{Nodes: l.nodes, Pods: l.pods, Services: l.services}).Index(), nil
}

// node reads a Node; a missing one is no error.
func (l *live) node(ctx context.Context, cluster datastore.Store, name string) error {
	return get(ctx, l, cluster, inventory.Node{Meta: api.Meta{Name: name}}, &l.nodes)
}

// get reads an object and adds it to others; a missing one is no error.
func get[T any, P interface {
	*T
	api.Resource
}](ctx context.Context, l *live, cluster datastore.Store, obj T, into *[]T) error {
	err := cluster.Get(ctx, P(&obj))
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	*into = append(*into, obj)
	return err
}

func (l *live) podsOn(ctx context.Context, cluster datastore.Store, node string) error {
	var list api.List[inventory.Pod, *inventory.Pod]
	err := cluster.List(ctx, &list, datastore.ListOptions{Host: node})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = append(l.pods, list.Items...)
	return err
}

// stillGone reads once more the nodes that are gone in the view, and returns the candidates without those of existing
// nodes: these had no grace period.
func (w *sweep) stillGone(ctx context.Context, due []audit.Candidate) ([]audit.Candidate, error) {
	seen := inventory.NewIndex(w.view.Nodes, nil)
	gone := map[string]bool{}
	for i := range due {
		if _, _, node := identity(&due[i]); node != "" && seen.Node(node) == nil {
			gone[node] = true
		}
	}
	var l live
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for name := range gone {
		g.Go(func() error { return l.node(gctx, w.Cluster, name) })
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("check again which nodes are gone: %w", err)
	}
	now := inventory.NewIndex(l.nodes, nil)
	return slices.DeleteFunc(due, func(c audit.Candidate) bool {
		_, _, node := identity(&c)
		return now.Node(node) != nil
	}), nil
}
