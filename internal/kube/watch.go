package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tortie-net/tortie/internal/api"
)

// Watch keeps a World and an Assignment up to date.
type Watch struct {
	self    string
	streams *streams
	custom  rest.Interface

	nodes, namespaces                  cache.SharedIndexInformer // metadata only
	pools, affinities, bgp             cache.SharedIndexInformer
	configs, reservations, information cache.SharedIndexInformer

	changed, assignment chan struct{}
}

// NewWatch prepares the watches of the node self; Run starts them.
func NewWatch(cfg *rest.Config, self string, log *slog.Logger) (*Watch, error) {
	c, err := newClients(cfg)
	if err != nil {
		return nil, err
	}
	w := &Watch{
		self:       self,
		custom:     c.custom,
		streams:    &streams{now: time.Now, open: map[string]*stream{}},
		changed:    make(chan struct{}, 1),
		assignment: make(chan struct{}, 1),
	}
	w.nodes = w.informer(c.metadata((*api.Node)(nil).ResourceType(), trimNode))
	w.namespaces = w.informer(c.metadata((*api.Namespace)(nil).ResourceType(), trimNamespace))
	w.pools = w.informer(customSource[api.IPPool](c, (*api.IPPool)(nil).ResourceType()))
	w.affinities = w.informer(customSource[api.BlockAffinity](c, (*api.BlockAffinity)(nil).ResourceType()))
	w.bgp = w.informer(customSource[api.BGPConfiguration](c, (*api.BGPConfiguration)(nil).ResourceType()))
	w.configs = w.informer(customSource[api.IPAMConfig](c, (*api.IPAMConfig)(nil).ResourceType()))
	w.reservations = w.informer(customSource[api.IPReservation](c, (*api.IPReservation)(nil).ResourceType()))
	w.information = w.informer(customSource[api.ClusterInformation](c, (*api.ClusterInformation)(nil).ResourceType()))
	return w, w.observeAll(log)
}

// observeAll wakes the two readers on changes that they can see.
func (w *Watch) observeAll(log *slog.Logger) error {
	world, assignment := wake(w.changed), wake(w.assignment)
	both := func() { world(); assignment() }
	for informer, changed := range map[cache.SharedIndexInformer]func(obj any){
		w.nodes:        w.either(world, both),
		w.affinities:   w.either(world, both),
		w.pools:        func(any) { both() },
		w.bgp:          func(any) { world() },
		w.namespaces:   func(any) { assignment() },
		w.configs:      func(any) { assignment() },
		w.reservations: func(any) { assignment() },
		w.information:  func(any) { assignment() },
	} {
		if err := observe(informer, changed, log); err != nil {
			return err
		}
	}
	return nil
}

// source is how objects of one kind come from the API server.
type source struct {
	kind    string
	example runtime.Object
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	trim    cache.TransformFunc // may be nil
}

// informer follows a source.
func (w *Watch) informer(s source) cache.SharedIndexInformer {
	w.streams.wanted++
	lw := &cache.ListWatch{
		ListWithContextFunc: s.list,
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			events, err := s.watch(ctx, opts)
			if err != nil {
				return nil, err
			}
			return w.streams.follow(s.kind, events, opts.SendInitialEvents != nil && *opts.SendInitialEvents), nil
		},
	}
	informer := cache.NewSharedIndexInformer(lw, s.example, 0, cache.Indexers{})
	if s.trim != nil {
		_ = informer.SetTransform(s.trim) // fails only of an informer that runs
	}
	return informer
}

// either calls one function for changes of other nodes, and another for those of this one.
func (w *Watch) either(others, own func()) func(obj any) {
	return func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		switch o := obj.(type) {
		case *metav1.PartialObjectMetadata:
			if o.Name != w.self {
				others()
				return
			}
		case *object[api.BlockAffinity]:
			if o.value.Spec.Node != w.self {
				others()
				return
			}
		}
		own()
	}
}

// observe reports changes that a reader can see, and a watch that fails: client-go would go on silently.
func observe(informer cache.SharedIndexInformer, changed func(obj any), log *slog.Logger) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		DeleteFunc: changed,
		UpdateFunc: func(before, after any) {
			if !sameMetadata(before, after) {
				changed(after)
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

// trimNode keeps what World shows of a Node.
func trimNode(obj any) (any, error) {
	return trim(obj, func(key string) bool {
		return key == api.AnnotationIPv4Address || key == api.AnnotationASNumber || key == api.AnnotationIPv4TunnelAddr
	})
}

// annotationPrefix is that of the annotations by which namespaces steer the plugins.
const annotationPrefix = "cni.projectcalico.org/"

// trimNamespace keeps what Assignment shows of a Namespace.
func trimNamespace(obj any) (any, error) {
	return trim(obj, func(key string) bool { return strings.HasPrefix(key, annotationPrefix) })
}

func trim(obj any, keep func(annotation string) bool) (any, error) {
	n, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	annotations := map[string]string{}
	for key, value := range n.Annotations {
		if keep(key) {
			annotations[key] = value
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

// sameMetadata reports that both are Nodes or Namespaces and differ in nothing that is kept of them: kubelets write their Node
// all the time.
func sameMetadata(before, after any) bool {
	a, ok := before.(*metav1.PartialObjectMetadata)
	b, ok2 := after.(*metav1.PartialObjectMetadata)
	return ok && ok2 && a.UID == b.UID && maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Labels, b.Labels)
}

func wake(c chan struct{}) func() {
	return func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Changed wakes its one reader after the World changed. Wake-ups are coalesced and carry nothing.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// AssignmentChanged wakes its one reader after the Assignment changed.
func (w *Watch) AssignmentChanged() <-chan struct{} { return w.assignment }

func (w *Watch) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{w.nodes, w.namespaces, w.pools, w.affinities, w.bgp, w.configs, w.reservations, w.information}
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	done := make(chan struct{})
	for _, informer := range w.informers() {
		go func() {
			informer.RunWithContext(ctx)
			done <- struct{}{}
		}()
	}
	for range w.informers() {
		<-done
	}
	return nil
}

// WaitForSync blocks until World and Assignment are complete for the first time.
func (w *Watch) WaitForSync(ctx context.Context, log *slog.Logger) error {
	var synced []cache.InformerSynced
	for _, informer := range w.informers() {
		synced = append(synced, informer.HasSynced)
	}
	start := time.Now()
	for {
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		ok := cache.WaitForCacheSync(wait.Done(), synced...)
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

// Confirmed returns when World and Assignment were last known to miss nothing but what was under way: all watches were open,
// and the API server said something on one of them, or answered a Probe. Zero: not yet.
func (w *Watch) Confirmed() time.Time { return w.streams.Confirmed() }

// Probe asks the API server for one object, past all caches, and compares it with what the watches say. If it is the same and
// all watches are open, this confirms the time at which it asked.
func (w *Watch) Probe(ctx context.Context) error {
	if !w.streams.allOpen() {
		return fmt.Errorf("not all watches of the API server are open")
	}
	sent := time.Now()
	t := (*api.ClusterInformation)(nil).ResourceType()
	answer, err := w.custom.Get().Resource(t.Plural).Name(api.DefaultName).Do(ctx).Get()
	revision := ""
	switch {
	case missing(err):
	case err != nil:
		return fmt.Errorf("probe of the API server: %w", err)
	default:
		revision = answer.(*object[api.ClusterInformation]).ResourceVersion
	}
	if seen := w.seenInformation(); seen != revision {
		return fmt.Errorf("%s %s has revision %q, and its watch says %q: the watch lags", t.Kind, api.DefaultName, revision, seen)
	}
	w.streams.confirm(sent)
	return nil
}

// seenInformation returns the revision of ClusterInformation default that the watch has, empty if there is none.
func (w *Watch) seenInformation() string {
	item, ok, err := w.information.GetStore().GetByKey(api.DefaultName)
	if err != nil || !ok {
		return ""
	}
	return item.(*object[api.ClusterInformation]).ResourceVersion
}
