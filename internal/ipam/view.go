package ipam

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
)

// freshness is how old the data of a view may be. A refusal is final only if it is based on consistent reads.
type freshness int

const (
	cached freshness = iota // pools, affinities and configuration as the agent knew them
	stale                   // lists may be stale
	consistent
)

// view holds the reads of one operation, before and while it decides.
type view struct {
	client    *Client
	host      string
	known     *Known
	freshness freshness
	st        *State // nil: to be read

	handleID  string          // empty if none matters
	handle    *api.IPAMHandle // as it was last seen or written
	readAgain bool            // it must be read again
	created   bool            // it was created by this operation, which has not tried to assign yet
}

func newView(c *Client, host string, known *Known) view {
	v := view{client: c, host: host, known: known}
	if known == nil {
		v.freshness = stale
	}
	return v
}

func (v *view) listOptions() datastore.ListOptions {
	return datastore.ListOptions{Stale: v.freshness < consistent}
}

// read reads what changes seldom, unless it was read already.
func (v *view) read(ctx context.Context) error {
	if v.st != nil {
		return nil
	}
	st := newState(v.client.now())
	st.HaveLabels = v.host == names.LoadBalancer // which has none
	err := error(nil)
	if v.freshness == cached {
		err = st.storeKnown(v.known, v.host)
	} else {
		err = v.client.readSlow(ctx, st, v.host, v.listOptions())
	}
	if err == nil {
		v.st = st
	}
	return err
}

// Refused reports whether an error is a refusal by the pools or by the owner of the address, and no failure of the
// datastore.
func Refused(err error) bool {
	for _, r := range []error{ErrNoPool, ErrExhausted, ErrBlockLimit, ErrTaken} {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}

// decide returns a plan. A refusal is planned again on fresher data before it is returned: lists may be stale, the
// handle, which was taken for new, may hold an address, and a block that was full may have room. supply reads what a
// plan needs.
func (v *view) decide(ctx context.Context, req *Request, supply func(context.Context, *need) error) (Plan, error) {
	for {
		plan, err := v.plan(ctx, req, supply)
		if !Refused(err) || v.freshness == consistent && len(req.Full) == 0 {
			return plan, err
		}
		v.reread()
		whole := *req
		whole.Full = nil
		req = &whole
	}
}

// reread drops all that was read, so that it is read again, fresher.
func (v *view) reread() {
	v.freshness = min(v.freshness+1, consistent)
	v.st = nil
	v.readAgain = v.handleID != "" && v.handle == nil && v.freshness == consistent
}

func (v *view) plan(ctx context.Context, req *Request, supply func(context.Context, *need) error) (Plan, error) {
	if err := v.read(ctx); err != nil {
		return Plan{}, err
	}
	for {
		if err := v.readHandleAgain(ctx); err != nil {
			return Plan{}, err
		}
		plan, err := PlanAssign(v.st, req)
		var n *need
		if !errors.As(err, &n) {
			return plan, err
		}
		if err := supply(ctx, n); err != nil {
			return Plan{}, err
		}
	}
}

// readHandleAgain reads the handle if that is required and, in parallel, the blocks that it named before, which it
// probably still names.
func (v *view) readHandleAgain(ctx context.Context) error {
	if v.readAgain {
		var blocks []blockRead
		g, gctx := errgroup.WithContext(ctx)
		before := handleBlocks(v.handle)
		g.Go(func() (err error) { v.handle, err = v.client.readHandle(gctx, v.handleID); return err })
		g.Go(func() (err error) { blocks, err = v.client.readBlocks(gctx, before); return err })
		if err := g.Wait(); err != nil {
			return err
		}
		for _, b := range blocks {
			v.st.store(b.cidr, b.block, b.damage)
		}
		v.readAgain, v.created = false, false
	}
	v.st.Handle, v.st.HandleNew = v.handle, v.created
	return nil
}

// answers are the results of the reads for a need.
type answers struct {
	blocks         []blockRead
	affinities     []*api.BlockAffinity
	cluster, names []api.IPAMBlock
	labels         map[string]string
}

// fetch reads what a plan needs, in parallel, while beside runs. A plan that lists the cluster's blocks is about to
// claim one. Then the host's affinities are read again too: they are older than the wait for the host's lock, or from
// the agent, and another ADD on the host may since have claimed a block with room for all. Without this a burst of pods
// on a new node would claim one block each. Data from the agent is then read again altogether: nothing guards a claim
// against a deleted pool.
func (v *view) fetch(ctx context.Context, n *need, beside func() error) error {
	g, gctx := errgroup.WithContext(ctx)
	c, opts, a, slow := v.client, v.listOptions(), answers{}, &State{}
	namesOnly := opts
	namesOnly.NamesOnly = true
	renew := (n.names || n.cluster) && v.freshness < consistent
	for _, r := range []struct {
		wanted bool
		read   func() error
	}{
		{beside != nil, beside},
		{len(n.blocks) > 0, func() (err error) { a.blocks, err = c.readBlocks(gctx, n.blocks); return err }},
		{n.cluster, func() (err error) { a.cluster, err = c.readCluster(gctx, opts); return err }},
		{n.names && !n.cluster, func() (err error) { a.names, err = c.readCluster(gctx, namesOnly); return err }},
		{renew && v.freshness == cached, func() error { return c.readSlow(gctx, slow, v.host, opts) }},
		{renew && v.freshness > cached, func() (err error) { a.affinities, err = c.readAffinities(gctx, v.host, opts); return err }},
		{n.labels, func() (err error) { a.labels, err = c.readLabels(gctx, v.host); return err }},
	} {
		if r.wanted {
			g.Go(r.read)
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	switch {
	case renew && v.freshness == cached:
		v.st.Config, v.st.Pools, v.st.Reserved, v.st.Affinities = slow.Config, slow.Pools, slow.Reserved, slow.Affinities
		v.st.Flaws, v.st.refused = slow.Flaws, slow.refused
		v.freshness = stale
	case renew:
		v.st.storeClaims(a.affinities)
	}
	v.st.storeAnswers(n, &a)
	return nil
}

// storeAnswers adds the answers to a need to the state.
func (st *State) storeAnswers(n *need, a *answers) {
	for _, b := range a.blocks {
		st.store(b.cidr, b.block, b.damage)
	}
	switch {
	case n.cluster:
		st.storeCluster(a.cluster)
	case n.names:
		st.storeNames(a.names)
	}
	if n.labels {
		st.NodeLabels, st.HaveLabels = a.labels, true
	}
}
