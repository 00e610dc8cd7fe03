package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Start is what an assignment can begin with, before all of the request is known.
type Start struct {
	Owner
	// Host is the node that asks.
	Host string
	// V4, V6 say which families are likely to be wanted.
	V4, V6 bool
	// Use says what the addresses are for; empty stands for Workload.
	Use api.AllowedUse
	// Known saves requests; nil if nobody follows the cluster.
	Known *Known
	// InUse says that the owner uses addresses already: a failure leaves what the handle holds, for the owner's release.
	InUse bool
}

// Attempt is an assignment that has begun. Finish or Abandon must be called, once.
//
// It takes it that the handle is new: one that exists shows when it is written. It names in the handle the block from which
// the address will probably come, while that block is being read, so that nothing but the block is left to be written.
type Attempt struct {
	view
	owner  Owner
	opened chan struct{} // closed when what Begin started has ended
	err    error         // of what Begin started

	wrote bool // more than the handle was written, or may have been
	inUse bool // what was written stays after a failure
}

// Begin starts what an assignment needs, in the background, and returns at once. With Known this writes already: the handle,
// naming the block from which the address will probably come. The host's lock must be held, if there is one, so that
// neighbours do not want the same address.
func (c *Client) Begin(ctx context.Context, start Start) *Attempt {
	a := &Attempt{view: newView(c, start.Host, start.Known), owner: start.Owner, opened: make(chan struct{}), inUse: start.InUse}
	a.handleID = start.Handle
	go func() {
		defer close(a.opened)
		a.err = a.open(ctx, start)
	}()
	return a
}

// open reads what changes seldom, or if that is known, does what comes next.
func (a *Attempt) open(ctx context.Context, start Start) error {
	if err := a.read(ctx); err != nil || a.certainty != told {
		return err
	}
	probable := Request{Owner: start.Owner, Host: start.Host, V4: start.V4, V6: start.V6, Use: cmp.Or(start.Use, api.UseWorkload)}
	_, err := PlanAssign(a.st, &probable)
	var n *need
	if !errors.As(err, &n) { // a refusal, of which the request itself may know better
		return nil
	}
	return a.meet(ctx, n)
}

// Finish gives the request's owner one address of each family that it wants: all of them, or an error and nothing. The
// request's owner and host must be those of the Start.
//
// It is idempotent by handle: an address that the handle holds already is returned again. Errors wrap ErrNoPool,
// ErrExhausted, ErrBlockLimit, ErrTaken or an error of the datastore.
func (a *Attempt) Finish(ctx context.Context, req Request) ([]Assignment, error) {
	<-a.opened
	err := a.err
	var plan Plan
	if err == nil {
		err = a.client.retry(ctx, func() (err error) {
			plan, err = a.try(ctx, &req)
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(err, a.undo(ctx))
	}
	return plan.Assignments, nil
}

// Config is the IPAMConfig that was read for the assignment, after Finish or Abandon; ok is false if none was.
func (a *Attempt) Config() (cfg api.IPAMConfigSpec, ok bool) {
	if a.st == nil {
		return api.IPAMConfigSpec{}, false
	}
	return a.st.Config, true
}

// Abandon takes back what Begin has written.
func (a *Attempt) Abandon(ctx context.Context) error {
	<-a.opened
	return a.undo(ctx)
}

// try decides and commits once. After a conflict it is clear what the next try must read again: if nothing but a block or the
// handle was in the way, what is known of all else is as good as before.
func (a *Attempt) try(ctx context.Context, req *Request) (Plan, error) {
	plan, err := a.decide(ctx, req, a.meet)
	if err != nil {
		return Plan{}, err
	}
	named := a.named
	a.named = false
	a.inUse = a.inUse || plan.kept && !a.wrote && !named // the owner had it before this began
	wrote, err := a.client.commit(ctx, plan)
	a.wrote = a.wrote || wrote || named
	if err == nil || !datastore.Contended(err) {
		return plan, err
	}
	a.remember(&plan)
	return plan, err
}

// remember keeps what a plan that met a conflict tells of the next one. The handle is looked at each time: a DEL that runs
// while this does, as it should not, may have removed it, and an address without a handle is found by nobody.
func (a *Attempt) remember(plan *Plan) {
	if h := plan.landedHandle(); h != nil {
		a.handle = h
	}
	a.look = true
	if plan.claims() {
		a.certainty, a.st = sure, nil
	} else {
		a.st.forgetBlocks()
	}
}

// meet provides what a plan needs.
func (a *Attempt) meet(ctx context.Context, n *need) error {
	if n.reclaim != nil {
		return a.reclaim(ctx, n.reclaim)
	}
	h, likely := n.handle(a.handleID, a.host)
	if !likely || a.handle != nil || a.wrote || a.look {
		return a.fetch(ctx, n, nil)
	}
	// Not in the context of the group: the write's answer tells whether it landed.
	return a.fetch(ctx, n, func() error { return a.name(ctx, h) })
}

// name creates the handle before it is sure which block it must name.
func (a *Attempt) name(ctx context.Context, h *api.IPAMHandle) error {
	err := a.client.store.Create(ctx, h)
	switch {
	case err == nil:
		a.handle, a.named = h, true
	case datastore.Contended(err):
		a.look = true
		return nil
	default:
		a.wrote = true
	}
	return err
}

// reclaim takes a block from an owner that does not use it, or takes note that it cannot.
func (a *Attempt) reclaim(ctx context.Context, b *Block) error {
	err := a.client.giveUp(ctx, b)
	switch {
	case err == nil:
		a.st.drop(b.cidr)
	case datastore.Contended(err), errors.Is(err, datastore.ErrUnauthorized): // where nodes are fenced, only the owner may give it up
		a.st.Needed[b.cidr] = true
		return nil
	}
	return err
}

// undo takes back what was written for a request that failed.
func (a *Attempt) undo(ctx context.Context) error {
	if !a.named && !a.wrote {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if a.named && !a.wrote && a.client.store.Delete(ctx, a.handle) == nil || a.inUse {
		return nil
	}
	if _, err := a.client.ReleaseOwned(ctx, a.owner); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}
