package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Start is the part of a request that suffices to begin an assignment.
type Start struct {
	Owner
	// Host is the Request's Host.
	Host string
	// V4, V6 are the families that are probably wanted.
	V4, V6 bool
	// Use is the purpose of the addresses; empty means Workload.
	Use api.AllowedUse
	// Known saves requests; nil without an agent that watches the cluster.
	Known *Known
	// InUse: the owner already uses addresses, so after a failure the handle's addresses stay until the owner's release.
	InUse bool
}

// Attempt is an assignment that has begun. Finish or Abandon must be called, once.
//
// It assumes that the handle is new; writing it fails if it is not. The handle is created while the block that the
// address will probably come from is being read, and names that block, so that only the block is left to be written.
type Attempt struct {
	view
	owner  Owner
	opened chan struct{} // closed when the work that Begin started has ended
	err    error         // of that work

	wrote bool // more than the handle was written, or may have been
	inUse bool // what was written stays after a failure
}

// Begin starts an assignment in the background and returns at once. With Known it already writes the handle, which
// names the block that the address will probably come from. The host's lock must be held, if there is one, so that ADDs
// on one host do not compete for the same address.
func (c *Client) Begin(ctx context.Context, start Start) *Attempt {
	a := &Attempt{view: newView(c, start.Host, start.Known), owner: start.Owner, opened: make(chan struct{}), inUse: start.InUse}
	a.handleID = start.Handle
	go func() {
		defer close(a.opened)
		a.err = a.open(ctx, start)
	}()
	return a
}

// open reads pools, reservations, affinities and the configuration, or if these are known, the input that a plan needs
// next.
func (a *Attempt) open(ctx context.Context, start Start) error {
	if err := a.read(ctx); err != nil || a.freshness != cached {
		return err
	}
	probable := Request{Owner: start.Owner, Host: start.Host, V4: start.V4, V6: start.V6, Use: cmp.Or(start.Use, api.UseWorkload)}
	_, err := PlanAssign(a.st, &probable)
	var n *need
	if !errors.As(err, &n) { // a refusal, which the whole request may not meet
		return nil
	}
	return a.supply(ctx, n)
}

// Finish assigns one address of each family that the request wants: all of them, or an error and nothing. Owner and
// host must be the Start's.
//
// It is idempotent by handle: an address that the handle already holds is returned again. Errors wrap ErrNoPool,
// ErrExhausted, ErrBlockLimit, ErrTaken or an error of the datastore.
func (a *Attempt) Finish(ctx context.Context, req Request) ([]Assignment, error) {
	plan, err := a.finish(ctx, req)
	return plan.Assignments, err
}

// finish is Finish with the whole plan. After a conflict, which may be about a further owner's handle, further owners
// are left out.
func (a *Attempt) finish(ctx context.Context, req Request) (Plan, error) {
	<-a.opened
	err := a.err
	var plan Plan
	if err == nil {
		err = a.client.retry(ctx, func() (err error) {
			plan, err = a.try(ctx, &req)
			req.Also = nil
			return err
		})
	}
	if err != nil {
		return Plan{}, errors.Join(err, a.undo(ctx))
	}
	return plan, nil
}

// Config returns the IPAMConfig read for the assignment, after Finish or Abandon; ok is false if none was read.
func (a *Attempt) Config() (cfg api.IPAMConfigSpec, ok bool) {
	if a.st == nil {
		return api.IPAMConfigSpec{}, false
	}
	return a.st.Config, true
}

// Abandon undoes what Begin has written.
func (a *Attempt) Abandon(ctx context.Context) error {
	<-a.opened
	return a.undo(ctx)
}

// try plans and commits once. After a conflict on a block or the handle, the other data is still good for the next try.
func (a *Attempt) try(ctx context.Context, req *Request) (Plan, error) {
	plan, err := a.decide(ctx, req, a.supply)
	if err != nil {
		return Plan{}, err
	}
	created := a.created
	a.created = false
	a.inUse = a.inUse || plan.kept && !a.wrote && !created // the owner had it before this began
	wrote, err := a.client.commit(ctx, plan)
	a.wrote = a.wrote || wrote || created
	if err == nil || !datastore.Contended(err) {
		return plan, err
	}
	a.remember(&plan)
	return plan, err
}

// remember keeps what is still valid after a conflict. The handle is read again each time: a concurrent DEL, which
// there should not be, may have deleted it, and an address without a handle can't be released.
func (a *Attempt) remember(plan *Plan) {
	if h := plan.landedHandle(); h != nil {
		a.handle = h
	}
	a.readAgain = true
	if plan.claims() {
		a.freshness, a.st = consistent, nil
	} else {
		a.st.forgetBlocks()
	}
}

// supply reads what a plan needs.
func (a *Attempt) supply(ctx context.Context, n *need) error {
	if n.reclaim != nil {
		return a.reclaim(ctx, n.reclaim)
	}
	h, likely := n.handle(a.handleID, a.host)
	if !likely || a.handle != nil || a.wrote || a.readAgain {
		return a.fetch(ctx, n, nil)
	}
	// Not in the context of the group: only the answer to the write shows whether it was applied.
	return a.fetch(ctx, n, func() error { return a.createHandle(ctx, h) })
}

// createHandle creates the handle before it is certain which block it must name.
func (a *Attempt) createHandle(ctx context.Context, h *api.IPAMHandle) error {
	err := a.client.store.Create(ctx, h)
	switch {
	case err == nil:
		a.handle, a.created = h, true
	case datastore.Contended(err):
		a.readAgain = true
		return nil
	default:
		a.wrote = true
	}
	return err
}

// reclaim takes an idle block from its owner, or notes that it can't be taken.
func (a *Attempt) reclaim(ctx context.Context, b *Block) error {
	err := a.client.releaseBlock(ctx, b)
	switch {
	case err == nil:
		a.st.drop(b.cidr)
	case datastore.Contended(err), errors.Is(err, datastore.ErrUnauthorized): // where nodes are fenced, only the owner may give it up
		a.st.Needed[b.cidr] = true
		return nil
	}
	return err
}

// undo releases what was written for a request that failed.
func (a *Attempt) undo(ctx context.Context) error {
	if !a.created && !a.wrote {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if a.created && !a.wrote && a.client.store.Delete(ctx, a.handle) == nil || a.inUse {
		return nil
	}
	if _, err := a.client.ReleaseOwned(ctx, a.owner); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}
