package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

const (
	// batchBlocks is how many blocks are written after one check of pods and nodes: a batch takes seconds.
	batchBlocks = 32
	// fewPods is how many pods of a node are read one by one; more are listed.
	fewPods = 4
	// parallel bounds the requests that are under way at once.
	parallel = 8
)

// Sweeper carries decisions out.
type Sweeper struct {
	// IPAM has the addresses, Cluster the Nodes and Pods. Both are read without a cache.
	IPAM, Cluster datastore.Store
	Client        *ipam.Client
	Log           *slog.Logger
}

// Report is the result of a sweep.
type Report struct {
	// Freed are addresses by the node that they were assigned on.
	Freed map[string]int
	// Spared are holders that turned out to be in use, or had changed.
	Spared int
	// Handles, Blocks and Affinities were deleted, Confirmed are affinities that were confirmed.
	Handles, Blocks, Affinities, Confirmed int
}

// Addresses returns how many were freed.
func (r *Report) Addresses() int {
	n := 0
	for _, of := range r.Freed {
		n += of
	}
	return n
}

// sweep is one Sweep.
type sweep struct {
	*Sweeper
	view    *inventory.View
	handles map[string]*inventory.Handle // those that the view shows

	mu     sync.Mutex // guards report
	report Report
}

// Sweep carries out a decision. Failed and changed objects are left to the next pass; an unavailable datastore or API
// server ends the sweep.
func (s *Sweeper) Sweep(ctx context.Context, view *inventory.View, d *Decision) (Report, error) {
	w := &sweep{Sweeper: s, view: view, report: Report{Freed: map[string]int{}}, handles: map[string]*inventory.Handle{}}
	for i := range view.Handles {
		w.handles[view.Handles[i].Name] = &view.Handles[i]
	}
	var errs []error
	for _, step := range []func(context.Context, *Decision) error{w.freeHolders, w.deleteHandles, w.releaseBlocks, w.repairAffinities} {
		err := step(ctx, d)
		errs = append(errs, err)
		if hopeless(err) || ctx.Err() != nil {
			break
		}
	}
	return w.report, errors.Join(errs...)
}

// hopeless reports whether further requests will fail too, or would burden an overloaded server.
func hopeless(err error) bool {
	return errors.Is(err, datastore.ErrUnavailable) || errors.Is(err, datastore.ErrUnauthorized) || errors.Is(err, context.Canceled)
}

// freeHolders frees addresses, some blocks at a time.
func (w *sweep) freeHolders(ctx context.Context, d *Decision) error {
	var errs []error
	for rest := d.due(audit.Free); len(rest) > 0 && ctx.Err() == nil; {
		n := batch(rest)
		if err := w.freeBatch(ctx, rest[:n]); err != nil {
			errs = append(errs, err)
			if hopeless(err) {
				break
			}
		}
		rest = rest[n:]
	}
	return errors.Join(errs...)
}

// batch returns how many of the holders, which are in the order of their addresses, fill the blocks of one batch.
func batch(holders []audit.Candidate) int {
	blocks := map[*inventory.Block]bool{}
	for i := range holders {
		blocks[holders[i].Holder.Addresses[0].Block] = true
		if len(blocks) > batchBlocks {
			return i
		}
	}
	return len(holders)
}

// freeBatch frees the addresses of holders that do not use them, by a fresh read from the API server.
func (w *sweep) freeBatch(ctx context.Context, due []audit.Candidate) error {
	index, err := w.look(ctx, due)
	if err != nil {
		return fmt.Errorf("check again whether addresses are in use: %w", err)
	}
	var dead []*audit.Holder
	var expired []ipam.Expired
	for i := range due {
		h := due[i].Holder
		if !unusedNow(index, h) {
			w.Log.Warn("address kept: it looked unused and is not", "handle", h.Handle, "address", h.Addresses[0].Address, "reason", h.Why)
			w.report.Spared++
			continue
		}
		dead, expired = append(dead, h), append(expired, h.Expired())
	}
	done, err := w.Client.Expire(ctx, w.view.Config, expired)
	w.report.Spared += len(dead) - len(done)
	freed := make([]*audit.Holder, len(done))
	for i, at := range done {
		freed[i] = dead[at]
		w.note(freed[i])
	}
	return errors.Join(err, w.deleteFreed(ctx, freed))
}

func (w *sweep) note(h *audit.Holder) {
	for _, a := range h.Addresses {
		w.report.Freed[a.Node]++
	}
	w.Log.Info("addresses freed", "addresses", len(h.Addresses), "first", h.Addresses[0].String(), "handle", h.Handle, "reason", h.Why)
}

// unusedNow judges a holder again. If it was due because its node was gone, the node must still be gone.
func unusedNow(index *inventory.Index, h *audit.Holder) bool {
	return !slices.ContainsFunc(h.Addresses, func(a audit.Held) bool {
		verdict, _ := index.Judge(a.Allocation)
		return !verdict.Unused() || h.Orphaned && verdict != inventory.Orphaned
	})
}

// deleteFreed deletes the handles of freed holders, as the view showed them. One that has changed is left to a later
// pass.
func (w *sweep) deleteFreed(ctx context.Context, freed []*audit.Holder) error {
	return each(ctx, freed, func(ctx context.Context, h *audit.Holder) error {
		if seen := w.handles[inventory.HandleName(h.Handle)]; h.Handle != "" && seen != nil {
			return w.deleteHandle(ctx, seen, h.Handle)
		}
		return nil
	})
}

func (w *sweep) deleteHandle(ctx context.Context, seen *inventory.Handle, id string) error {
	gone, err := w.Client.DeleteHandle(ctx, seen.Meta, id)
	if gone {
		w.mu.Lock()
		w.report.Handles++
		w.mu.Unlock()
	}
	return err
}

// deleteHandles deletes handles that hold nothing. One consistent list of all blocks confirms that for all of them:
// none was written for the grace period, and an assignment writes the handle before the block.
func (w *sweep) deleteHandles(ctx context.Context, d *Decision) error {
	unused, err := w.exceptTunnels(ctx, d.due(audit.RemoveHandle))
	if err != nil || len(unused) == 0 {
		return err
	}
	blocks, err := inventory.ReadBlocks(ctx, w.IPAM)
	if err != nil {
		return fmt.Errorf("check again which handles hold nothing: %w", err)
	}
	holding := audit.Holding(blocks)
	var damaged []netip.Prefix
	for i := range blocks {
		if blocks[i].Damage != nil {
			damaged = append(damaged, blocks[i].CIDR)
		}
	}
	return each(ctx, unused, func(ctx context.Context, h *inventory.Handle) error {
		if holding[h.Name] {
			return nil
		}
		return w.deleteEmpty(ctx, h, damaged)
	})
}

// each runs do for all items, some in parallel.
func each[T any](ctx context.Context, all []T, do func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, one := range all {
		g.Go(func() error { return do(ctx, one) })
	}
	return g.Wait()
}

// deleteEmpty deletes a handle, unless it may hold something in a damaged block.
func (w *sweep) deleteEmpty(ctx context.Context, h *inventory.Handle, damaged []netip.Prefix) error {
	if len(damaged) == 0 {
		return w.deleteHandle(ctx, h, h.ID)
	}
	now := inventory.Handle{Meta: api.Meta{Name: h.Name}}
	err := w.IPAM.Get(ctx, &now)
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("read which blocks handle %s names: %w", h.Name, err)
	case now.ResourceVersion != h.ResourceVersion, audit.MayHold(&now, damaged):
		return nil
	}
	return w.deleteHandle(ctx, h, h.ID)
}

// exceptTunnels returns the handles that belong to no tunnel of an existing node. If a handle has a tunnel's name and
// only its metadata was seen, it is read.
func (w *sweep) exceptTunnels(ctx context.Context, due []audit.Candidate) (unused []*inventory.Handle, err error) {
	index := inventory.NewIndex(w.view.Nodes, nil)
	for _, c := range due {
		h := *c.Handle
		if h.Named && audit.OfTunnel(index, &h) {
			seen := h.ResourceVersion
			err := w.IPAM.Get(ctx, &h)
			if errors.Is(err, datastore.ErrNotFound) || err == nil && (h.ResourceVersion != seen || audit.OfTunnel(index, &h)) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("check whether handle %s is of a tunnel: %w", h.Name, err)
			}
		}
		unused = append(unused, &h)
	}
	return unused, nil
}

// releaseBlocks deletes idle blocks and their affinities.
func (w *sweep) releaseBlocks(ctx context.Context, d *Decision) error {
	due, err := w.stillGone(ctx, d.due(audit.RemoveBlock))
	if err != nil {
		return err
	}
	return each(ctx, due, func(ctx context.Context, c audit.Candidate) error {
		gone, err := w.Client.ReleaseBlock(ctx, w.view.Config, c.Block.Meta)
		return w.count(&w.report.Blocks, gone, err, "block removed", c.Block.Name, c.Why)
	})
}

// repairAffinities deletes affinities without a block of their own, and confirms pending ones of blocks in use.
func (w *sweep) repairAffinities(ctx context.Context, d *Decision) error {
	due, err := w.stillGone(ctx, d.due(audit.RemoveClaim))
	if err != nil {
		return err
	}
	return each(ctx, append(due, d.due(audit.Claim)...), func(ctx context.Context, c audit.Candidate) error {
		if c.Fix == audit.Claim {
			done, err := w.Client.ConfirmAffinity(ctx, c.Claim)
			return w.count(&w.report.Confirmed, done, err, "affinity confirmed", c.Claim.Name, c.Why)
		}
		gone, err := w.Client.DeleteAffinity(ctx, c.Claim)
		return w.count(&w.report.Affinities, gone, err, "affinity removed", c.Claim.Name, c.Why)
	})
}

func (w *sweep) count(n *int, done bool, err error, what, name, why string) error {
	if done {
		w.mu.Lock()
		*n++
		w.mu.Unlock()
		w.Log.Info(what, "name", name, "reason", why)
	}
	return err
}
