package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// allocatable is the type of Calico's condition of a pool.
const allocatable = "Allocatable"

// Calico's reasons of the condition.
const (
	reasonOK          = "OK"
	reasonDisabled    = api.PoolDisabled
	reasonTerminating = "Terminating"
	reasonOverlap     = "CIDROverlap"
)

// condition is the condition Allocatable of a pool.
func condition(pool *api.IPPool, all []api.IPPool) api.Condition {
	c := api.Condition{Type: allocatable, Status: "False"}
	other := overlapping(pool, all)
	switch {
	case pool.DeletionTimestamp != "":
		c.Reason, c.Message = reasonTerminating, "The pool is being deleted"
	case pool.Spec.Disabled:
		c.Reason, c.Message = reasonDisabled, "spec.disabled is true"
	case other != nil:
		c.Reason = reasonOverlap
		c.Message = fmt.Sprintf("%s overlaps %s of the older IPPool %s: an address could be in two blocks", pool.Spec.CIDR, other.Spec.CIDR, other.Name)
	default:
		c.Status, c.Reason, c.Message = "True", reasonOK, "Addresses can be assigned"
	}
	return c
}

// overlapping returns an older pool that overlaps one; nil if there is none.
func overlapping(pool *api.IPPool, all []api.IPPool) *api.IPPool {
	cidr, err := netip.ParsePrefix(pool.Spec.CIDR)
	if err != nil {
		return nil
	}
	for i := range all {
		other := &all[i]
		older := other.CreationTimestamp < pool.CreationTimestamp ||
			other.CreationTimestamp == pool.CreationTimestamp && other.Name < pool.Name
		if theirs, err := netip.ParsePrefix(other.Spec.CIDR); err == nil && older && other.Name != pool.Name && theirs.Overlaps(cidr) {
			return other
		}
	}
	return nil
}

// withCondition returns a pool's status with a condition besides those that others have written; false if it is unchanged.
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
	tried map[string]string // by UID: the revision for which the API server did not take the status
}

// sync writes the conditions that have changed. A conflict leads to a new revision, which is looked at again; a definition of Calico's
// without a status ignores the write, so each revision is tried once.
func (s *poolStatus) sync(ctx context.Context, pools []api.IPPool, now time.Time) error {
	var failed error
	for i := range pools {
		pool := pools[i]
		status, differs := withCondition(pool.Status, condition(&pool, pools), now)
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
