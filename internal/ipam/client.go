package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/names"
)

const (
	// maxTries bounds how often a request is planned anew because somebody else was faster. Calico's number.
	maxTries = 100
	// minPause is what the winner of a race needs to be done; maxPause lets 100 processes that want the same block take turns.
	minPause, maxPause = 5 * time.Millisecond, 500 * time.Millisecond
	// undoTime is what cleaning up after a failure may take when the caller's own time is over.
	undoTime = 15 * time.Second
)

// Client assigns and releases addresses in a datastore.
type Client struct {
	store datastore.Store
	now   func() time.Time
}

// NewClient returns a Client that stamps claims with the given clock.
func NewClient(store datastore.Store, now func() time.Time) *Client {
	return &Client{store: store, now: now}
}

// Assign gives the request's owner one address of each family that it wants: all of them, or an error and nothing.
//
// It is idempotent by handle: an address that the handle holds already is returned again. Errors wrap ErrNoPool,
// ErrExhausted, ErrBlockLimit or an error of the datastore.
func (c *Client) Assign(ctx context.Context, req Request) ([]Assignment, error) {
	a := assignment{client: c, req: &req}
	err := c.retry(ctx, func(n int) error { return a.try(ctx, n) })
	if err == nil {
		return a.plan.Assignments, nil
	}
	if a.wrote {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if _, undoErr := c.Release(undo, req.Handle); undoErr != nil {
			err = errors.Join(err, fmt.Errorf("undo: %w", undoErr))
		}
	}
	return nil, err
}

// retriable reports whether reading again and deciding anew can help.
func retriable(err error) bool {
	var u *unsure
	return datastore.Contended(err) || errors.As(err, &u)
}

// retry runs try until it succeeds or fails for a reason that another try cannot mend.
func (c *Client) retry(ctx context.Context, try func(n int) error) error {
	pause := minPause
	for n := 1; ; n++ {
		err := try(n)
		if err == nil || !retriable(err) {
			return err
		}
		if n == maxTries {
			return fmt.Errorf("given up after %d tries: %w", n, err)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		pause = min(2*pause, maxPause)
	}
}

func (c *Client) readConfig(ctx context.Context, st *State) error {
	cfg := api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}
	err := c.store.Get(ctx, &cfg)
	if errors.Is(err, datastore.ErrNotFound) {
		st.Config = DefaultConfig()
		return nil
	}
	st.Config = cfg.Spec
	return err
}

// DefaultConfig is what holds in a cluster without an IPAMConfig.
func DefaultConfig() api.IPAMConfigSpec { return api.IPAMConfigSpec{AutoAllocateBlocks: true} }

func (c *Client) readReservations(ctx context.Context, st *State, opts datastore.ListOptions) error {
	var list api.List[api.IPReservation, *api.IPReservation]
	if err := c.store.List(ctx, &list, opts); err != nil {
		return err
	}
	for _, r := range list.Items {
		for _, text := range r.Spec.ReservedCIDRs {
			p, err := parseRange(text)
			if err != nil {
				return fmt.Errorf("IPReservation %s: spec.reservedCIDRs: %w", r.Name, err)
			}
			st.Reserved = append(st.Reserved, p)
		}
	}
	return nil
}

// parseRange reads a CIDR or a single address.
func parseRange(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither a CIDR nor an address", text)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

func (c *Client) readNode(ctx context.Context, st *State, host string) error {
	node := api.Node{Meta: api.Meta{Name: host}}
	if err := c.store.Get(ctx, &node); err != nil {
		return err
	}
	st.NodeLabels = node.Labels
	return nil
}

func (c *Client) readPools(ctx context.Context, st *State, opts datastore.ListOptions) error {
	var list api.IPPoolList
	if err := c.store.List(ctx, &list, opts); err != nil {
		return err
	}
	for i := range list.Items {
		p, err := ParsePool(&list.Items[i])
		if err != nil {
			return err
		}
		st.Pools = append(st.Pools, p)
	}
	return nil
}

func (c *Client) readAffinities(ctx context.Context, st *State, host string, opts datastore.ListOptions) error {
	opts.Host = host
	var list api.BlockAffinityList
	if err := c.store.List(ctx, &list, opts); err != nil {
		return err
	}
	for i := range list.Items {
		// The label is a hash: trust the name itself.
		if a := &list.Items[i]; a.Spec.Node == host {
			st.Affinities = append(st.Affinities, a)
		}
	}
	slices.SortFunc(st.Affinities, func(a, b *api.BlockAffinity) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func (c *Client) readHandle(ctx context.Context, st *State, id string) error {
	h, err := c.handle(ctx, id)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	st.Handle = h
	return err
}

func (c *Client) handle(ctx context.Context, id string) (*api.IPAMHandle, error) {
	h := &api.IPAMHandle{Meta: api.Meta{Name: names.Handle(id)}, Spec: api.IPAMHandleSpec{HandleID: id}}
	if err := c.store.Get(ctx, h); err != nil {
		return nil, err
	}
	if h.Spec.HandleID != id {
		return nil, fmt.Errorf("IPAMHandle %s belongs to handle ID %q, not to %q", h.Name, h.Spec.HandleID, id)
	}
	return h, nil
}

// readBlocks reads the blocks that the host claims and those that the handle names.
func (c *Client) readBlocks(ctx context.Context, st *State, req *Request) error {
	cidrs := handleBlocks(st.Handle)
	for _, a := range st.Affinities {
		cidr, err := netip.ParsePrefix(a.Spec.CIDR)
		if err != nil {
			return fmt.Errorf("BlockAffinity %s: spec.cidr %q is no CIDR", a.Name, a.Spec.CIDR)
		}
		if cidr.Addr().Is6() && req.V6 || cidr.Addr().Is4() && req.V4 {
			cidrs = append(cidrs, cidr)
		}
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	cidrs = slices.Compact(cidrs)
	blocks, err := c.blocks(ctx, cidrs)
	if err != nil {
		return err
	}
	for i, cidr := range cidrs {
		st.Blocks[cidr] = blocks[i]
	}
	return nil
}

// blocks reads blocks in parallel; nil stands for one that does not exist.
func (c *Client) blocks(ctx context.Context, cidrs []netip.Prefix) ([]*Block, error) {
	out := make([]*Block, len(cidrs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, cidr := range cidrs {
		g.Go(func() (err error) {
			obj := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}}
			if err = c.store.Get(ctx, obj); errors.Is(err, datastore.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			out[i], err = ParseBlock(obj)
			return err
		})
	}
	return out, g.Wait()
}

func (c *Client) readCluster(ctx context.Context, st *State, opts datastore.ListOptions) error {
	var list api.IPAMBlockList
	if err := c.store.List(ctx, &list, opts); err != nil {
		return err
	}
	st.HaveCluster = true
	for i := range list.Items {
		b, err := ParseBlock(&list.Items[i])
		if err != nil {
			return err
		}
		st.Cluster = append(st.Cluster, b)
	}
	slices.SortFunc(st.Cluster, func(a, b *Block) int { return a.cidr.Addr().Compare(b.cidr.Addr()) })
	return nil
}

// commit writes a plan in order and returns how many writes landed or, for want of an answer, may have landed. It stops at
// the first that fails.
func (c *Client) commit(ctx context.Context, p Plan) (int, error) {
	written := map[string]api.Meta{} // the revision of what this plan wrote already: an affinity is written twice
	for i, w := range p.writes {
		m := w.obj.GetMeta()
		key := w.obj.ResourceType().Kind + "/" + m.Name
		if prev, ok := written[key]; ok {
			m.UID, m.ResourceVersion = prev.UID, prev.ResourceVersion
		}
		if err := c.write(ctx, w); datastore.Contended(err) {
			return i, c.meet(ctx, w, err)
		} else if err != nil {
			return i + 1, err
		}
		written[key] = *m
	}
	return len(p.writes), nil
}

// meet looks at the affinity that a claim ran into. A list may not show it for ever: one that is marked deleted, by a process
// that died before it removed it, or one without labels, as Calico before 3.31 wrote it. Reading mends the first, writing the
// second. It returns the conflict, or why it could not look.
func (c *Client) meet(ctx context.Context, w write, conflict error) error {
	claim, ok := w.obj.(*api.BlockAffinity)
	if !ok || w.verb != create {
		return conflict
	}
	met := &api.BlockAffinity{Meta: api.Meta{Name: claim.Name}, Spec: claim.Spec}
	err := c.store.Get(ctx, met)
	if err == nil && !maps.Equal(met.Labels, claim.Labels) {
		met.Labels, met.Annotations = claim.Labels, claim.Annotations
		err = c.store.Update(ctx, met)
	}
	if err == nil || errors.Is(err, datastore.ErrNotFound) {
		return conflict
	}
	return err
}

func (c *Client) write(ctx context.Context, w write) error {
	switch w.verb {
	case create:
		return c.store.Create(ctx, w.obj)
	case update:
		return c.store.Update(ctx, w.obj)
	default:
		return c.store.Delete(ctx, w.obj)
	}
}

// Release frees all addresses of a handle and returns them. A handle that does not exist holds nothing: no error.
func (c *Client) Release(ctx context.Context, handle string) ([]netip.Addr, error) {
	freed := map[netip.Addr]bool{} // by all tries: one may free a block and meet a conflict at the next
	err := c.retry(ctx, func(int) error {
		h, err := c.handle(ctx, handle)
		if errors.Is(err, datastore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		blocks, err := c.blocks(ctx, sortedBlocks(handleBlocks(h)))
		if err != nil {
			return err
		}
		plan, addrs := PlanRelease(h, blocks)
		for _, a := range addrs {
			freed[a] = true
		}
		_, err = c.commit(ctx, plan)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("release handle %s: %w", handle, err)
	}
	return slices.SortedFunc(maps.Keys(freed), netip.Addr.Compare), nil
}

// Addresses returns the addresses that a handle holds now, none if it does not exist.
func (c *Client) Addresses(ctx context.Context, handle string) ([]netip.Addr, error) {
	h, err := c.handle(ctx, handle)
	if errors.Is(err, datastore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	blocks, err := c.blocks(ctx, handleBlocks(h))
	if err != nil {
		return nil, err
	}
	var held []netip.Addr
	for _, b := range blocks {
		if b != nil {
			held = append(held, b.Held(handle)...)
		}
	}
	return held, nil
}
