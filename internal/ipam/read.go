package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
)

// readSlow reads pools, reservations, affinities and configuration, which seldom change.
func (c *Client) readSlow(ctx context.Context, st *State, host string, opts datastore.ListOptions) error {
	g, ctx := errgroup.WithContext(ctx)
	var pools api.IPPoolList
	var reservations api.IPReservationList
	var affinities []*api.BlockAffinity
	g.Go(func() (err error) { st.Config, err = c.readConfig(ctx); return err })
	g.Go(func() error { return c.store.List(ctx, &reservations, opts) })
	g.Go(func() error { return c.store.List(ctx, &pools, opts) })
	g.Go(func() (err error) { affinities, err = c.readAffinities(ctx, host, opts); return err })
	if err := g.Wait(); err != nil {
		return err
	}
	st.storeClaims(affinities)
	st.storePools(pools.Items)
	return st.storeReservations(reservations.Items)
}

func (c *Client) readConfig(ctx context.Context) (api.IPAMConfigSpec, error) {
	cfg := api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}
	err := c.store.Get(ctx, &cfg)
	if errors.Is(err, datastore.ErrNotFound) {
		return DefaultConfig(), nil
	}
	return cfg.Spec, err
}

// DefaultConfig returns the configuration of a cluster without an IPAMConfig.
func DefaultConfig() api.IPAMConfigSpec { return api.IPAMConfigSpec{AutoAllocateBlocks: true} }

func (c *Client) readAffinities(ctx context.Context, host string, opts datastore.ListOptions) ([]*api.BlockAffinity, error) {
	opts.Host = host
	var list api.BlockAffinityList
	if err := c.store.List(ctx, &list, opts); err != nil {
		return nil, err
	}
	var own []*api.BlockAffinity
	for i := range list.Items {
		// The label is a hash of the name, so compare the name itself.
		if a := &list.Items[i]; claimant(a) == host {
			own = append(own, a)
		}
	}
	return own, nil
}

func (c *Client) readLabels(ctx context.Context, host string) (map[string]string, error) {
	node := api.Node{Meta: api.Meta{Name: host}}
	if err := c.store.Get(ctx, &node); err != nil {
		return nil, err
	}
	return node.Labels, nil
}

// readHandle returns a handle; nil if it does not exist.
func (c *Client) readHandle(ctx context.Context, id string) (*api.IPAMHandle, error) {
	h := &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(id)}, Spec: api.IPAMHandleSpec{HandleID: id}}
	err := c.store.Get(ctx, h)
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case h.Spec.HandleID != id:
		return nil, fmt.Errorf("%w: IPAMHandle %s belongs to handle ID %q, not to %q", ErrForeignHandle, h.Name, h.Spec.HandleID, id)
	}
	return h, nil
}

// RemoveForeign deletes the IPAMHandle that has the name of a handle and another ID, which differs in its case, so that
// the handle can be created. It is for tunnels only: their IDs have no capitals, so no other handle of that name is in
// use. Addresses of the deleted handle stay allocated.
func (c *Client) RemoveForeign(ctx context.Context, id string) error {
	if !names.OfTunnel(id) {
		return fmt.Errorf("IPAMHandle %s is not a tunnel's and may be in use", names.Handle(id))
	}
	h := &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(id)}, Spec: api.IPAMHandleSpec{HandleID: id}}
	err := c.store.Get(ctx, h)
	if errors.Is(err, datastore.ErrNotFound) || err == nil && h.Spec.HandleID == id {
		return nil // it is deleted or replaced already
	}
	if err == nil {
		err = c.store.Delete(ctx, h)
	}
	if err != nil {
		return fmt.Errorf("remove IPAMHandle %s: %w", h.Name, err)
	}
	return nil
}

// maxParallel bounds how many blocks are read or written at once.
const maxParallel = 8

// blockRead is the result of reading a block: neither block nor damage if it does not exist.
type blockRead struct {
	cidr   netip.Prefix
	block  *Block
	damage error
}

// readBlocks reads blocks in parallel.
func (c *Client) readBlocks(ctx context.Context, cidrs []netip.Prefix) ([]blockRead, error) {
	cidrs = slices.Clone(cidrs)
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	cidrs = slices.Compact(cidrs)
	out := make([]blockRead, len(cidrs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)
	for i, cidr := range cidrs {
		out[i].cidr = cidr
		g.Go(func() error {
			obj := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}}
			err := c.store.Get(ctx, obj)
			if errors.Is(err, datastore.ErrNotFound) {
				return nil
			}
			if err == nil {
				out[i].block, out[i].damage = ParseBlock(obj)
			}
			return err
		})
	}
	return out, g.Wait()
}

// readCluster lists all blocks.
func (c *Client) readCluster(ctx context.Context, opts datastore.ListOptions) ([]api.IPAMBlock, error) {
	var list api.IPAMBlockList
	err := c.store.List(ctx, &list, opts)
	return list.Items, err
}
