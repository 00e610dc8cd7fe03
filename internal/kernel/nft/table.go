package nft

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

const (
	// attempts is how often a Sync begins anew because somebody else, such as kube-proxy, changed nftables meanwhile.
	attempts     = 20
	attemptPause = 2 * time.Millisecond
	// ownGenerations is how many of its own transactions a Table can tell from others', for Events.
	ownGenerations = 64
)

// Table is the table "inet tortie" in one network namespace. It is safe for concurrent use, and the owners of one namespace's
// parts should share one.
type Table struct {
	ns *netlinkx.Namespace // nil: that of the process

	mu      sync.Mutex         // held for a whole Sync
	settled map[string]settled // by owner
	own     []uint32           // the last generations that this Table made
}

// settled is a part of which is known that the kernel had it in a generation.
type settled struct {
	part       Part
	generation uint32
}

// New returns the table of a network namespace, which must stay open as long as the table is used; nil is that of the process. It
// touches nothing yet.
func New(ns *netlinkx.Namespace) *Table { return &Table{ns: ns, settled: map[string]settled{}} }

// Sync makes what p's owner has in the table as p says, in one transaction, and reports whether something had to be written.
// What is right is not written: elements alone change if only elements differ, and rules keep their counters if they stay.
//
// The transaction holds only if nobody has changed nftables since Sync looked, so that nothing is decided on old knowledge. If
// nobody has since the last Sync of the same part, one question to the kernel tells so.
func (t *Table) Sync(ctx context.Context, p Part) (written bool, err error) {
	if err := p.validate(); err != nil {
		return false, fmt.Errorf("table inet %s: %w", TableName, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	rebuild := false
	for range attempts {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		done, err := t.attempt(ctx, p, rebuild)
		switch {
		case err == nil:
			return done, nil
		case stale(err):
			time.Sleep(rand.N(attemptPause))
		case rebuild:
			return false, explain(fmt.Errorf("write nftables table inet %s: %w", TableName, err))
		default:
			// What is there may not be what it looked like: only the kernel knows all of it.
			rebuild = true
		}
	}
	return false, fmt.Errorf("write nftables table inet %s: others changed nftables %d times meanwhile", TableName, attempts)
}

// attempt reads, compares and writes. The error is stale if somebody else was faster. It has a socket of its own: the kernel
// may have more to say of a transaction that it refuses.
func (t *Table) attempt(ctx context.Context, p Part, rebuild bool) (written bool, err error) {
	s, err := dial(ctx, t.ns)
	if err != nil {
		return false, err
	}
	defer s.Close()
	generation, err := s.generation()
	if err != nil {
		return false, err
	}
	if known := t.settled[p.owner()]; known.generation == generation && !rebuild && reflect.DeepEqual(known.part, p) {
		return false, nil
	}
	have, err := t.look(s, p, generation, rebuild)
	if err != nil {
		return false, err
	}
	requests := plan(have, p, rebuild)
	if len(requests) > 0 {
		if err := s.commit(generation, requests); err != nil {
			return false, err
		}
		generation = t.made(generation)
	}
	t.settle(p, generation)
	return len(requests) > 0, nil
}

// look returns what p's owner has in a generation. If that is the last one of which it is known, and nothing has to be said of
// single rules, whose handles only the kernel knows, there is no need to ask.
func (t *Table) look(s socket, p Part, generation uint32, rebuild bool) (*content, error) {
	if known := t.settled[p.owner()]; known.generation == generation && !rebuild && !p.empty() && sameRules(known.part, p) {
		return contentOf(known.part), nil
	}
	have, err := s.read(p)
	// Half of what was read may be of another generation; an error may be of a thing that went while it was read.
	if now, genErr := s.generation(); genErr != nil || now != generation {
		return nil, fmt.Errorf("read: %w", cmp.Or(genErr, error(unix.ERESTART)))
	}
	return have, err
}

// made notes that this Table made the generation after g, and returns it. What was known of other parts in g is so in the next.
func (t *Table) made(g uint32) uint32 {
	made := successor(g)
	for owner, known := range t.settled {
		if known.generation == g {
			known.generation = made
			t.settled[owner] = known
		}
	}
	t.own = append(t.own, made)
	t.own = t.own[max(0, len(t.own)-ownGenerations):]
	return made
}

func (t *Table) settle(p Part, generation uint32) {
	if p.empty() {
		// The table may go when another owner has left it.
		delete(t.settled, p.owner())
		return
	}
	t.settled[p.owner()] = settled{p, generation}
}

// Counter is what a rule has counted.
type Counter struct {
	Packets, Bytes uint64
}

// Counters returns what the rules with a comment have counted, in chains whose names begin with prefix, by comment. A rule
// that was changed or removed begins at zero again.
func (t *Table) Counters(ctx context.Context, prefix string) (map[string]Counter, error) {
	s, err := dial(ctx, t.ns)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	rules, err := s.rules()
	if netlinkx.IsNotExist(err) {
		return nil, nil // no table
	}
	if err != nil {
		return nil, err
	}
	counters := map[string]Counter{}
	p := Part{Prefixes: []string{prefix}}
	for _, chain := range slices.Sorted(maps.Keys(rules)) {
		for _, r := range rules[chain] {
			if c, ok := r.counter(); ok && r.Comment != "" && p.owns(chain) {
				sum := counters[r.Comment]
				counters[r.Comment] = Counter{sum.Packets + c.Packets, sum.Bytes + c.Bytes}
			}
		}
	}
	return counters, nil
}

func (r Rule) counter() (c Counter, ok bool) {
	for _, e := range r.exprs {
		if e.name == "counter" {
			return Counter{nlmsg.Number64(nlmsg.Find(e.attrs, unix.NFTA_COUNTER_PACKETS)), nlmsg.Number64(nlmsg.Find(e.attrs, unix.NFTA_COUNTER_BYTES))}, true
		}
	}
	return Counter{}, false
}
