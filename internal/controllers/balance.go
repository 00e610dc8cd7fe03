package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/controllers/loadbalancer"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

const (
	// balanceEvery bounds how often Services are looked at, balanceTime one look.
	balanceEvery, balanceTime = 250 * time.Millisecond, 5 * time.Minute
	// balanceResync is when they are looked at although nothing has changed.
	balanceResync = 5 * time.Minute
	// refusedRetry is when an unchanged Service that got no address is tried again, if pools have not changed.
	refusedRetry = time.Minute
	// mostAtOnce bounds the Services of one assignment, balanceParallel the requests under way.
	mostAtOnce, balanceParallel = 256, 8

	reasonNoAddress = "LoadBalancerAddressMissing"
	reasonUnused    = "AnnotationUnused"
)

// serviceStore has the requests about Services.
type serviceStore interface {
	Get(ctx context.Context, obj api.Resource) error
	PatchTested(ctx context.Context, obj api.Resource, ops []kubernetes.Operation) error
}

// balancer gives Services of type LoadBalancer their addresses. In IPAM an address is held before a status shows it,
// and as long as one does: a process that dies between two writes leaves an address that the Service's handle holds,
// which the next one finds.
type balancer struct {
	services serviceStore
	ipam     *ipam.Client
	warn     func(about api.ObjectReference, reason, text string)
	log      *slog.Logger

	pools string // the revisions of the pools that refused is about

	mu      sync.Mutex          // guards the rest
	refused map[string]refusal  // by the Service's UID
	full    []netip.Prefix      // blocks without a free address, as far as this look knows
	holds   map[netip.Addr]bool // what Services hold, likewise
}

// refusal is when a Service got less than it asks for, in the revision in which it did.
type refusal struct {
	revision string
	at       time.Time
	// wanted are addresses that it asks for and another Service holds: when that gives one up, the oldest that asks for it
	// is to have it.
	wanted []netip.Addr
}

// balanceView is what Services ask for and hold. It may be old: every write is guarded.
type balanceView struct {
	services  []*api.Service // of type LoadBalancer
	pools     []api.IPPool
	blocks    []inventory.Block
	hasHandle func(name string) bool
}

// request is a Service that does not hold or does not show what it asks for.
type request struct {
	*api.Service
	wish       loadbalancer.Wish
	keep, drop []netip.Addr
}

// serviceHolder is a handle of a Service that holds addresses.
type serviceHolder struct {
	namespace, name, handle string
	addresses               []netip.Addr
}

// holders returns what Services hold, by handle. Nodes may write blocks of their own, and in others' addresses with
// their own name: what a node says of Services is not believed.
func holders(blocks []inventory.Block) map[string]*serviceHolder {
	held := map[string]*serviceHolder{}
	for i := range blocks {
		if blocks[i].Affinity != names.LoadBalancer {
			continue
		}
		for _, a := range blocks[i].Allocations {
			if a.Class != inventory.LoadBalancer || a.Node != "" || a.Handle == "" || a.Cooling() {
				continue
			}
			if held[a.Handle] == nil {
				held[a.Handle] = &serviceHolder{namespace: a.Namespace, name: a.Service, handle: a.Handle}
			}
			held[a.Handle].addresses = append(held[a.Handle].addresses, a.Address)
		}
	}
	return held
}

// fullBlocks returns the blocks in which no address is or soon becomes free.
func fullBlocks(blocks []inventory.Block) (full []netip.Prefix) {
	for i := range blocks {
		b := &blocks[i]
		if b.Damage == nil && b.Free == 0 && !slices.ContainsFunc(b.Allocations, func(a inventory.Allocation) bool { return a.Cooling() }) {
			full = append(full, b.CIDR)
		}
	}
	return full
}

// look brings IPAM and statuses to what Services ask for. The error is of the last request that failed; others were
// made.
func (b *balancer) look(ctx context.Context, v *balanceView, requestedOnly bool) error {
	pools, held := loadbalancer.ReadPools(v.pools), holders(v.blocks)
	b.forget(v)
	b.full = fullBlocks(v.blocks)
	b.holds = map[netip.Addr]bool{}
	for _, h := range held {
		for _, a := range h.addresses {
			b.holds[a] = true
		}
	}
	var clean, single []request
	batches := map[string][]request{}
	for _, s := range v.services {
		if !loadbalancer.Managed(s, requestedOnly) {
			delete(b.refused, s.UID)
			continue
		}
		h := held[loadbalancer.Handle(s)]
		delete(held, loadbalancer.Handle(s))
		r, due := b.judge(s, h, &pools)
		switch {
		case !due:
		case len(r.drop) > 0 || len(loadbalancer.Lost(s, r.keep, r.drop, &pools)) > 0:
			clean = append(clean, r)
		case len(r.keep) > 0 || len(r.wish.Addresses) > 0 || v.hasHandle(names.Handle(loadbalancer.Handle(s))):
			single = append(single, r)
		default:
			if err := r.wish.Unknown(&pools); err != nil {
				b.refuse(&r, err)
				continue
			}
			key := fmt.Sprint(r.wish)
			batches[key] = append(batches[key], r)
		}
	}
	err := errors.Join(
		inParallel(clean, func(r request) error { return b.clean(ctx, &r, &pools) }),
		inParallel(slices.Collect(maps.Values(held)), func(h *serviceHolder) error { return b.release(ctx, h, requestedOnly) }),
	)
	for _, round := range loadbalancer.Rounds(single, func(r request) (*api.Service, []netip.Addr) { return r.Service, r.wish.Addresses }) {
		err = errors.Join(err, inParallel(round, func(r request) error { return b.assign(ctx, []request{r}) }))
	}
	for _, all := range batches {
		err = errors.Join(err, b.assign(ctx, all))
	}
	return err
}

// inParallel runs do for all items and joins the errors; a conflict is none, as its writer's change brings the next
// look.
func inParallel[T any](all []T, do func(T) error) error {
	failed := make([]error, len(all))
	var g errgroup.Group
	g.SetLimit(balanceParallel)
	for i, one := range all {
		g.Go(func() error {
			if err := do(one); !datastore.Contended(err) {
				failed[i] = err
			}
			return nil
		})
	}
	_ = g.Wait() // failed has the errors
	return errors.Join(failed...)
}

// forget drops refusals of Services that are gone, and all when pools have changed.
func (b *balancer) forget(v *balanceView) {
	var pools strings.Builder
	for _, p := range slices.SortedFunc(slices.Values(v.pools), func(p, q api.IPPool) int { return strings.Compare(p.Name, q.Name) }) {
		pools.WriteString(p.Name + " " + p.ResourceVersion + "\n")
	}
	if b.pools != pools.String() || b.refused == nil {
		b.pools, b.refused = pools.String(), map[string]refusal{}
	}
	there := make(map[string]bool, len(v.services))
	for _, s := range v.services {
		there[s.UID] = true
	}
	maps.DeleteFunc(b.refused, func(uid string, _ refusal) bool { return !there[uid] })
}

// judge compares what a Service asks for with what it holds and shows; due is false if nothing is to be done now. A
// Service whose wish cannot be read keeps what it has.
func (b *balancer) judge(s *api.Service, h *serviceHolder, pools *loadbalancer.Pools) (r request, due bool) {
	if h == nil && !pools.Any() {
		return r, false
	}
	given := func(a netip.Addr) bool { return !b.holds[a] }
	if last, ok := b.refused[s.UID]; ok && last.revision == s.ResourceVersion && time.Since(last.at) < refusedRetry &&
		!slices.ContainsFunc(last.wanted, given) {
		return r, false
	}
	delete(b.refused, s.UID)
	var unused []string
	for _, key := range api.UnreadOf("Service", s.Annotations) {
		unused = append(unused, api.ErrUnread("Service", key, "the Service").Error())
	}
	if len(unused) > 0 {
		b.warn(reference(s, &s.Meta), reasonUnused, events.Join(unused))
	}
	wish, err := loadbalancer.Read(s)
	r = request{Service: s, wish: wish}
	if err != nil {
		b.refuse(&r, err)
		return r, false
	}
	if h != nil {
		r.keep, r.drop = wish.Split(h.addresses, pools)
	}
	return r, len(r.drop) > 0 || len(r.keep) < len(wish.Families) || !loadbalancer.Shows(s, r.keep)
}

// refuse says what a Service lacks.
func (b *balancer) refuse(r *request, why error) {
	b.mu.Lock()
	wanted := slices.DeleteFunc(slices.Clone(r.wish.Addresses), func(a netip.Addr) bool { return !b.holds[a] })
	b.refused[r.UID] = refusal{r.ResourceVersion, time.Now(), wanted}
	b.mu.Unlock()
	b.warn(reference(r.Service, &r.Meta), reasonNoAddress, why.Error())
}

// clean hides and then releases addresses that a Service is not to have. What it lacks is assigned in the next look,
// which the write of its status brings.
func (b *balancer) clean(ctx context.Context, r *request, pools *loadbalancer.Pools) error {
	now := &api.Service{Meta: api.Meta{Namespace: r.Namespace, Name: r.Name}}
	switch err := b.services.Get(ctx, now); {
	case errors.Is(err, datastore.ErrNotFound), err == nil && now.ResourceVersion != r.ResourceVersion:
		return nil // the watch will say
	case err != nil:
		return fmt.Errorf("read Service %s/%s again: %w", r.Namespace, r.Name, err)
	}
	return b.give(ctx, now, loadbalancer.Lost(now, r.keep, r.drop, pools), loadbalancer.Handle(now), r.drop)
}

// release releases what a handle holds whose Service is gone, or not to have addresses of pools any more.
func (b *balancer) release(ctx context.Context, h *serviceHolder, requestedOnly bool) error {
	now := &api.Service{Meta: api.Meta{Namespace: h.namespace, Name: h.name}}
	switch err := b.services.Get(ctx, now); {
	case errors.Is(err, datastore.ErrNotFound):
		now.Status = api.ServiceStatus{}
	case err != nil:
		return fmt.Errorf("read Service %s/%s again: %w", h.namespace, h.name, err)
	case loadbalancer.Managed(now, requestedOnly) && loadbalancer.Handle(now) == h.handle:
		return nil // the view is older
	}
	return b.give(ctx, now, loadbalancer.Positions(now, h.addresses), h.handle, h.addresses)
}

// give removes entries from the status of a Service as it was read, and then releases addresses of a handle.
func (b *balancer) give(ctx context.Context, s *api.Service, hidden []int, handle string, addrs []netip.Addr) error {
	var ops []kubernetes.Operation
	for _, at := range slices.Backward(hidden) {
		ops = append(ops, kubernetes.Operation{Op: "remove", Path: "/status/loadBalancer/ingress/" + strconv.Itoa(at)})
	}
	if err := b.patch(ctx, s, ops); err != nil || len(addrs) == 0 {
		return err
	}
	freed, err := b.ipam.ReleaseOwned(ctx, ipam.Owner{Handle: handle, Only: addrs})
	if err == nil {
		b.log.Info("addresses of a Service released", "service", s.Namespace+"/"+s.Name, "addresses", freed)
	}
	return err
}

// patch changes a Service's status, if the Service is as it was read.
func (b *balancer) patch(ctx context.Context, s *api.Service, ops []kubernetes.Operation) error {
	if len(ops) == 0 {
		return nil
	}
	test := kubernetes.Operation{Op: "test", Path: "/metadata/resourceVersion", Value: s.ResourceVersion}
	err := b.services.PatchTested(ctx, s, append([]kubernetes.Operation{test}, ops...))
	if errors.Is(err, datastore.ErrNotFound) {
		err = datastore.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("status of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// assign gives addresses to Services with one wish, and writes them into their statuses. Of several none holds anything
// yet.
func (b *balancer) assign(ctx context.Context, all []request) error {
	for len(all) > 0 {
		got, lacking, err := b.hold(ctx, all[:min(len(all), mostAtOnce)])
		if err != nil {
			return err
		}
		if len(got) == 0 { // no pool has room: the others would be refused, too
			for i := range all {
				b.refuse(&all[i], lacking)
			}
			return nil
		}
		done := all[:len(got)]
		all = all[len(got):]
		for i := range done {
			done[i].keep = ordered(&done[i].wish, got[i])
			if lacking != nil {
				b.refuse(&done[i], lacking)
			}
		}
		if err := inParallel(done, func(r request) error { return b.show(ctx, &r) }); err != nil {
			return err
		}
		if len(got) == 1 { // there may have been a conflict: the others may have handles by now, which the next look knows
			return nil
		}
	}
	return nil
}

// hold assigns addresses in IPAM to the first ones of the Services, and returns what each of them holds then. lacking
// says why they do not hold an address of each family: PreferDualStack takes one then, and a Service that holds one
// keeps it.
func (b *balancer) hold(ctx context.Context, all []request) (got [][]ipam.Assignment, lacking, err error) {
	wish := &all[0].wish
	ask := func(families []bool) error {
		req := ipam.Request{
			Owner: ownerOf(all[0].Service), Host: names.LoadBalancer, Use: api.UseLoadBalancer, AnyNamespace: true,
			PoolsV4: wish.PoolsV4, PoolsV6: wish.PoolsV6,
			V4: slices.Contains(families, false), V6: slices.Contains(families, true),
		}
		for _, a := range wish.Addresses {
			if slices.Contains(families, a.Is6()) {
				req.Addresses = append(req.Addresses, a)
			}
		}
		for _, r := range all[1:] {
			req.Also = append(req.Also, ownerOf(r.Service))
		}
		b.mu.Lock()
		req.Full = slices.Clone(b.full)
		b.mu.Unlock()
		var full []netip.Prefix
		got, full, err = b.ipam.AssignEach(ctx, req)
		b.mu.Lock()
		b.full = append(b.full, full...)
		for _, a := range slices.Concat(got...) {
			b.holds[a.Address] = true
		}
		b.mu.Unlock()
		return err
	}
	tries := [][]bool{wish.Families}
	if wish.Prefer && len(wish.Families) > 1 {
		tries = append(tries, wish.Families[:1], wish.Families[1:])
	} else if kept := all[0].keep; len(kept) > 0 {
		tries = append(tries, []bool{kept[0].Is6()})
	}
	for _, families := range tries {
		if err = ask(families); !ipam.Refused(err) {
			return got, lacking, err
		}
		lacking = errors.Join(lacking, err)
	}
	return nil, lacking, nil
}

// ownerOf is a Service as the owner of addresses, with the attributes that Calico writes.
func ownerOf(s *api.Service) ipam.Owner {
	return ipam.Owner{Handle: loadbalancer.Handle(s), Attrs: map[string]string{
		"service": s.Name, "namespace": s.Namespace, "type": s.Spec.Type, "timestamp": time.Now().Round(0).UTC().String(),
	}}
}

// ordered returns addresses in the order of a Service's families.
func ordered(wish *loadbalancer.Wish, got []ipam.Assignment) (addrs []netip.Addr) {
	for _, v6 := range wish.Families {
		for _, a := range got {
			if a.Address.Is6() == v6 {
				addrs = append(addrs, a.Address)
			}
		}
	}
	return addrs
}

// show writes the addresses that a Service holds into its status, in place of all that is there, as Calico does.
func (b *balancer) show(ctx context.Context, r *request) error {
	if loadbalancer.Shows(r.Service, r.keep) {
		return nil
	}
	var status api.LoadBalancerStatus
	for _, a := range r.keep {
		status.Ingress = append(status.Ingress, api.LoadBalancerIngress{IP: a.String()})
	}
	err := b.patch(ctx, r.Service, []kubernetes.Operation{{Op: "add", Path: "/status/loadBalancer", Value: status}})
	if err == nil {
		b.log.Info("Service has addresses", "service", r.Namespace+"/"+r.Name, "addresses", r.keep)
	}
	return err
}

// balance looks after Services until ctx, which is that of this process's leadership, ends. Services are watched from
// when there is a pool for them, or an address that one holds.
func (c *Controllers) balance(ctx context.Context) {
	b := &balancer{services: c.deps.Store, ipam: ipam.NewClient(c.deps.Store, time.Now), warn: c.deps.Events.Warn, log: c.deps.Log}
	defer c.board.metrics.services.Set(0)
	var reported progress.Changes
	pauses := wait.Backoff{First: minRetry, Most: maxRetry}
	for ctx.Err() == nil {
		err := c.balanceOnce(ctx, b)
		c.board.metrics.services.Set(float64(len(b.refused)))
		if reported.New(err) && ctx.Err() == nil {
			c.deps.Log.Warn("cannot give all Services their addresses; retrying", "err", err)
		}
		if err != nil {
			wait.Sleep(ctx, pauses.Next())
			continue
		}
		pauses = wait.Backoff{First: minRetry, Most: maxRetry}
		if !wait.Sleep(ctx, balanceEvery) {
			return
		}
		again := balanceResync
		if len(b.refused) > 0 {
			again = refusedRetry
		}
		select {
		case <-ctx.Done():
		case <-c.deps.Watch.BalancingChanged():
		case <-c.deps.LoadBalancers.Changed():
		case <-time.After(again):
		}
	}
}

// balanceOnce is one look.
func (c *Controllers) balanceOnce(ctx context.Context, b *balancer) error {
	var v balanceView
	ready := false
	v.pools, v.blocks, v.hasHandle, ready = c.deps.Watch.Balancing()
	pools := loadbalancer.ReadPools(v.pools)
	if !ready || len(v.blocks) == 0 && !pools.Any() {
		b.refused = nil
		return nil
	}
	c.deps.LoadBalancers.Want()
	known, err := false, error(nil)
	if v.services, known, err = c.deps.LoadBalancers.All(); !known {
		return err
	}
	settings, err := effective(&c.deps.Config, c.configuration())
	if settings.AssignIPs == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, balanceTime)
	defer cancel()
	return b.look(ctx, &v, settings.AssignIPs == api.RequestedServicesOnly)
}
