package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestHistories runs random histories: pods come and go on three nodes at once, with and without an agent that knows
// older state; some ask for an address of their own, some give up after they have begun; nodes collect addresses of
// dead containers, and take unused blocks from others. Requests of different processes interleave in any order, fail,
// lose their answers or land late, processes die between any two writes, and lists are old. After each request: no
// block contradicts itself or overlaps another, and each owner holds its address. No address is assigned before it has
// cooled down. At the end, when half-done handles have been released or collected: handles, blocks and claims agree,
// and nothing is leaked.
//
// A history is a function of its seed: a failure names it, and -model.seed replays it.
func TestHistories(t *testing.T) {
	datastoretest.Histories(t, 60, func(t *testing.T, seed uint64) { newHistory(t, seed).run() })
}

// state is the state of a handle.
type state int

const (
	unused state = iota
	busy         // an operation on it runs
	live         // assigned, and the owner knows
	dirty        // an operation failed or died: nobody knows what it holds
)

// history is one run of the model. The test's goroutine decides everything; the others wait for it with each request,
// so that the order of requests is the seed's alone.
type history struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	store  *datastoretest.Fake
	began  time.Time
	states map[string]state
	held   map[string][]netip.Addr  // of live handles
	dual   map[string]bool          // the handles that ask for both families
	facts  map[string]*Known        // what the agents of the hosts knew when they looked last
	cool   time.Duration            // how long addresses cool down
	until  map[netip.Addr]time.Time // before which an address was not to be given again
	wrote  bool                     // the last step may have changed the datastore
	log    []string
	rates  map[datastoretest.Fault]int // per thousand writes

	mu      sync.Mutex // guards the rest, which the operations' goroutines change
	waiting []*parked
	done    []result
	late    bool // a late write may be on its way
	landed  int  // how often such writes have landed
}

// now is the time of all clients.
func (h *history) now() time.Time { return clock.Add(time.Since(h.began)) }

func (h *history) client(store datastore.Store) *Client { return NewClient(store, h.now) }

// parked is one request that waits for its turn.
type parked struct {
	who    string
	req    datastoretest.Request
	resume chan datastoretest.Fault
}

func (p *parked) String() string { return p.who + ": " + p.req.String() }

// operation is one process's work.
type operation struct {
	who     string
	kind    kind
	handles []string                // on which no other operation runs meanwhile
	before  map[string][]netip.Addr // what they held
	started time.Time
	landed  int // how often late writes had landed then
	do      func(context.Context, *Client) ([]Assignment, error)
}

type kind string

const (
	assigns  kind = "assign"
	abandons kind = "abandon"
	releases kind = "release"
	collects kind = "collect"
)

// result is the result of an operation.
type result struct {
	operation
	got []Assignment
	err error
}

const (
	maxBusy    = 5
	operations = 60
)

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), store: datastoretest.NewFake(),
		states: map[string]state{}, held: map[string][]netip.Addr{}, dual: map[string]bool{},
		facts: map[string]*Known{}, until: map[netip.Addr]time.Time{}, rates: map[datastoretest.Fault]int{}, began: time.Now(),
	}
	for _, fault := range []datastoretest.Fault{datastoretest.Conflict, datastoretest.Unavailable, datastoretest.Lost, datastoretest.Late,
		datastoretest.Crash, datastoretest.CrashAfter, datastoretest.CrashLate} {
		if h.rng.IntN(2) == 0 { // some histories have few kinds of faults, some all
			h.rates[fault] = h.rng.IntN(60)
		}
	}
	seedStore(t, h)
	if h.rng.IntN(2) == 0 {
		h.store.SetLag(func(states int) int { return h.rng.IntN(states + 1) })
	}
	return h
}

func seedStore(t *testing.T, h *history) {
	seed(t, h.store)
	cfg := DefaultConfig()
	switch h.rng.IntN(4) {
	case 0:
		cfg.StrictAffinity, cfg.MaxBlocksPerHost = true, 1
	case 1: // blocks without owners, which go with their last address
		mustCreate(t, h.store, stored("10.0.0.4/30", "", "old").obj, storedHandle("old", "10.0.0.4/30=1"))
		h.states["old"], h.held["old"] = live, []netip.Addr{netip.MustParseAddr("10.0.0.4")}
	}
	if h.rng.IntN(2) == 0 {
		cfg.IPCooldownSeconds = 1 + h.rng.IntN(100)
		h.cool = time.Duration(cfg.IPCooldownSeconds) * time.Second
	}
	if cfg != DefaultConfig() {
		mustCreate(t, h.store, &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: cfg})
	}
	for _, host := range hosts {
		h.look(host)
	}
}

// look updates the facts of a host's agent.
func (h *history) look(host string) { h.facts[host] = knownTo(h.t, h.store, host) }

func (h *history) run() {
	for started := 0; started < operations || h.count(busy) > 0; {
		synctest.Wait()
		h.settle()
		if h.wrote {
			h.check()
		}
		h.wrote = false
		if h.t.Failed() {
			h.abandon()
			return
		}
		switch {
		case started < operations && h.count(busy) < maxBusy && h.rng.IntN(4) == 0:
			h.start()
			started++
		case len(h.queue()) == 0 || h.rng.IntN(20) == 0:
			waittest.Advance(time.Second) // longer than any pause between tries: who waits for a second try goes on
		case h.rng.IntN(30) == 0:
			h.landLate()
		case h.rng.IntN(20) == 0:
			h.look(hosts[h.rng.IntN(len(hosts))])
		case h.rng.IntN(100) == 0: // blocks grow old enough to be reclaimed, addresses cool down
			waittest.Advance(time.Duration(h.rng.IntN(90)) * time.Second)
		default:
			h.serve()
		}
	}
	h.finish()
}

// settle processes the results of operations that ended.
func (h *history) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.done, func(a, b result) int { return strings.Compare(a.who, b.who) })
	for _, r := range h.done {
		h.log = append(h.log, fmt.Sprintf("%s ends: %v %v", r.who, r.got, r.err))
		if r.err != nil {
			h.expected(r)
		}
		for _, handle := range r.handles {
			h.settleHandle(r, handle)
		}
	}
	h.done = nil
}

func (h *history) settleHandle(r result, handle string) {
	switch {
	case handle == r.who && r.kind == collects: // it stood for no handle
		delete(h.states, handle)
	case r.err != nil:
		h.states[handle] = dirty
	case r.kind == assigns:
		h.states[handle], h.held[handle] = live, addresses(r.got)
		h.cooled(r, handle)
	case r.kind == collects: // a handle that holds nothing is left to its release
		h.states[handle] = dirty
		h.collected(r, handle)
	default:
		delete(h.states, handle)
		for _, a := range r.before[handle] {
			h.until[a] = r.started.Truncate(time.Second).Add(h.cool) // releasedAt has whole seconds
		}
	}
}

// cooled fails the test if an address was given before it had cooled down.
func (h *history) cooled(r result, handle string) {
	for _, a := range addresses(r.got) {
		if !slices.Contains(r.before[handle], a) && h.now().Before(h.until[a]) {
			h.t.Errorf("seed %d: %s was given to %s at %v, and cools down until %v\nhistory:\n%s", h.seed, a, handle, h.now(), h.until[a], h.tail())
		}
		delete(h.until, a)
	}
}

// collected fails the test if a dead container still holds an address that no late write can have assigned.
func (h *history) collected(r result, handle string) {
	if h.late || h.landed > r.landed {
		return
	}
	c, err := readContents(h.store)
	errtest.Must(h.t, err)
	for _, b := range c.blocks {
		if held := b.Held(handle); len(held) > 0 {
			h.t.Errorf("seed %d: %s left %v to %s\nhistory:\n%s", h.seed, r.who, held, handle, h.tail())
		}
	}
}

// expected fails the test at an error that no injected fault explains.
func (h *history) expected(r result) {
	for _, known := range []error{ErrExhausted, ErrBlockLimit, ErrTaken, datastore.ErrUnavailable, datastoretest.ErrCrashed} {
		if errors.Is(r.err, known) {
			return
		}
	}
	h.t.Errorf("seed %d: %s: unexpected error %v", h.seed, r.who, r.err)
}

// check checks the invariants after every request.
func (h *history) check() {
	c, err := readContents(h.store)
	if err == nil {
		var holders map[netip.Addr]string
		if holders, err = c.holders(); err == nil {
			for handle, addrs := range h.held {
				for _, a := range addrs {
					if holders[a] != handle {
						err = fmt.Errorf("%s was given to %s and is held by %q", a, handle, holders[a])
					}
				}
			}
		}
	}
	if err != nil {
		h.t.Errorf("seed %d: %v\n%s\nhistory:\n%s", h.seed, err, dump(h.store), h.tail())
	}
}

func (h *history) tail() string {
	return strings.Join(h.log[max(0, len(h.log)-60):], "\n")
}

// start begins an operation on a handle that no other runs on: a sandbox is one process's at a time.
func (h *history) start() {
	handles := h.among(live, dirty)
	if len(handles) == 0 || h.rng.IntN(2) == 0 {
		h.assign(fmt.Sprintf("net.h%d", len(h.log)))
		return
	}
	if h.rng.IntN(10) == 0 {
		h.collect(hosts[h.rng.IntN(len(hosts))])
		return
	}
	handle := handles[h.rng.IntN(len(handles))]
	// A request may be repeated, but not while a write of its dead predecessor can still land: no handle would name that
	// write's address. Container runtimes never repeat one, they release and use a new handle.
	if h.rng.IntN(5) == 0 && !h.late {
		h.assign(handle)
		return
	}
	h.release(handle)
}

func (h *history) assign(handle string) {
	again := h.states[handle] != unused
	if !again {
		h.dual[handle] = h.rng.IntN(4) == 0
	}
	host := hosts[h.rng.IntN(len(hosts))]
	req := podRequest(host, handle)
	req.V6 = h.dual[handle]
	req.Attrs = map[string]string{"node": host, "timestamp": h.now().Format(timestampFormat)}
	if !again && h.rng.IntN(6) == 0 {
		req.Addresses = []netip.Addr{offset(netip.MustParseAddr("10.0.0.0"), uint64(h.rng.IntN(16)), 0)}
	}
	start := Start{Owner: req.Owner, Host: host, V4: true, V6: req.V6 == (h.rng.IntN(8) > 0), Use: req.Use, Known: h.known(host)}
	abandon := !again && h.rng.IntN(10) == 0
	op := operation{who: handle, kind: assigns, handles: []string{handle}}
	if abandon {
		op.kind = abandons
	}
	op.do = func(ctx context.Context, c *Client) ([]Assignment, error) {
		attempt := c.Begin(ctx, start)
		if abandon {
			return nil, attempt.Abandon(ctx)
		}
		return attempt.Finish(ctx, req)
	}
	h.spawn(op)
}

// known returns the facts of a host's agent, if one runs.
func (h *history) known(host string) *Known {
	if h.rng.IntN(2) == 0 {
		return nil
	}
	return h.facts[host]
}

func (h *history) release(handle string) {
	host := hosts[h.rng.IntN(len(hosts))]
	known := h.known(host)
	h.spawn(operation{who: handle, kind: releases, handles: []string{handle}, do: func(ctx context.Context, c *Client) ([]Assignment, error) {
		_, err := c.ReleaseKnowing(ctx, Owner{Handle: handle}, host, known)
		return nil, err
	}})
}

// collect frees addresses of containers whose state only the runtime knows.
func (h *history) collect(host string) {
	waittest.Advance(time.Second) // what was assigned before has an older time stamp
	what := Collection{Host: host, Network: "net", Before: h.now(), Known: h.known(host)}
	for _, handle := range h.among(live, busy) {
		what.Live = append(what.Live, strings.TrimPrefix(handle, "net."))
	}
	op := operation{who: "gc-" + host + fmt.Sprint(len(h.log)), kind: collects}
	for _, handle := range h.among(dirty) {
		if h.host(handle) == host {
			op.handles = append(op.handles, handle)
		} else { // another node's container: to this one it does not exist
			what.Live = append(what.Live, strings.TrimPrefix(handle, "net."))
		}
	}
	op.do = func(ctx context.Context, c *Client) ([]Assignment, error) {
		_, err := c.Collect(ctx, what)
		return nil, err
	}
	h.spawn(op)
}

// host returns the node that a handle holds all of its addresses on; empty if there is none.
func (h *history) host(handle string) string {
	c, err := readContents(h.store)
	errtest.Must(h.t, err)
	host := ""
	for _, b := range c.blocks {
		for _, at := range b.obj.Spec.Allocations {
			if at == nil || !holds(b.obj.Spec.Attributes[*at], handle) {
				continue
			}
			node := b.obj.Spec.Attributes[*at].Secondary["node"]
			if host != "" && host != node {
				return ""
			}
			host = node
		}
	}
	return host
}

// spawn runs an operation as a process of its own.
func (h *history) spawn(op operation) {
	h.log = append(h.log, fmt.Sprintf("%s begins to %s", op.who, op.kind))
	op.started, op.landed, op.before = h.now(), h.landed, map[string][]netip.Addr{}
	for _, handle := range op.handles {
		op.before[handle] = h.held[handle]
		h.states[handle] = busy
		delete(h.held, handle)
	}
	if len(op.handles) == 0 {
		op.handles = []string{op.who} // so that its end is waited for
		h.states[op.who] = busy
	}
	session := h.store.Session(func(ctx context.Context, r datastoretest.Request) datastoretest.Fault { return h.park(ctx, op.who, r) })
	go func() {
		got, err := op.do(context.Background(), h.client(session))
		h.mu.Lock()
		defer h.mu.Unlock()
		h.done = append(h.done, result{op, got, err})
	}()
}

// park waits until the request is served, or its sender has given up.
func (h *history) park(ctx context.Context, who string, r datastoretest.Request) datastoretest.Fault {
	p := &parked{who: who, req: r, resume: make(chan datastoretest.Fault)}
	h.mu.Lock()
	h.waiting = append(h.waiting, p)
	h.mu.Unlock()
	select {
	case fault := <-p.resume:
		return fault
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.waiting = slices.DeleteFunc(h.waiting, func(q *parked) bool { return q == p })
		return datastoretest.None // the session sees that ctx has ended
	}
}

// queue returns the waiting requests in an order that does not depend on the scheduler.
func (h *history) queue() []*parked {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.waiting, func(a, b *parked) int { return strings.Compare(a.String(), b.String()) })
	return h.waiting
}

// serve lets one request go on, or fail.
func (h *history) serve() {
	queue := h.queue()
	i := h.rng.IntN(len(queue))
	p := queue[i]
	fault := h.fault(p.req)
	h.log = append(h.log, fmt.Sprintf("%s: fault %d", p, fault))
	h.mu.Lock()
	h.waiting = slices.Delete(h.waiting, i, i+1)
	h.late = h.late || fault == datastoretest.Late || fault == datastoretest.CrashLate
	h.wrote = p.req.Write()
	h.mu.Unlock()
	p.resume <- fault
}

func (h *history) fault(r datastoretest.Request) datastoretest.Fault {
	roll := h.rng.IntN(1000)
	if !r.Write() {
		roll *= 5
	}
	for _, f := range slices.Sorted(maps.Keys(h.rates)) {
		if roll -= h.rates[f]; roll < 0 {
			return landable(f, r)
		}
	}
	return datastoretest.None
}

// landable: the creation of a block or handle that lands after its release is the collector's business, since no write
// can be guarded against the creation of what does not exist.
func landable(f datastoretest.Fault, r datastoretest.Request) datastoretest.Fault {
	if r.Verb != http.MethodPost || r.Kind == "BlockAffinity" {
		return f
	}
	switch f {
	case datastoretest.Late:
		return datastoretest.Lost
	case datastoretest.CrashLate:
		return datastoretest.CrashAfter
	}
	return f
}

func (h *history) landLate() {
	h.log = append(h.log, "late writes land")
	h.store.LandLate()
	h.late, h.wrote = false, true
	h.landed++
}

// finish releases half-done handles and checks that the books balance, then releases all.
func (h *history) finish() {
	if h.rng.IntN(2) == 0 { // else they land after the releases
		h.landLate()
	}
	for _, handle := range h.among(dirty) {
		h.free(handle)
	}
	h.landLate()
	h.balance("at the end", h.held)
	if h.rng.IntN(2) == 0 {
		h.collectAll()
	}
	for _, handle := range h.among(live) {
		h.free(handle)
	}
	h.balance("after all releases", nil)
	next := map[string][]netip.Addr{}
	later := NewClient(h.store, func() time.Time { return h.now().Add(time.Hour) })
	for _, host := range hosts { // one that has no block takes one that is not used
		got, err := later.Assign(context.Background(), podRequest(host, "next-"+host))
		if err != nil {
			h.t.Errorf("seed %d: the next pod of %s: %v", h.seed, host, err)
		}
		next["next-"+host] = addresses(got)
	}
	h.balance("with new pods", next)
}

func (h *history) free(handle string) {
	if _, err := h.client(h.store).Release(context.Background(), handle); err != nil {
		h.t.Errorf("seed %d: release of %s: %v", h.seed, handle, err)
	}
}

// collectAll lets each node collect as if none of its containers lived. That alone balances the books, but for
// containers of other networks.
func (h *history) collectAll() {
	for _, host := range hosts {
		if _, err := h.client(h.store).Collect(context.Background(), Collection{Host: host, Network: "net"}); err != nil {
			h.t.Errorf("seed %d: collection on %s: %v", h.seed, host, err)
		}
	}
	left := map[string][]netip.Addr{}
	if h.states["old"] == live {
		left["old"] = h.held["old"]
	}
	h.balance("after the collections", left)
}

func (h *history) balance(when string, want map[string][]netip.Addr) {
	if err := audit(h.store, want); err != nil {
		h.t.Errorf("seed %d: %s:\n%v\n%s\nhistory:\n%s", h.seed, when, err, dump(h.store), h.tail())
	}
}

// abandon ends the operations that still run, so that the bubble can end.
func (h *history) abandon() {
	for h.count(busy) > 0 {
		synctest.Wait()
		h.settle()
		queue := h.queue()
		if len(queue) == 0 {
			waittest.Advance(time.Second)
			continue
		}
		h.mu.Lock()
		h.waiting = h.waiting[1:]
		h.mu.Unlock()
		queue[0].resume <- datastoretest.Crash
	}
}

// among returns the handles in any of the states, sorted.
func (h *history) among(states ...state) []string {
	var out []string
	for _, handle := range slices.Sorted(maps.Keys(h.states)) {
		if slices.Contains(states, h.states[handle]) {
			out = append(out, handle)
		}
	}
	return out
}

func (h *history) count(s state) int { return len(h.among(s)) }
