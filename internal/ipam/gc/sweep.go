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
	// batchBlocks is in how many blocks addresses are freed after one look at who uses them: so many are written within seconds.
	batchBlocks = 32
	// fewPods is how many pods of a node are read one by one; more are listed.
	fewPods = 4
	// parallel bounds the requests that are under way at once.
	parallel = 8
)

// Sweeper carries decisions out.
type Sweeper struct {
	// IPAM has the addresses, Cluster the Nodes and Pods. Both are asked past all caches.
	IPAM, Cluster datastore.Store
	Client        *ipam.Client
	Log           *slog.Logger
}

// Report is what a sweep has done.
type Report struct {
	// Freed are addresses by the node that they were assigned on.
	Freed map[string]int
	// Spared are holders who turned out to be alive, or had changed.
	Spared int
	// Handles, Blocks and Affinities were removed, Confirmed are affinities that were completed.
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

// Sweep carries out what was decided by a view. What fails, or turns out to be otherwise, is left for the next pass to see; a
// datastore or an API server that does not answer ends the sweep.
func (s *Sweeper) Sweep(ctx context.Context, view *inventory.View, d *Decision) (Report, error) {
	w := &sweep{Sweeper: s, view: view, report: Report{Freed: map[string]int{}}, handles: map[string]*inventory.Handle{}}
	for i := range view.Handles {
		w.handles[view.Handles[i].Name] = &view.Handles[i]
	}
	var errs []error
	for _, step := range []func(context.Context, *Decision) error{w.freeHolders, w.forgetHandles, w.giveUpBlocks, w.mendAffinities} {
		err := step(ctx, d)
		errs = append(errs, err)
		if hopeless(err) || ctx.Err() != nil {
			break
		}
	}
	return w.report, errors.Join(errs...)
}

// hopeless reports that whatever is asked next will fail too, or will be a burden to a server that has too much to do.
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

// batch returns how many of the holders, which are in the order of their addresses, fill as many blocks as are written at once.
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

// freeBatch frees the addresses of those holders who do not use them, as the API server says now.
func (w *sweep) freeBatch(ctx context.Context, due []audit.Candidate) error {
	index, err := w.look(ctx, due)
	if err != nil {
		return fmt.Errorf("look once more who uses addresses: %w", err)
	}
	var dead []*audit.Holder
	var expired []ipam.Expired
	for i := range due {
		h := due[i].Holder
		if !stillUnused(index, h) {
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
	return errors.Join(err, w.forgetFreed(ctx, freed))
}

func (w *sweep) note(h *audit.Holder) {
	for _, a := range h.Addresses {
		w.report.Freed[a.Node]++
	}
	w.Log.Info("addresses freed", "addresses", len(h.Addresses), "first", h.Addresses[0].String(), "handle", h.Handle, "reason", h.Why)
}

// stillUnused judges a holder anew. One whose node is back had no grace.
func stillUnused(index *inventory.Index, h *audit.Holder) bool {
	return !slices.ContainsFunc(h.Addresses, func(a audit.Held) bool {
		verdict, _ := index.Judge(a.Allocation)
		return !verdict.Unused() || h.Orphaned && verdict != inventory.Orphaned
	})
}

// forgetFreed removes the handles of those who have just been freed. Their objects are as the view showed them, or stay for a later pass.
func (w *sweep) forgetFreed(ctx context.Context, freed []*audit.Holder) error {
	return each(ctx, freed, func(ctx context.Context, h *audit.Holder) error {
		if seen := w.handles[inventory.HandleName(h.Handle)]; h.Handle != "" && seen != nil {
			return w.forget(ctx, seen, h.Handle)
		}
		return nil
	})
}

func (w *sweep) forget(ctx context.Context, seen *inventory.Handle, id string) error {
	gone, err := w.Client.ForgetHandle(ctx, seen.Meta, id)
	if gone {
		w.mu.Lock()
		w.report.Handles++
		w.mu.Unlock()
	}
	return err
}

// forgetHandles removes handles that hold nothing. One list of all blocks, as they are now, says for all of them that this is so: none
// has been written for the grace, and whoever assigns by a handle writes it first.
func (w *sweep) forgetHandles(ctx context.Context, d *Decision) error {
	unused, err := w.notOfTunnels(ctx, d.due(audit.RemoveHandle))
	if err != nil || len(unused) == 0 {
		return err
	}
	blocks, err := inventory.ReadBlocks(ctx, w.IPAM)
	if err != nil {
		return fmt.Errorf("look once more which handles hold nothing: %w", err)
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
		return w.forgetOutside(ctx, h, damaged)
	})
}

// each does something with all of a list, some of them at a time.
func each[T any](ctx context.Context, all []T, do func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, one := range all {
		g.Go(func() error { return do(ctx, one) })
	}
	return g.Wait()
}

// forgetOutside removes a handle, unless it may hold something in a damaged block.
func (w *sweep) forgetOutside(ctx context.Context, h *inventory.Handle, damaged []netip.Prefix) error {
	if len(damaged) == 0 {
		return w.forget(ctx, h, h.ID)
	}
	now := inventory.Handle{Meta: api.Meta{Name: h.Name}}
	err := w.IPAM.Get(ctx, &now)
	switch {
	case errors.Is(err, datastore.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("look where handle %s holds something: %w", h.Name, err)
	case now.ResourceVersion != h.ResourceVersion, audit.MayHold(&now, damaged):
		return nil
	}
	return w.forget(ctx, h, h.ID)
}

// notOfTunnels reads the handles of which nothing but the name was seen, and that is of a tunnel of a node that exists. It returns those
// that are not the node's, and all others.
func (w *sweep) notOfTunnels(ctx context.Context, due []audit.Candidate) (unused []*inventory.Handle, err error) {
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
				return nil, fmt.Errorf("look whether handle %s is of a tunnel: %w", h.Name, err)
			}
		}
		unused = append(unused, &h)
	}
	return unused, nil
}

// giveUpBlocks removes blocks, and the claims of them.
func (w *sweep) giveUpBlocks(ctx context.Context, d *Decision) error {
	due, err := w.notBack(ctx, d.due(audit.RemoveBlock))
	if err != nil {
		return err
	}
	return each(ctx, due, func(ctx context.Context, c audit.Candidate) error {
		gone, err := w.Client.GiveUp(ctx, w.view.Config, c.Block.Meta)
		return w.count(&w.report.Blocks, gone, err, "block removed", c.Block.Name, c.Why)
	})
}

// mendAffinities removes claims of nothing, and completes those of blocks that are in use.
func (w *sweep) mendAffinities(ctx context.Context, d *Decision) error {
	due, err := w.notBack(ctx, d.due(audit.RemoveClaim))
	if err != nil {
		return err
	}
	return each(ctx, append(due, d.due(audit.Claim)...), func(ctx context.Context, c audit.Candidate) error {
		if c.Fix == audit.Claim {
			done, err := w.Client.ConfirmClaim(ctx, c.Claim)
			return w.count(&w.report.Confirmed, done, err, "affinity confirmed", c.Claim.Name, c.Why)
		}
		gone, err := w.Client.DropClaim(ctx, c.Claim)
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
