package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	reasonSecondGroup = "SecondGroupReady"
	secondGroup       = "ClusterInformation default is ready in %[1]s, where kube-controllers work, and in %[2]s: programs that start take " +
		"%[3]s, and a migration to the other group seems to have ended as soon as it begins. Find out which group has the cluster's objects, " +
		"for example by kubectl get %[4]s,%[5]s, and delete the other's: kubectl delete %[6]s default, or %[7]s"
)

// secondGroupPause is the least time between two looks for a second group: at rest a cluster's passes make no requests.
const secondGroupPause = 10 * time.Minute

// lookForSecondGroup warns by an Event of a ClusterInformation that is ready in the group that is not in use, if the one
// in use is ready, too. It makes one request in secondGroupPause, and another if there is such an object: Calico's own
// API server shows that of crd.projectcalico.org/v1. It belongs to the loop of passes.
func (c *Controllers) lookForSecondGroup(ctx context.Context, ready bool, now time.Time) error {
	if now.Before(c.secondDue) {
		return nil
	}
	err := c.reportSecondGroup(ctx, ready)
	if err == nil {
		c.secondDue = now.Add(secondGroupPause)
	}
	return err
}

func (c *Controllers) reportSecondGroup(ctx context.Context, ready bool) error {
	in := c.deps.Group.Known()
	other := in.Other()
	info := api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	err := c.deps.Store.In(other).Get(ctx, &info)
	switch {
	case errors.Is(err, datastore.ErrNotFound), errors.Is(err, datastore.ErrUnauthorized):
		return nil
	case errors.Is(err, datastore.ErrUnavailable): // Calico's own API server may be down, or left behind
		c.deps.Log.Debug("cannot look for a second group, later again", "err", err)
		return nil
	case err != nil:
		return fmt.Errorf("read ClusterInformation default of %s: %w", other, err)
	}
	if !ready || groups.LockOf(&info) != groups.Ready {
		return nil
	}
	has, err := c.deps.Store.Defined(ctx, other)
	if err != nil || has == "" {
		return err
	}
	plural := info.ResourceType().Plural
	c.deps.Events.Warn(reference(&info, &info.Meta), reasonSecondGroup, fmt.Sprintf(secondGroup, in, other, groups.V1,
		in.Resource("ipamblocks"), other.Resource("ipamblocks"), in.Resource(plural), other.Resource(plural)))
	return nil
}
