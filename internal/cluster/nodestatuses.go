package cluster

import (
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// nodeStatuses are the cluster's CalicoNodeStatus objects, as metadata only: each node writes its own every few
// seconds, with all its routes, and each write is sent to all watchers.
type nodeStatuses struct {
	of   *objectStore[api.CalicoNodeStatus]
	by   *follower
	wake chan struct{}
}

// followNodeStatuses starts a watch that WaitForSync does not wait for and that proves nothing: an agent without the
// right to it works as well.
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

// NodeStatuses returns the CalicoNodeStatus objects, by name, UID and revision only.
func (w *Watch) NodeStatuses() []api.CalicoNodeStatus { return w.nodeStatuses.of.all(nil) }

// NodeStatusesChanged wakes its one reader after NodeStatuses changed.
func (w *Watch) NodeStatusesChanged() <-chan struct{} { return w.nodeStatuses.wake }
