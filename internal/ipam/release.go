package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Release frees all addresses of a handle and returns them. A handle that does not exist holds nothing: no error.
func (c *Client) Release(ctx context.Context, handle string) ([]netip.Addr, error) {
	return c.ReleaseOwned(ctx, Owner{Handle: handle})
}

// ReleaseOwned is Release for the owner's addresses under its handle only.
func (c *Client) ReleaseOwned(ctx context.Context, owner Owner) ([]netip.Addr, error) {
	return c.ReleaseKnowing(ctx, owner, "", nil)
}

// ReleaseKnowing is ReleaseOwned with a known IPAMConfig, which then is not read. If the host's pools and labels are
// known too, a block of the host that became idle is released if its pool no longer selects the host.
func (c *Client) ReleaseKnowing(ctx context.Context, owner Owner, host string, known *Known) ([]netip.Addr, error) {
	r := release{client: c, owner: owner, freed: map[netip.Addr]bool{}}
	if known != nil {
		r.cool = &known.Config
	}
	if err := c.retry(ctx, func() error { return r.try(ctx) }); err != nil {
		return nil, fmt.Errorf("release handle %s: %w", owner.Handle, err)
	}
	if known != nil {
		if err := c.releaseUnselected(ctx, r.blocks, host, known); err != nil {
			return nil, fmt.Errorf("release handle %s: %w", owner.Handle, err)
		}
	}
	return slices.SortedFunc(maps.Keys(r.freed), netip.Addr.Compare), nil
}

// HandOver is Release without cooldown, for a caller that assigns the same addresses to the same pod next.
func (c *Client) HandOver(ctx context.Context, handle string) ([]netip.Addr, error) {
	return c.ReleaseKnowing(ctx, Owner{Handle: handle}, "", &Known{})
}

// release is one Release over all its tries.
type release struct {
	client *Client
	owner  Owner
	cool   *api.IPAMConfigSpec // nil: to be read
	freed  map[netip.Addr]bool // by all tries: one may free in a block and fail with a conflict at the next
	blocks []*Block            // as the last try wrote them
}

func (r *release) try(ctx context.Context) error {
	h, err := r.read(ctx)
	if err != nil || h == nil {
		return err
	}
	blocks, err := r.client.readBlocksOf(ctx, h)
	if err != nil {
		return err
	}
	for _, b := range blocks {
		b.FreeCooled(cooldown(*r.cool, r.client.now()))
	}
	plan, addrs := PlanRelease(h, r.owner, blocks, cooldown(*r.cool, r.client.now()))
	for _, a := range addrs {
		r.freed[a] = true
	}
	r.blocks = plan.blocks(update)
	_, err = r.client.commit(ctx, plan)
	return err
}

// read reads the handle and, beside it, the configuration if that is not known.
func (r *release) read(ctx context.Context) (h *api.IPAMHandle, err error) {
	if r.cool != nil {
		return r.client.readHandle(ctx, r.owner.Handle)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { h, err = r.client.readHandle(ctx, r.owner.Handle); return err })
	g.Go(func() error {
		cfg, err := r.client.readConfig(ctx)
		r.cool = &cfg
		return err
	})
	if err := g.Wait(); err != nil {
		r.cool = nil
		return nil, err
	}
	return h, nil
}

// releaseUnselected releases the host's idle blocks in pools that no longer select the host. A conflict is no error:
// the block is looked at again later.
func (c *Client) releaseUnselected(ctx context.Context, blocks []*Block, host string, known *Known) error {
	for _, b := range blocks {
		if !b.OwnedBy(host) || !b.Empty() || selected(b, known) {
			continue
		}
		if err := c.releaseBlock(ctx, b); err != nil && !datastore.Contended(err) {
			return fmt.Errorf("give up block %s: %w", b.cidr, err)
		}
	}
	return nil
}

// selected reports whether the pool of a block selects the node, as far as is known.
func selected(b *Block, known *Known) bool {
	st := State{}
	st.storePools(known.Pools)
	return !slices.ContainsFunc(st.Pools, func(p Pool) bool {
		return p.Has(b.cidr) && !p.Nodes.Matches(known.NodeLabels)
	})
}

// releaseBlock deletes a block and its owner's affinity, if the block is idle and unchanged since it was read. The
// affinity goes through the state pendingDeletion, so that an owner that is about to use the block reverts it:
// whichever of the two writes the block first wins.
func (c *Client) releaseBlock(ctx context.Context, b *Block) error {
	if !b.Empty() {
		return fmt.Errorf("block %s is in use: %w", b.cidr, datastore.ErrConflict)
	}
	if b.Orphan() {
		return c.store.Delete(ctx, b.obj)
	}
	claim, unchanged, err := c.readClaim(ctx, b.owner(), b)
	switch {
	case err != nil:
		return err
	case !unchanged:
		return fmt.Errorf("block %s: %w", b.cidr, datastore.ErrConflict)
	case claim == nil:
		return c.store.Delete(ctx, b.obj)
	}
	leaving := withState(claim, b.cidr, api.AffinityPendingDeletion)
	if err := c.store.Update(ctx, leaving); err != nil {
		return err
	}
	if err := c.store.Delete(ctx, b.obj); err != nil {
		// The owner was faster. No traffic is routed to a block without a confirmed affinity, so restore that at once.
		back := withState(leaving, b.cidr, claim.Spec.State)
		if restore := c.store.Update(ctx, back); restore != nil && !datastore.Contended(restore) {
			err = errors.Join(err, restore)
		}
		return err
	}
	return c.store.Delete(ctx, leaving)
}

// readClaim returns the owner's affinity to a block, nil if there is none, and whether the block is unchanged since it
// was read.
func (c *Client) readClaim(ctx context.Context, owner string, b *Block) (claim *api.BlockAffinity, unchanged bool, err error) {
	claim = newAffinity(owner, b.cidr)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := c.store.Get(gctx, claim)
		if errors.Is(err, datastore.ErrNotFound) {
			claim = nil
			return nil
		}
		return err
	})
	g.Go(func() error {
		now := &api.IPAMBlock{Meta: api.Meta{Name: b.obj.Name}}
		err := c.store.Get(gctx, now)
		if errors.Is(err, datastore.ErrNotFound) {
			return nil
		}
		unchanged = now.UID == b.obj.UID && now.ResourceVersion == b.obj.ResourceVersion
		return err
	})
	return claim, unchanged, g.Wait()
}
