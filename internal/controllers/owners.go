package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// In projectcalico.org/v3 Calico's kube-controllers keep a deleted pool or tier until nothing uses it, by these
// finalizers. crd.projectcalico.org/v1 has none.
const (
	poolFinalizer = "projectcalico.org/ippool-finalizer"
	tierFinalizer = "projectcalico.org/tier-controller"
)

// withFinalizer returns an object's finalizers with or without one of them; false if they need no change.
func withFinalizer(m *api.Meta, name string, wanted bool) ([]string, bool) {
	all := []string{}
	if m.Foreign != nil {
		all = append(all, m.Finalizers...)
	}
	has := slices.Contains(all, name)
	if wanted {
		return append(all, name), !has
	}
	return slices.DeleteFunc(all, func(f string) bool { return f == name }), has
}

// keepsPool reports whether a pool must have its finalizer, and returns the blocks in it that must be released. A pool
// that is out of use has none unless it is being deleted: blocks in its range belong to another pool. A pool that is
// being deleted without it gets none, as the API server forbids to add one. A damaged block counts as used; if its
// range is unknown, in every pool.
func keepsPool(pool *api.IPPool, reason string, blocks []inventory.Block) (keeps bool, idle []api.Meta) {
	if pool.DeletionTimestamp == "" {
		return reason == api.PoolOK, nil
	}
	if _, has := withFinalizer(&pool.Meta, poolFinalizer, false); !has {
		return false, nil
	}
	cidr, _ := netip.ParsePrefix(pool.Spec.CIDR) // without a range there is no block in it
	for i := range blocks {
		b := &blocks[i]
		if b.CIDR.IsValid() && !b.CIDR.Overlaps(cidr) {
			continue
		}
		keeps = true
		if b.Damage == nil && !slices.ContainsFunc(b.Allocations, func(a inventory.Allocation) bool { return !a.Cooling() }) {
			idle = append(idle, b.Meta)
		}
	}
	return keeps, idle
}

// poolOwner keeps finalizers of pools.
type poolOwner struct {
	store *kubernetes.Store
	ipam  *ipam.Client
}

// sync corrects the finalizers of a pool, and releases idle blocks of one that is being deleted. While nothing differs
// it makes no request. Otherwise it makes one patch, the requests of ipam.Client.ReleaseBlock for each idle block, and
// one list of the blocks' names before a pool may go. A conflict is not an error: the next pass tries again.
func (o *poolOwner) sync(ctx context.Context, pool *api.IPPool, reason string, v *inventory.View) error {
	keeps, idle := keepsPool(pool, reason, v.Blocks)
	var failed []error
	for _, b := range idle {
		_, err := o.ipam.ReleaseBlock(ctx, v.Config, b)
		failed = append(failed, err)
	}
	list, differs := withFinalizer(&pool.Meta, poolFinalizer, keeps)
	if err := errors.Join(failed...); err != nil || !differs {
		return err
	}
	if pool.DeletionTimestamp != "" {
		if in, err := o.hasBlocks(ctx, pool); err != nil || in {
			return err
		}
	}
	return setFinalizers(ctx, o.store, pool, list)
}

// hasBlocks reports whether the API server has a block in a pool: the watch may be behind.
func (o *poolOwner) hasBlocks(ctx context.Context, pool *api.IPPool) (bool, error) {
	var blocks api.IPAMBlockList
	if err := o.store.List(ctx, &blocks, datastore.ListOptions{NamesOnly: true}); err != nil {
		return false, fmt.Errorf("list the blocks of IPPool %s: %w", pool.Name, err)
	}
	seen := make([]inventory.Block, len(blocks.Items))
	for i := range seen {
		seen[i].CIDR, _ = names.ParseBlock(blocks.Items[i].Name)
	}
	keeps, _ := keepsPool(pool, "", seen)
	return keeps, nil
}

// setFinalizers writes an object's finalizers. If the object has changed or is gone, nothing happens.
func setFinalizers(ctx context.Context, store *kubernetes.Store, obj api.Resource, list []string) error {
	m := obj.GetMeta()
	patch := map[string]any{"metadata": map[string]any{"uid": m.UID, "resourceVersion": m.ResourceVersion, "finalizers": list}}
	answer := api.NewLike(obj)
	answer.GetMeta().Name = m.Name
	err := store.MergePatch(ctx, answer, patch)
	if err == nil || datastore.Contended(err) || errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("finalizers of %s %s: %w", obj.ResourceType().Kind, m.Name, err)
}
