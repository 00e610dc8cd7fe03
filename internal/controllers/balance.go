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
	// balanceEvery is the least pause between passes over Services, balanceTime bounds one pass.
	balanceEvery, balanceTime = 250 * time.Millisecond, 5 * time.Minute
	// balanceResync is the interval of passes without a change.
	balanceResync = 5 * time.Minute
	// refusedRetry is the pause before an unchanged Service without an address is tried again, while pools are unchanged.
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

// balancer assigns addresses to Services of type LoadBalancer. IPAM holds an address before a status shows it, and
// until no status does. After a process that dies between two writes, its successor finds the address by the Service's
// handle.
type balancer struct {
	services serviceStore
	ipam     *ipam.Client
	warn     func(about api.ObjectReference, reason, text string)
	log      *slog.Logger

	pools string // the revisions of the pools that refused is about

	mu      sync.Mutex          // guards the rest
	refused map[string]refusal  // by the Service's UID
	full    []netip.Prefix      // blocks without a free address, as far as this pass knows
	holds   map[netip.Addr]bool // addresses that Services hold, likewise
}

// refusal records when a Service got less than it requests, and its revision.
type refusal struct {
	revision string
	at       time.Time
	// wanted are requested addresses that another Service holds. When that Service releases one, the oldest Service that
	// requests it must get it.
	wanted []netip.Addr
}

// balanceView is what Services request and hold. It may be out of date: every write is guarded.
type balanceView struct {
	services  []*api.Service // of type LoadBalancer
	pools     []api.IPPool
	blocks    []inventory.Block
	hasHandle func(name string) bool
}

// request is a Service that does not hold, or does not show, the addresses that it requests.
type request struct {
	*api.Service
	wish       loadbalancer.Wish
	keep, drop []netip.Addr
	// shown are free addresses that the status of this Service alone shows: they are asked for before others, since
	// clients use them. An allocation that was not copied to another datastore leaves such an address.
	shown []netip.Addr
}

// serviceHolder is a handle of a Service, with its addresses.
type serviceHolder struct {
	namespace, name, handle string
	addresses               []netip.Addr
}

// holders returns the addresses that Services hold, by handle. A node may write its own blocks, and with its own name
// addresses in other blocks: allocations for Services by nodes are ignored.
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

// fullBlocks returns the blocks without an address that is free or soon will be.
func fullBlocks(blocks []inventory.Block) (full []netip.Prefix) {
	for i := range blocks {
		b := &blocks[i]
		if b.Damage == nil && b.Free == 0 && !slices.ContainsFunc(b.Allocations, func(a inventory.Allocation) bool { return a.Cooling() }) {
			full = append(full, b.CIDR)
		}
	}
	return full
}

// look makes IPAM and statuses match the requests of Services. A failed request does not stop the others; the error is
// the last one.
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
	shows := timesShown(v.services)
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
		if due {
			r.shown = slices.DeleteFunc(r.wish.Shown(s, r.keep, &pools), func(a netip.Addr) bool { return b.holds[a] || shows[a] > 1 })
		}
		switch {
		case !due:
		case len(r.drop) > 0 || len(loadbalancer.Lost(s, slices.Concat(r.keep, r.shown), r.drop, &pools)) > 0:
			clean = append(clean, r)
		case len(r.keep) > 0 || len(r.shown) > 0 || len(r.wish.Addresses) > 0 || v.hasHandle(names.Handle(loadbalancer.Handle(s))):
			r.wish.Ask(r.shown)
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

// timesShown counts the statuses that show an address.
func timesShown(all []*api.Service) map[netip.Addr]int {
	n := map[netip.Addr]int{}
	for _, s := range all {
		for _, entry := range s.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(entry.IP); err == nil {
				n[a]++
			}
		}
	}
	return n
}

// inParallel runs do for all items and joins the errors. A conflict is not an error: the other writer's change triggers
// the next pass.
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

// forget drops refusals of deleted Services, and all refusals when pools have changed.
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

// judge compares the addresses that a Service requests with those that it holds and shows; due is false if nothing must
// be done now. A Service with an unreadable request keeps its addresses.
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

// refuse records and reports why a Service lacks an address.
func (b *balancer) refuse(r *request, why error) {
	b.mu.Lock()
	wanted := slices.DeleteFunc(slices.Clone(r.wish.Addresses), func(a netip.Addr) bool { return !b.holds[a] })
	b.refused[r.UID] = refusal{r.ResourceVersion, time.Now(), wanted}
	b.mu.Unlock()
	b.warn(reference(r.Service, &r.Meta), reasonNoAddress, why.Error())
}

// clean hides and then releases the addresses that a Service must not keep. Missing ones are assigned in the next pass,
// which the write of its status triggers.
func (b *balancer) clean(ctx context.Context, r *request, pools *loadbalancer.Pools) error {
	now := &api.Service{Meta: api.Meta{Namespace: r.Namespace, Name: r.Name}}
	switch err := b.services.Get(ctx, now); {
	case errors.Is(err, datastore.ErrNotFound), err == nil && now.ResourceVersion != r.ResourceVersion:
		return nil // the watch will report it
	case err != nil:
		return fmt.Errorf("read Service %s/%s again: %w", r.Namespace, r.Name, err)
	}
	return b.give(ctx, now, loadbalancer.Lost(now, slices.Concat(r.keep, r.shown), r.drop, pools), loadbalancer.Handle(now), r.drop)
}

// release releases the addresses of a handle if its Service is deleted, or must not have addresses of pools.
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

// give removes entries from the status of s, and then releases addresses of a handle.
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

// patch changes a Service's status, if the Service is still in the revision of s.
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

// assign assigns addresses to Services with equal requests, and writes them into their statuses. If there are several,
// none holds an address yet.
func (b *balancer) assign(ctx context.Context, all []request) error {
	for len(all) > 0 {
		got, lacking, err := b.hold(ctx, all[:min(len(all), mostAtOnce)])
		if err != nil {
			return err
		}
		if first := &all[0]; len(got) == 0 && len(first.shown) > 0 { // after this write the next pass asks for others
			return b.give(ctx, first.Service, loadbalancer.Positions(first.Service, first.shown), loadbalancer.Handle(first.Service), nil)
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
		if len(got) == 1 { // after a conflict the others may have handles, which the next pass sees
			return nil
		}
	}
	return nil
}

// hold assigns addresses in IPAM to the first Services, and returns the addresses of each. lacking is why they do not
// hold an address of each family: with PreferDualStack one is enough, and a Service that holds one keeps it.
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

// ownerOf returns a Service as the owner of addresses, with the attributes that Calico writes.
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

// show writes the addresses of a Service into its status, replacing all entries, as Calico does.
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

// balance assigns addresses to Services until ctx, the context of this process's leadership, ends. It watches Services
// once there is a pool for them, or an address that a Service holds.
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

// balanceOnce is one pass.
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
