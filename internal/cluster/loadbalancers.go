package cluster

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// LoadBalancers follow the Services of type LoadBalancer, from the call of Want on. They have their own feed: a missing
// right stops nothing else.
type LoadBalancers struct {
	feed
	services *objectStore[api.Service]
	changed  chan struct{}
	want     sync.Once
	wanted   chan struct{}
}

// NewLoadBalancers prepares the watch; Run starts it after Want.
func NewLoadBalancers(at Server, log *slog.Logger) (*LoadBalancers, error) {
	feed, err := newFeed(at, log)
	if err != nil {
		return nil, err
	}
	l := &LoadBalancers{feed: feed, changed: make(chan struct{}, 1), wanted: make(chan struct{})}
	l.services = newObjectStore(sameRevision, func(*api.Service) { wait.Signal(l.changed) })
	l.services.listed = func() { wait.Signal(l.changed) } // also if there are none
	return l, add(&l.feed,
		source[api.Service]{pages: podPage, fields: "spec.type=" + api.ServiceLoadBalancer, trim: trimLoadBalancer}, l.services)
}

// trimLoadBalancer keeps the metadata of a Service that its addresses depend on.
func trimLoadBalancer(s *api.Service) {
	maps.DeleteFunc(s.Annotations, func(key, _ string) bool {
		return !slices.Contains(api.AddressAnnotations, key) && !api.Unread("Service", key)
	})
	s.Meta = api.Meta{
		Namespace: shared(s.Namespace), Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
		CreationTimestamp: s.CreationTimestamp, DeletionTimestamp: s.DeletionTimestamp, Annotations: s.Annotations,
	}
}

// Run watches from the call of Want until ctx ends.
func (l *LoadBalancers) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-l.wanted:
		l.run(ctx)
	}
	return nil
}

// Want starts the watch.
func (l *LoadBalancers) Want() { l.want.Do(func() { close(l.wanted) }) }

// Changed wakes its one reader after a Service changed.
func (l *LoadBalancers) Changed() <-chan struct{} { return l.changed }

// All returns the Services, which the caller must not change. Before the first complete list known is false, and err is
// why the API server does not respond, if so.
func (l *LoadBalancers) All() (all []*api.Service, known bool, err error) {
	return l.services.each(), l.services.isFull(), l.followers[0].failure()
}
