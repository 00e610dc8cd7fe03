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
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// condition returns the correct condition Allocatable of a pool.
func condition(pool *ipam.Pool) api.Condition {
	if pool.Reason == api.PoolOK {
		return api.Condition{Type: api.Allocatable, Status: "True", Reason: api.PoolOK, Message: "Addresses can be assigned"}
	}
	return api.Condition{Type: api.Allocatable, Status: "False", Reason: pool.Reason, Message: pool.Why}
}

// withCondition returns the conditions with want, and the conditions of other types unchanged; false if nothing
// differs. Any message of a True condition is equal.
func withCondition(had []api.Condition, want api.Condition, now time.Time) (next []api.Condition, differs bool) {
	want.LastTransitionTime = now.UTC().Format(time.RFC3339)
	for _, c := range had {
		switch {
		case c.Type != want.Type:
			next = append(next, c)
		case c.Status == want.Status && c.Reason == want.Reason && (c.Message == want.Message || c.Status == "True"):
			return had, false
		case c.Status == want.Status:
			want.LastTransitionTime = c.LastTransitionTime
		}
	}
	return append(next, want), true
}

// CopyConditions sets the condition Allocatable of each pool in target to the one that the pool of that name in source
// should have, and returns the pools of target that have changed. source is all pools of a group.
func CopyConditions(source, target []api.IPPool, now time.Time) (changed []*api.IPPool) {
	want := map[string]api.Condition{}
	for i, parsed := range ipam.ParsePools(source) {
		want[source[i].Name] = condition(&parsed)
	}
	for i := range target {
		p := &target[i]
		c, there := want[p.Name]
		if !there {
			continue
		}
		if p.Status == nil {
			p.Status = &api.IPPoolStatus{}
		}
		next, differs := withCondition(p.Status.Conditions, c, now)
		if p.Status.Conditions = next; differs {
			changed = append(changed, p)
		}
	}
	return changed
}

// poolStatus writes conditions of pools.
type poolStatus struct {
	store *kubernetes.Store
	owner poolOwner
	warn  func(about api.ObjectReference, reason, text string)
	tried map[string]string // by UID: the revision whose status the API server refused
	told  map[string]string // by UID: the content of the last Event
}

// tell writes an Event about a pool that cannot be used although its author expects it, once for each text.
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

// sync writes Events about pools and, unless another controller keeps them, changed conditions and, in a group with
// them, finalizers. The blocks of a datastore that is not ready are not known.
func (s *poolStatus) sync(ctx context.Context, v *inventory.View, keeps, finalizers bool, now time.Time) error {
	var failed []error
	for i, parsed := range ipam.ParsePools(v.Pools) {
		pool := v.Pools[i]
		s.tell(&pool, &parsed)
		if !keeps {
			continue
		}
		failed = append(failed, s.write(ctx, &pool, &parsed, now))
		if finalizers && v.Ready {
			failed = append(failed, s.owner.sync(ctx, &pool, parsed.Reason, v))
		}
	}
	return errors.Join(failed...)
}

// write writes a pool's condition. A conflict leads to a new revision, which is checked again. A definition of Calico's
// without a status ignores the write, so each revision is tried once.
func (s *poolStatus) write(ctx context.Context, pool *api.IPPool, parsed *ipam.Pool, now time.Time) error {
	var had []api.Condition
	if pool.Status != nil {
		had = pool.Status.Conditions
	}
	next, differs := withCondition(had, condition(parsed), now)
	revision := pool.ResourceVersion
	if !differs || s.tried[pool.UID] == revision {
		return nil
	}
	pool.Status = &api.IPPoolStatus{Conditions: next}
	err := s.store.UpdateStatus(ctx, pool)
	if datastore.Contended(err) {
		s.tried[pool.UID] = revision
		return nil
	}
	if err != nil {
		return fmt.Errorf("status of IPPool %s: %w", pool.Name, err)
	}
	return nil
}
