package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
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
	if len(d.Holders) > 0 {
		for i := range view.Handles {
			w.handles[view.Handles[i].Name] = &view.Handles[i]
		}
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
	for rest := d.Holders; len(rest) > 0 && ctx.Err() == nil; {
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
func batch(holders []Holder) int {
	blocks := map[netip.Prefix]bool{}
	for i := range holders {
		blocks[holders[i].Blocks[0]] = true
		if len(blocks) > batchBlocks {
			return i
		}
	}
	return len(holders)
}

// freeBatch frees the addresses of those holders who do not use them, as the API server says now.
func (w *sweep) freeBatch(ctx context.Context, holders []Holder) error {
	index, err := w.look(ctx, holders)
	if err != nil {
		return fmt.Errorf("look once more who uses addresses: %w", err)
	}
	var dead []Holder
	var expired []ipam.Expired
	for _, h := range holders {
		if !stillUnused(index, &h) {
			w.Log.Warn("an address looked unused and is not", "handle", h.Handle, "address", h.Addresses[0].Address, "because", h.Why)
			w.report.Spared++
			continue
		}
		dead, expired = append(dead, h), append(expired, h.expired())
	}
	done, err := w.Client.Expire(ctx, w.view.Config, expired)
	freed := make([]Holder, 0, len(done))
	for _, i := range done {
		freed = append(freed, dead[i])
	}
	w.report.Spared += len(dead) - len(freed)
	w.note(freed)
	return errors.Join(err, w.forgetFreed(ctx, freed))
}

func (w *sweep) note(freed []Holder) {
	for _, h := range freed {
		for i := range h.Addresses {
			w.report.Freed[h.Addresses[i].Node]++
		}
		w.Log.Info("freed", "addresses", len(h.Addresses), "first", h.Addresses[0].String(), "handle", h.Handle, "because", h.Why)
	}
}

func (h *Holder) expired() ipam.Expired {
	e := ipam.Expired{Handle: h.Handle, Addresses: make(map[netip.Addr]ipam.Assigned, len(h.Addresses))}
	for i, a := range h.Addresses {
		e.Addresses[a.Address] = ipam.Assigned{Block: h.Blocks[i], Sequence: a.Sequence}
	}
	return e
}

// stillUnused judges a holder anew.
func stillUnused(index *inventory.Index, h *Holder) bool {
	for i := range h.Addresses {
		switch verdict, _ := index.Judge(&h.Addresses[i]); verdict {
		case inventory.Orphaned:
		case inventory.Dead:
			if h.Orphaned { // its node is back, and it had no grace
				return false
			}
		default:
			return false
		}
	}
	return true
}

// forgetFreed removes the handles of those who have just been freed. Their objects are as the view showed them, or stay for a later pass.
func (w *sweep) forgetFreed(ctx context.Context, freed []Holder) error {
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, h := range freed {
		if seen := w.handles[inventory.HandleName(h.Handle)]; h.Handle != "" && seen != nil {
			g.Go(func() error { return w.forget(ctx, seen, h.Handle) })
		}
	}
	return g.Wait()
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
	unused, err := w.notOfTunnels(ctx, d.Handles)
	if err != nil || len(unused) == 0 {
		return err
	}
	blocks, err := inventory.ReadBlocks(ctx, w.IPAM)
	if err != nil {
		return fmt.Errorf("look once more which handles hold nothing: %w", err)
	}
	holding := map[string]bool{}
	damaged := map[netip.Prefix]bool{}
	for i := range blocks {
		if blocks[i].Damage != nil {
			damaged[blocks[i].CIDR] = true
		}
		for j := range blocks[i].Allocations {
			holding[inventory.HandleName(blocks[i].Allocations[j].Handle)] = true
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := range unused {
		if h := &unused[i]; !holding[h.Name] {
			g.Go(func() error { return w.forgetOutside(ctx, h, damaged) })
		}
	}
	return g.Wait()
}

// forgetOutside removes a handle, unless it says that it holds something in a damaged block: who assigns an address writes that into the
// handle before. A damaged block whose name does not say its range may be any.
func (w *sweep) forgetOutside(ctx context.Context, h *inventory.Handle, damaged map[netip.Prefix]bool) error {
	if len(damaged) == 0 {
		return w.forget(ctx, h, h.ID)
	}
	now := inventory.Handle{Meta: api.Meta{Name: h.Name}}
	err := w.IPAM.Get(ctx, &now)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look where handle %s holds something: %w", h.Name, err)
	}
	unclear := now.ResourceVersion != h.ResourceVersion || len(now.Odd) > 0 || len(now.Blocks) > 0 && damaged[netip.Prefix{}]
	for block := range now.Blocks {
		unclear = unclear || damaged[block]
	}
	if unclear {
		return nil
	}
	return w.forget(ctx, h, h.ID)
}

// notOfTunnels reads the handles of which nothing but the name was seen, and that is of a tunnel of a node that exists. It returns those
// that are not the node's, and all others.
func (w *sweep) notOfTunnels(ctx context.Context, all []inventory.Handle) (unused []inventory.Handle, err error) {
	index := inventory.NewIndex(w.view.Nodes, nil)
	for i := range all {
		h := all[i]
		if h.Named && ofTunnel(index, &h) {
			seen := h.ResourceVersion
			err := w.IPAM.Get(ctx, &h)
			if errors.Is(err, datastore.ErrNotFound) || err == nil && (h.ResourceVersion != seen || ofTunnel(index, &h)) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("look whether handle %s is of a tunnel: %w", h.Name, err)
			}
		}
		unused = append(unused, h)
	}
	return unused, nil
}

// giveUpBlocks removes blocks, and the claims of them. Of a node that was gone the API server is asked once more.
func (w *sweep) giveUpBlocks(ctx context.Context, d *Decision) error {
	owners := make([]string, len(d.Blocks))
	for i := range d.Blocks {
		owners[i], _ = d.Blocks[i].Owner()
	}
	back, err := w.nodesBack(ctx, owners)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := range d.Blocks {
		b := &d.Blocks[i]
		if back[owners[i]] {
			continue
		}
		g.Go(func() error {
			gone, err := w.Client.GiveUp(ctx, w.view.Config, b.Meta)
			return w.count(&w.report.Blocks, gone, err, "gave up a block", b.Name, b.Affinity)
		})
	}
	return g.Wait()
}

// mendAffinities removes claims of nothing, and completes those of blocks that are in use.
func (w *sweep) mendAffinities(ctx context.Context, d *Decision) error {
	owners := make([]string, len(d.Affinities))
	for i := range d.Affinities {
		owners[i] = d.Affinities[i].Spec.Node
	}
	back, err := w.nodesBack(ctx, owners)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := range d.Affinities {
		a := &d.Affinities[i]
		if back[owners[i]] {
			continue
		}
		g.Go(func() error {
			gone, err := w.Client.DropClaim(ctx, a)
			return w.count(&w.report.Affinities, gone, err, "removed a claim", a.Name, a.Spec.Node)
		})
	}
	for i := range d.Confirm {
		a := &d.Confirm[i]
		g.Go(func() error {
			done, err := w.Client.ConfirmClaim(ctx, a)
			return w.count(&w.report.Confirmed, done, err, "completed a claim", a.Name, a.Spec.Node)
		})
	}
	return g.Wait()
}

func (w *sweep) count(n *int, done bool, err error, what, name, owner string) error {
	if done {
		w.mu.Lock()
		*n++
		w.mu.Unlock()
		w.Log.Info(what, "name", name, "of", owner)
	}
	return err
}
