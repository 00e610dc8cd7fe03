package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster/services"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// serviceWatches are open while addresses of services are announced. In a large cluster endpoints change most: a
// cluster that announces no addresses of services pays nothing for them.
type serviceWatches struct {
	wanted   chan struct{} // signals changes of on
	revision atomic.Uint64

	mu   sync.Mutex // guards the rest
	on   bool
	open *serviceWatch // nil: none
}

// serviceWatch is the pair of watches, from FollowServices(true) to FollowServices(false).
type serviceWatch struct {
	services  *objectStore[api.Service]
	endpoints *objectStore[endpointSlice]
	by        []*follower
	err       error // why there are no followers
	stop      context.CancelFunc
}

// endpointSlice is an EndpointSlice, reduced to the part that matters to this node.
type endpointSlice struct {
	api.EndpointSlice
	kept services.Endpoints
	use  bool
}

// Selectors that exclude headless services, as kube-proxy does.
const (
	notHeadless      = "spec.clusterIP!=None"
	notHeadlessSlice = "!service.kubernetes.io/headless"
)

// FollowServices begins to follow Services and their endpoints, or stops and forgets them. Repeating a call costs
// nothing.
func (w *Watch) FollowServices(on bool) {
	s := &w.services
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != on {
		s.on = on
		wait.Signal(s.wanted)
	}
}

// ServicesRevision grows with every change of Services' result. Changed wakes its reader for it too.
func (w *Watch) ServicesRevision() uint64 { return w.services.revision.Load() }

func (w *Watch) servicesChanged() {
	w.services.revision.Add(1)
	wait.Signal(w.changed)
}

// Services returns the present state.
func (w *Watch) Services() state.Services {
	w.services.mu.Lock()
	open := w.services.open
	w.services.mu.Unlock()
	if open == nil {
		return state.Services{}
	}
	out := state.Services{Known: open.known(), Services: open.services.all(nil), Err: open.failure()}
	for _, e := range open.endpoints.all(func(e *endpointSlice) bool { return e.use }) {
		out.Endpoints = append(out.Endpoints, e.kept)
	}
	out.Problems = slices.Concat(open.services.problems(), open.endpoints.problems())
	return out
}

// AwaitServices blocks until services are known, if they are wanted. It also returns when ctx ends, or their watches
// fail, as without the right to read them.
func (w *Watch) AwaitServices(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		w.services.mu.Lock()
		on, open := w.services.on, w.services.open
		w.services.mu.Unlock()
		if !on || open != nil && (open.known() || open.failure() != nil) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *serviceWatch) known() bool { return s.services.isFull() && s.endpoints.isFull() }

func (s *serviceWatch) failure() error {
	errs := []error{s.err}
	for _, f := range s.by {
		errs = append(errs, f.failure())
	}
	return errors.Join(errs...)
}

// watchServices opens and closes the watches as FollowServices sets, until ctx ends.
func (w *Watch) watchServices(ctx context.Context) {
	s := &w.services
	for ctx.Err() == nil {
		s.mu.Lock()
		switch {
		case s.on && s.open == nil:
			s.open = w.openServices(ctx)
		case !s.on && s.open != nil:
			s.open.stop()
			s.open = nil
			w.servicesChanged()
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-s.wanted:
		}
	}
}

func (w *Watch) openServices(ctx context.Context) *serviceWatch {
	ctx, stop := context.WithCancel(ctx)
	s := &serviceWatch{stop: stop}
	note := func() {
		if s.known() { // the first list comes as thousands of events
			w.servicesChanged()
		}
	}
	s.services = newObjectStore(sameService, func(*api.Service) { note() })
	s.endpoints = newObjectStore(sameEndpoints, func(*endpointSlice) { note() })
	first, err1 := follow(&w.feed,
		source[api.Service]{name: "Service", of: (*api.Service)(nil).ResourceType(), fields: notHeadless, trim: trimService}, s.services)
	second, err2 := follow(&w.feed, source[endpointSlice]{
		name: "EndpointSlice", of: (*api.EndpointSlice)(nil).ResourceType(), labels: notHeadlessSlice, trim: w.trimEndpoints,
	}, s.endpoints)
	if s.err = errors.Join(err1, err2); s.err != nil {
		return s
	}
	s.by = []*follower{first, second}
	for _, f := range s.by {
		f.failed = w.servicesChanged
		go f.run(ctx)
	}
	go func() {
		for _, full := range []<-chan struct{}{s.services.full, s.endpoints.full} {
			select {
			case <-ctx.Done():
				return
			case <-full:
			}
		}
		w.servicesChanged() // also if there are none
	}()
	return s
}

// trimService keeps the fields that decide the announcements.
func trimService(s *api.Service) {
	s.Meta = api.Meta{Namespace: shared(s.Namespace), Name: s.Name, ResourceVersion: s.ResourceVersion}
	s.Spec.LoadBalancerClass, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil, ""
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = shared(s.Spec.Type), shared(s.Spec.ExternalTrafficPolicy)
}

// sameService ignores ports, labels and selectors.
func sameService(a, b *api.Service) bool {
	return a.Spec.Type == b.Spec.Type && a.Spec.ClusterIP == b.Spec.ClusterIP && a.Spec.LoadBalancerIP == b.Spec.LoadBalancerIP &&
		a.Spec.ExternalTrafficPolicy == b.Spec.ExternalTrafficPolicy && slices.Equal(a.Spec.ClusterIPs, b.Spec.ClusterIPs) &&
		slices.Equal(a.Spec.ExternalIPs, b.Spec.ExternalIPs) && slices.Equal(a.Status.LoadBalancer.Ingress, b.Status.LoadBalancer.Ingress)
}

// trimEndpoints keeps whether a slice has ready endpoints, and whether one is on this node.
func (w *Watch) trimEndpoints(s *endpointSlice) {
	s.kept, s.use = services.Reduce(&s.EndpointSlice, w.self)
	meta := api.Meta{Namespace: shared(s.Namespace), Name: s.Name, ResourceVersion: s.ResourceVersion}
	s.kept.Namespace = meta.Namespace
	s.EndpointSlice = api.EndpointSlice{Meta: meta}
}

func sameEndpoints(a, b *endpointSlice) bool { return a.kept == b.kept && a.use == b.use }
