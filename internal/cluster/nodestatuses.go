package cluster

import (
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// nodeStatuses are the cluster's CalicoNodeStatus objects, as metadata alone: each is written by the node that it asks,
// every few seconds and with all its routes, and sent to all that watch.
type nodeStatuses struct {
	of   *objectStore[api.CalicoNodeStatus]
	by   *follower
	wake chan struct{}
}

// followNodeStatuses is not waited for at the start, and proves nothing: an agent that may not read them works as well.
func (w *Watch) followNodeStatuses() (*nodeStatuses, error) {
	q := &nodeStatuses{wake: make(chan struct{}, 1)}
	q.of = newObjectStore(sameRevision, func(*api.CalicoNodeStatus) { wait.Signal(q.wake) })
	var err error
	q.by, err = follow(&w.feed, source[api.CalicoNodeStatus]{
		name: "CalicoNodeStatus", of: (*api.CalicoNodeStatus)(nil).ResourceType(), partial: true, optional: true,
		trim: func(s *api.CalicoNodeStatus) {
			*s = api.CalicoNodeStatus{Meta: api.Meta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}}
		},
	}, q.of)
	return q, err
}

// NodeStatuses returns the CalicoNodeStatus objects that there are, by name, identity and revision alone.
func (w *Watch) NodeStatuses() []api.CalicoNodeStatus { return w.nodeStatuses.of.all(nil) }

// NodeStatusesChanged wakes its one reader after NodeStatuses changed.
func (w *Watch) NodeStatusesChanged() <-chan struct{} { return w.nodeStatuses.wake }
