package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/policy"
)

// housekeeping keeps the cluster's own objects in order. It compares the watched objects, and makes no request while
// they are correct.
type housekeeping struct {
	store    *kubernetes.Store
	defaults defaultPools
	pools    poolStatus
	set      map[string]string // the environment, for the status
	reported string            // the settings in the object's status
	tiers    groups.Group      // where the built-in Tiers are
	group    *groups.Current
}

func newHousekeeping(deps *Deps, client *ipam.Client) *housekeeping {
	return &housekeeping{
		store: deps.Store, group: deps.Group, set: deps.Config.Set, defaults: defaultPools{store: deps.Store, want: deps.Config.Pools},
		pools: poolStatus{store: deps.Store, warn: deps.Events.Warn, tried: map[string]string{}, told: map[string]string{},
			owner: poolOwner{deps.Store, client}},
	}
}

// sync writes the differences. In projectcalico.org/v3 Calico keeps conditions and finalizers of pools, unless alone.
func (h *housekeeping) sync(ctx context.Context, v *inventory.View, obj *api.KubeControllersConfiguration,
	s Settings, alone bool, now time.Time) error {
	in := h.group.Known()
	return errors.Join(
		h.defaults.sync(ctx, v),
		h.configuration(ctx, obj, s),
		h.pools.sync(ctx, v, in != groups.V3 || alone, in == groups.V3, now),
		h.builtInTiers(ctx, in),
		duties.LabelAffinities(ctx, h.store, v.Affinities),
	)
}

// builtInTiers creates the Tiers that Calico has in each cluster of a group, once. In crd.projectcalico.org/v1 this is
// default: without it calicoctl creates no policy in that tier. In projectcalico.org/v3, where the API server has only
// tiers with an object, it is also the tiers of ClusterNetworkPolicies. No policy needs them here: it has its tier
// without an object. Existing Tiers stay unchanged.
func (h *housekeeping) builtInTiers(ctx context.Context, in groups.Group) error {
	if h.tiers == in {
		return nil
	}
	all := []policy.Tier{policy.TierDefault}
	if in == groups.V3 {
		all = append(all, policy.TierAdmin, policy.TierBaseline)
	}
	for _, t := range all {
		action := api.CalicoDeny
		if t.End == policy.Pass {
			action = api.CalicoPass
		}
		tier := &api.CalicoTier{Meta: api.Meta{Name: t.Name}, Spec: api.CalicoTierSpec{Order: &t.Order, DefaultAction: action}}
		err := h.store.Create(ctx, tier)
		if err != nil && !datastore.Contended(err) && !errors.Is(err, datastore.ErrNotFound) { // the definition may be absent
			return fmt.Errorf("create Tier %s: %w", tier.Name, err)
		}
	}
	h.tiers = in
	return nil
}

// configuration creates the object if it is missing, and writes the settings in force into its status when they change.
func (h *housekeeping) configuration(ctx context.Context, obj *api.KubeControllersConfiguration, s Settings) error {
	if obj == nil {
		obj = defaultConfiguration()
		err := h.store.Create(ctx, obj)
		switch {
		case errors.Is(err, datastore.ErrNotFound): // Calico's definitions may lack the kind
			return nil
		case datastore.Contended(err):
			return nil
		case err != nil:
			return fmt.Errorf("create KubeControllersConfiguration %s: %w", api.DefaultName, err)
		}
	}
	status := api.KubeControllersConfigurationStatus{RunningConfig: s.running(), EnvironmentVars: h.set}
	body, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("encode the running configuration: %w", err)
	}
	if h.reported == string(body) {
		return nil
	}
	// A patch: Calico's own fields of the object are not known here.
	err = h.store.SetStatus(ctx, obj, status)
	if datastore.Contended(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("status of KubeControllersConfiguration %s: %w", api.DefaultName, err)
	}
	h.reported = string(body)
	return nil
}
