package netpol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// Engine keeps the table of one network namespace. It is safe for concurrent use; two Engines for one namespace undo
// each other's work.
type Engine struct {
	ns         *netlinkx.Namespace
	table      *nft.Owned
	linkPrefix string

	portion int // elements in one transaction

	closes atomic.Bool // the last Ruleset was Closed
	shut   atomic.Bool // base chains were lost since the last Sync began, and all links are shut

	mu       sync.Mutex
	t        *translator
	mute     bool // the kernel cannot log
	handling policy.Handling
	noReject bool   // the kernel cannot reject
	size     uint32 // of the sets of members
	have     *state // nil: not known
	held     map[string]held
	denied   map[string]Denied // by chain
}

// New returns the engine of a namespace; nil is the process's namespace. Names of pods' links begin with linkPrefix. It
// does not touch the kernel yet.
func New(ns *netlinkx.Namespace, linkPrefix string) *Engine {
	e := &Engine{ns: ns, table: nft.NewOwned(ns, TableName), linkPrefix: linkPrefix, portion: portion, held: map[string]held{}}
	e.table.OnLoss([]string{egressChain, ingressChain, toHostChain}, e.shutAll)
	return e
}

// shutAll drops new connections at links of pods until the next Sync is done: making a large table again takes a
// hundred times as long. It may run beside a Sync, and does not know the table's content. If it fails the next Sync
// makes everything; if it comes late, its event demands a Sync.
func (e *Engine) shutAll() {
	if !e.closes.Load() || e.shut.Swap(true) {
		return
	}
	t := nft.NewOwned(e.ns, TableName)
	defer t.Close()
	c := t.Change()
	c.MakeTable(false)
	for _, chain := range shutChains(e.linkPrefix) {
		c.MakeChain(chain)
		c.AddRules(chain)
	}
	_ = t.Commit(context.Background(), c)
}

// Close closes the engine's sockets. Its programmed rules stay in force.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.Close()
	e.have = nil
}

// Stats counts the work of a Sync.
type Stats struct {
	// Read: the table was read, because it was not known or another program had changed it.
	Read bool
	// Foreign: another program had changed the table since the last Sync.
	Foreign bool
	// Transactions and Elements are how many were written; Elements are elements of sets, added or deleted.
	Transactions, Elements int
}

// ErrRefused is in the error of a Sync that has done all but some programs, which the kernel refuses: their pods are
// closed in the programs' direction.
var ErrRefused = errors.New("the kernel refuses a program")

// ErrNoLog is in the error of the Sync that finds that the kernel cannot log what policies deny. All else is done, and
// later Syncs do not try to log.
var ErrNoLog = errors.New("packets that policies deny are not logged")

// tries bounds the transactions of a Sync that the kernel refuses: each names at least one object.
const tries = 64

// Sync makes the table match the Ruleset, and does not touch what is right: with nothing to change it neither reads nor
// writes, unless another program has changed the table. If touched is nil everything is compared; otherwise only the
// Members of these addresses may have changed since the last Sync. Only differences are written; packets meet the old
// or the new content. After an error the table is as before, or, for a large load, allows less; the next Sync goes on.
// ErrRefused means that all but some programs is done.
//
// Sync keeps the lists in Members, so the caller must not change them.
func (e *Engine) Sync(ctx context.Context, rs *policy.Ruleset, touched []netip.Addr) (stats Stats, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	foreign, err := e.table.Touched(ctx)
	if err != nil {
		return stats, err
	}
	e.shut.Store(false)
	if foreign {
		stats.Foreign, e.have = e.have != nil, nil
	}
	if touched != nil && e.have != nil {
		if done, err := e.syncMembers(ctx, rs, touched, &stats); done || err != nil {
			return stats, err
		}
	}
	if err = e.syncAll(ctx, rs, &stats); e.have != nil {
		e.closes.Store(rs.Closed)
	}
	return stats, err
}

// syncMembers writes the members of some addresses. done is false if they do not fit.
func (e *Engine) syncMembers(ctx context.Context, rs *policy.Ruleset, touched []netip.Addr, stats *Stats) (done bool, err error) {
	n := e.have.counts
	for _, a := range touched {
		n[familyOf(a)] += len(rs.Members[a]) - len(e.have.members[a])
	}
	if most(n) > int(e.size) {
		return false, nil
	}
	for len(touched) > 0 {
		count := e.together(rs, touched)
		if err := e.write(ctx, rs, touched[:count], stats); err != nil {
			e.have = nil
			return false, e.reread(ctx, err)
		}
		touched = touched[count:]
	}
	e.have.counts = n
	return true, nil
}

// reread returns nil for nft.ErrChanged, after which the table must be read again.
func (e *Engine) reread(ctx context.Context, err error) error {
	if !errors.Is(err, nft.ErrChanged) {
		return err
	}
	e.have = nil
	_, err = e.table.Touched(ctx)
	return err
}

// together returns how many of the addresses make a portion. All members of an address are in one.
func (e *Engine) together(rs *policy.Ruleset, touched []netip.Addr) int {
	total := 0
	for i, a := range touched {
		if total += len(rs.Members[a]) + len(e.have.members[a]); total > e.portion {
			return max(i, 1)
		}
	}
	return len(touched)
}

// write writes the members of some addresses in one transaction.
func (e *Engine) write(ctx context.Context, rs *policy.Ruleset, touched []netip.Addr, stats *Stats) error {
	var m moves
	for _, a := range touched {
		// A repeated address is a no-op.
		m.compare(a, e.have.members[a], rs.Members[a], nil, nil)
		e.have.setMembers(a, rs.Members[a])
	}
	p := planner{e, e.have, &image{family: e.t.members}}
	return e.commit(ctx, p.members(&m, m.early, m.late), stats)
}

func (s *state) setMembers(a netip.Addr, ids []policy.SetID) {
	if len(ids) == 0 {
		delete(s.members, a)
		return
	}
	s.members[a] = ids
}

// syncAll compares everything.
func (e *Engine) syncAll(ctx context.Context, rs *policy.Ruleset, stats *Stats) error {
	refused := map[programKey]error{}
	remade := false
	var lesser []error // features that the kernel lacks
	for range tries {
		before := stats.Transactions
		err := e.attempt(ctx, rs, refused, stats)
		if err == nil {
			return errors.Join(append(lesser, e.refusals(rs, refused))...)
		}
		if stats.Transactions != before {
			e.have = nil
		}
		if errors.Is(err, nft.ErrChanged) {
			if err := e.reread(ctx, err); err != nil {
				return err
			}
			continue
		}
		var r *nft.Refused
		if !errors.As(err, &r) {
			e.have = nil
			return err
		}
		if err := e.renounce(r); err != nil {
			lesser = append(lesser, err)
			continue
		}
		if e.blame(rs, r, refused) {
			continue
		}
		if remade {
			e.have = nil
			return fmt.Errorf("write nftables table inet %s: %w", TableName, err)
		}
		// The table may hold something that reading does not show.
		remade = true
		e.have = emptyState()
		e.have.remake, err = e.table.Exists(ctx)
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("write nftables table inet %s: the kernel refused %d transactions", TableName, tries)
}

// renounce stops using what the kernel has refused, if policies hold without it; it returns nil if they do not.
func (e *Engine) renounce(r *nft.Refused) error {
	switch {
	case !e.mute && mute(r):
		e.silence()
		return fmt.Errorf("%w: %w", ErrNoLog, r)
	case e.handling.Reject && r.Expression == "reject":
		e.noReject = true
		return fmt.Errorf("%w, although FelixConfiguration asks for Reject: %w", ErrNoReject, r)
	}
	return nil
}

// mute reports whether the refused expression is needed for logging only.
func mute(r *nft.Refused) bool { return r.Expression == "log" || r.Expression == "limit" }

// attempt reads the table if it must, and writes the differences.
func (e *Engine) attempt(ctx context.Context, rs *policy.Ruleset, refused map[programKey]error, stats *Stats) error {
	content, err := e.look(ctx, stats)
	if err == nil {
		err = e.forget()
	}
	if err != nil {
		return err
	}
	if n := most(counts(rs.Members)); e.t == nil || n > int(e.size) {
		e.resize(sizeFor(n))
	}
	e.treat(rs, content)
	want, used := e.image(rs, refused)
	if content != nil {
		e.have = e.adopt(content, want)
		want, used = e.image(rs, refused) // links may be held
	}
	wrote := false
	for c := range e.plan(e.have, want) {
		if err := e.commit(ctx, c, stats); err != nil {
			return err
		}
		wrote = true
	}
	if wrote || content != nil {
		e.settle(want, used)
	}
	return nil
}

// look reads the table unless it is known.
func (e *Engine) look(ctx context.Context, stats *Stats) (*nft.Content, error) {
	if e.have != nil {
		return nil, nil
	}
	names := []string{egressChain, ingressChain, toHostChain}
	if e.t != nil {
		names = slices.AppendSeq(names, maps.Keys(e.t.chains))
	}
	content, err := e.table.Read(ctx, names)
	if err != nil {
		return nil, err
	}
	stats.Read = true
	switch size := sizeOf(content); {
	case size == 0:
		e.t = nil // the sets may become smaller
	case e.t == nil:
		e.resize(size)
	}
	return content, nil
}

// settle records that the table matches an image.
func (e *Engine) settle(want *image, used map[programKey]bool) {
	e.have = stateOf(want)
	e.t.prune(used, want)
	e.denied = maps.Clone(e.t.denied)
	maps.DeleteFunc(e.held, func(link string, h held) bool { return want.links[policy.Ingress][link].Comment != h.comment })
}

func (e *Engine) resize(size uint32) { e.size, e.t = size, newTranslator(size, e.mute, e.handling) }

// silence makes all chains without logging from now on.
func (e *Engine) silence() {
	e.mute = true
	e.resize(e.size)
}

// commit writes a change. If a change of elements only is too large for the kernel, commit halves it.
func (e *Engine) commit(ctx context.Context, c *nft.Change, stats *Stats) error {
	if c.Empty() {
		return nil
	}
	err := e.table.Commit(ctx, c)
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMSGSIZE) {
		if a, b, ok := c.Halves(); ok {
			if err := e.commit(ctx, a, stats); err != nil {
				return err
			}
			return e.commit(ctx, b, stats)
		}
	}
	if err == nil {
		stats.Transactions++
		stats.Elements += c.Elements
	}
	return err
}

// stateOf returns the state after an image was written.
func stateOf(w *image) *state {
	s := emptyState()
	s.table, s.links, s.ids = true, w.links, w.ids
	for name := range w.chains {
		s.chains[name] = true
	}
	for name := range w.sets {
		s.sets[name] = true
	}
	if w.closed {
		s.closed = closedElements
	}
	s.members, s.counts = maps.Clone(w.members), counts(w.members)
	return s
}

// image returns the table for the Ruleset, and the programs that it uses.
func (e *Engine) image(rs *policy.Ruleset, refused map[programKey]error) (*image, map[programKey]bool) {
	w := &image{chains: map[string]nft.Chain{}, sets: map[string]nft.Set{}, links: [2]map[string]nft.Element{{}, {}},
		closed: rs.Closed, members: rs.Members, family: e.t.members, ids: map[policy.SetID]bool{}}
	for _, c := range baseChains(e.linkPrefix) {
		w.chains[c.Name] = c
	}
	for _, s := range append(baseSets(), e.t.members[:]...) {
		w.sets[s.Name] = s
	}
	used := map[programKey]bool{}
	for link, h := range e.held {
		for d := range w.links {
			w.links[d][link] = h.element(link, rs.Closed)
		}
	}
	for link, endpoint := range rs.Endpoints {
		if h, ok := e.held[link]; ok && h.comment != closedFor(endpoint.UID) {
			continue
		}
		for d, key := range endpoint.Programs {
			w.links[d][link] = e.element(rs, w, link, endpoint.UID, programKey{Direction: policy.Direction(d), key: key}, refused, used)
		}
	}
	e.hosts(rs, w, refused, used)
	if c := handlingChain(e.handling); c != nil {
		e.keep(w, *c)
	}
	return w, used
}

// element returns a link's element in one direction, and adds the needs of its program to the image.
func (e *Engine) element(rs *policy.Ruleset, w *image, link, uid string, key programKey, refused map[programKey]error,
	used map[programKey]bool) nft.Element {
	element := nft.Element{First: nft.LinkKey(link), Verdict: nft.Drop, Comment: uid}
	if rs.Endpoints[link].Programs == [2]string{} {
		element.Verdict = nft.Accept
		return element
	}
	element.Verdict = e.verdict(rs, w, key, refused, used)
	return element
}

// verdict returns the verdict that leads to a program, and adds the program's needs to the image.
func (e *Engine) verdict(rs *policy.Ruleset, w *image, key programKey, refused map[programKey]error, used map[programKey]bool) nft.Verdict {
	if refused[key] != nil {
		return nft.Drop
	}
	p, err := e.t.program(rs, key)
	if err != nil {
		refused[key] = err
		return nft.Drop
	}
	if !used[key] {
		used[key] = true
		w.use(p, e.t)
	}
	return p.verdict
}

// use adds what a program uses.
func (w *image) use(p *program, t *translator) {
	for _, name := range p.chains {
		w.chains[name] = t.chains[name]
	}
	for _, name := range p.sets {
		w.sets[name] = t.sets[name]
	}
	for _, id := range p.ids {
		w.ids[id] = true
	}
}

// blame marks the programs that use the refused object as refused, and reports whether there are any.
func (e *Engine) blame(rs *policy.Ruleset, r *nft.Refused, refused map[programKey]error) bool {
	found := false
	for k := range e.users(rs) {
		p := e.t.programs[k]
		if p != nil && refused[k] == nil && (slices.Contains(p.chains, r.Object) || slices.Contains(p.sets, r.Object)) {
			refused[k], found = r, true
		}
	}
	return found
}

// users returns the links of each program.
func (e *Engine) users(rs *policy.Ruleset) map[programKey][]string {
	links := map[programKey][]string{}
	for link, endpoint := range rs.Endpoints {
		for d, key := range endpoint.Programs {
			k := programKey{Direction: policy.Direction(d), key: key}
			links[k] = append(links[k], link)
		}
	}
	for link, host := range rs.Hosts {
		for _, programs := range host.Programs {
			for d, key := range programs {
				for _, silent := range []bool{false, true} {
					k := programKey{policy.Direction(d), key, true, silent}
					links[k] = append(links[k], link)
				}
			}
		}
	}
	return links
}

// refusals returns the errors of refused programs with their policies and links.
func (e *Engine) refusals(rs *policy.Ruleset, refused map[programKey]error) error {
	var errs []error
	users := e.users(rs)
	for k, err := range refused {
		links := slices.Compact(sorted(users[k]))
		errs = append(errs, fmt.Errorf("%w: %s of %s is closed, because of %s: %w",
			ErrRefused, k.Direction, strings.Join(links, ", "), strings.Join(policies(rs.Programs[k.key]), ", "), err))
	}
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return netlinkx.Summary(errs)
}

// policies returns the names of the policies for which a program denies.
func policies(p policy.Program) []string {
	names := map[string]bool{}
	take := func(l policy.List) {
		for _, v := range append([]policy.Verdict{l.Else}, verdicts(l.Steps)...) {
			if !v.Allow {
				names[v.By.String()] = true
			}
		}
	}
	take(p.Rest)
	for _, l := range p.Protocols {
		take(l)
	}
	for _, ranges := range p.Ports {
		for _, r := range ranges {
			take(r.List)
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func verdicts(steps []policy.Step) (all []policy.Verdict) {
	for _, s := range steps {
		all = append(all, s.Verdict)
	}
	return all
}

// End prevents an answer from beginning an ended UDP connection anew, for endedTime. The caller then deletes the flows
// from connection tracking.
func (e *Engine) End(ctx context.Context, flows []netlinkx.Flow) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.have == nil {
		return errNotKnown
	}
	var answers [2][]nft.Element
	for _, f := range flows {
		if f.Protocol == unix.IPPROTO_UDP && len(answers[0])+len(answers[1]) < mostEnded {
			key := nft.Key(nft.AddrKey(f.Server), nft.AddrKey(f.Client), nft.PortKey(f.Port), nft.PortKey(f.SourcePort))
			answers[familyOf(f.Server)] = append(answers[familyOf(f.Server)], nft.Element{First: key})
		}
	}
	c := e.table.Change()
	for i, set := range ended {
		c.Add(set, answers[i])
	}
	if err := e.commit(ctx, c, &Stats{}); err != nil {
		return fmt.Errorf("keep connections of UDP from beginning anew: %w", err)
	}
	return nil
}

// mostEnded bounds the elements of one End: the set grows on demand, and a large load prevents the kernel from growing
// it.
const mostEnded = 10_000

// errNotKnown means that the caller should try again after the next Sync.
var errNotKnown = errors.New("the nftables table is not known")

// Remove removes the table: then every packet passes.
func (e *Engine) Remove(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.have, e.held = nil, map[string]held{}
	e.closes.Store(false)
	if _, err := e.table.Touched(ctx); err != nil { // whatever it has
		return err
	}
	exists, err := e.table.Exists(ctx)
	if err != nil || !exists {
		return err
	}
	c := e.table.Change()
	c.RemoveTable()
	if err := e.table.Commit(ctx, c); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table inet %s: %w", TableName, err)
	}
	return nil
}

// Events returns a channel that becomes readable after another program has changed the table: then call Sync. It is
// closed when ctx ends, or when the socket breaks: then call Events again.
func (e *Engine) Events(ctx context.Context) (<-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.Events(ctx)
}

// Counters returns how many packets were dropped, by reason, since the rules were made. It is empty before the first
// Sync.
func (e *Engine) Counters(ctx context.Context) (map[Denied]nft.Counter, error) {
	e.mu.Lock()
	denied := e.denied
	e.mu.Unlock()
	byChain, err := e.table.Counters(ctx)
	if netlinkx.IsNotExist(err) {
		return nil, nil
	}
	all := map[Denied]nft.Counter{}
	for chain, c := range byChain {
		if d, ok := reason(chain, denied); ok && c.Packets > 0 {
			all[d] = nft.Counter{Packets: all[d].Packets + c.Packets, Bytes: all[d].Bytes + c.Bytes}
		}
	}
	return all, err
}

// reason returns why a chain drops.
func reason(chain string, denied map[string]Denied) (Denied, bool) {
	switch chain {
	case egressChain, toHostChain:
		return Denied{Direction: policy.Egress, Reason: unknownLink}, true
	case noPodsChain:
		return Denied{Direction: policy.Egress, Reason: podToHost}, true
	case ingressChain:
		return Denied{Direction: policy.Ingress, Reason: unknownLink}, true
	}
	d, ok := denied[chain]
	return d, ok
}
