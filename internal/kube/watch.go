package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tortie-net/tortie/internal/api"
)

// World is what the cluster looks like now: every node, pool and affinity, in no particular order.
type World struct {
	// Nodes have their metadata only.
	Nodes      []api.Node
	Pools      []api.IPPool
	Affinities []api.BlockAffinity
	// BGP is the cluster's default BGPConfiguration; zero if there is none.
	BGP api.BGPConfigurationSpec
}

// Watch keeps a World up to date.
type Watch struct {
	informers []cache.SharedIndexInformer
	nodes     cache.SharedIndexInformer
	pools     cache.SharedIndexInformer
	affinity  cache.SharedIndexInformer
	bgp       cache.SharedIndexInformer
	changed   chan struct{}
}

// NewWatch prepares the watches; Run starts them.
func NewWatch(cfg *rest.Config, log *slog.Logger) (*Watch, error) {
	custom, err := customClient(cfg)
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of Node metadata: %w", err)
	}
	w := &Watch{changed: make(chan struct{}, 1)}
	w.nodes = cache.NewSharedIndexInformer(nodeMetadata(meta), &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
	w.pools = customInformer[api.IPPool](custom, (*api.IPPool)(nil).ResourceType())
	w.affinity = customInformer[api.BlockAffinity](custom, (*api.BlockAffinity)(nil).ResourceType())
	w.bgp = customInformer[api.BGPConfiguration](custom, (*api.BGPConfiguration)(nil).ResourceType())
	w.informers = []cache.SharedIndexInformer{w.nodes, w.pools, w.affinity, w.bgp}
	if err := w.nodes.SetTransform(trimNode); err != nil {
		return nil, err
	}
	for _, informer := range w.informers {
		if err := w.observe(informer, log); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func customInformer[T any](client rest.Interface, t api.Type) cache.SharedIndexInformer {
	lw := cache.NewListWatchFromClient(client, t.Plural, metav1.NamespaceAll, fields.Everything())
	return cache.NewSharedIndexInformer(lw, &object[T]{}, 0, cache.Indexers{})
}

func nodeMetadata(client metadata.Interface) cache.ListerWatcher {
	nodes := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, opts)
		},
	}
}

// trimNode keeps what World shows of a Node.
func trimNode(obj any) (any, error) {
	n, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	annotations := map[string]string{}
	for _, key := range []string{api.AnnotationIPv4Address, api.AnnotationASNumber, api.AnnotationIPv4TunnelAddr} {
		if v, ok := n.Annotations[key]; ok {
			annotations[key] = v
		}
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name:            n.Name,
		UID:             n.UID,
		ResourceVersion: n.ResourceVersion,
		Labels:          n.Labels,
		Annotations:     annotations,
	}}, nil
}

// observe wakes the reader on changes that it can see, and reports a watch that fails: client-go would go on silently.
func (w *Watch) observe(informer cache.SharedIndexInformer, log *slog.Logger) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { w.wake() },
		DeleteFunc: func(any) { w.wake() },
		UpdateFunc: func(before, after any) {
			if !sameNode(before, after) {
				w.wake()
			}
		},
	})
	if err != nil {
		return err
	}
	return informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if ctx.Err() == nil {
			log.Warn("watch of the API server interrupted; going on with what is known", "kind", r.TypeDescription(), "err", err)
		}
	})
}

// sameNode reports that both are Nodes and differ in nothing that World shows: kubelets write their Node all the time.
func sameNode(before, after any) bool {
	a, ok := before.(*metav1.PartialObjectMetadata)
	b, ok2 := after.(*metav1.PartialObjectMetadata)
	return ok && ok2 && a.UID == b.UID && maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Labels, b.Labels)
}

func (w *Watch) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Changed wakes its one reader after the World changed. Wake-ups are coalesced and carry nothing.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	done := make(chan struct{})
	for _, informer := range w.informers {
		go func() {
			informer.RunWithContext(ctx)
			done <- struct{}{}
		}()
	}
	for range w.informers {
		<-done
	}
	return nil
}

// WaitForSync blocks until the World is complete for the first time.
func (w *Watch) WaitForSync(ctx context.Context, log *slog.Logger) error {
	start := time.Now()
	for {
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		ok := cache.WaitForCacheSync(wait.Done(), w.nodes.HasSynced, w.pools.HasSynced, w.affinity.HasSynced, w.bgp.HasSynced)
		cancel()
		if ok {
			return nil
		}
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("first complete list of the cluster: %w", err)
		}
		log.Info("waiting for the first complete list from the API server", "waited", time.Since(start).Round(time.Second))
	}
}

// World returns what is known now. Before WaitForSync has returned it is incomplete.
func (w *Watch) World() World {
	world := World{
		Pools:      values[api.IPPool](w.pools.GetStore()),
		Affinities: values[api.BlockAffinity](w.affinity.GetStore()),
	}
	for _, item := range w.nodes.GetStore().List() {
		if n, ok := item.(*metav1.PartialObjectMetadata); ok {
			world.Nodes = append(world.Nodes, api.Node{Meta: api.Meta{
				Name: n.Name, UID: string(n.UID), Labels: n.Labels, Annotations: n.Annotations,
			}})
		}
	}
	for _, c := range values[api.BGPConfiguration](w.bgp.GetStore()) {
		if c.Name == api.DefaultName {
			world.BGP = c.Spec
		}
	}
	return world
}
