package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
)

// condition is the condition Allocatable that a pool should have.
func condition(pool *ipam.Pool) api.Condition {
	if pool.Reason == api.PoolOK {
		return api.Condition{Type: api.Allocatable, Status: "True", Reason: api.PoolOK, Message: "Addresses can be assigned"}
	}
	return api.Condition{Type: api.Allocatable, Status: "False", Reason: pool.Reason, Message: pool.Why}
}

// withCondition returns a pool's status with a condition besides those that others have written; false if it is
// unchanged.
func withCondition(had *api.IPPoolStatus, want api.Condition, now time.Time) (*api.IPPoolStatus, bool) {
	next := &api.IPPoolStatus{}
	want.LastTransitionTime = now.UTC().Format(time.RFC3339)
	if had != nil {
		for _, c := range had.Conditions {
			switch {
			case c.Type != want.Type:
				next.Conditions = append(next.Conditions, c)
			case c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message:
				return had, false
			case c.Status == want.Status:
				want.LastTransitionTime = c.LastTransitionTime
			}
		}
	}
	next.Conditions = append(next.Conditions, want)
	return next, true
}

// poolStatus writes conditions of pools.
type poolStatus struct {
	store *kubernetes.Store
	warn  func(about api.ObjectReference, reason, text string)
	tried map[string]string // by UID: the revision for which the API server did not take the status
	told  map[string]string // by UID: what the last Event says
}

// tell writes an Event about a pool that its author thinks is in use, once for each text.
func (s *poolStatus) tell(obj *api.IPPool, pool *ipam.Pool) {
	reason := pool.Reason
	switch reason {
	case api.PoolInvalid:
		reason = "InvalidPool" // as the agents call it
	case api.PoolOverlap:
	default:
		delete(s.told, obj.UID)
		return
	}
	if s.told[obj.UID] == reason+pool.Why {
		return
	}
	s.told[obj.UID] = reason + pool.Why
	s.warn(reference(obj, &obj.Meta), reason, pool.Why+"; nothing is assigned from the pool")
}

// sync writes the conditions that have changed. A conflict leads to a new revision, which is looked at again; a
// definition of Calico's without a status ignores the write, so each revision is tried once.
func (s *poolStatus) sync(ctx context.Context, pools []api.IPPool, now time.Time) error {
	var failed error
	for i, parsed := range ipam.ParsePools(pools) {
		pool := pools[i]
		s.tell(&pool, &parsed)
		status, differs := withCondition(pool.Status, condition(&parsed), now)
		if !differs || s.tried[pool.UID] == pool.ResourceVersion {
			continue
		}
		revision := pool.ResourceVersion
		pool.Status = status
		switch err := s.store.UpdateStatus(ctx, &pool); {
		case datastore.Contended(err):
			s.tried[pool.UID] = revision
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("status of IPPool %s: %w", pool.Name, err))
		}
	}
	return failed
}
