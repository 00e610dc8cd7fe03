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
	// attempts bounds the retries of a Sync after transactions of other programs, such as kube-proxy.
	attempts     = 20
	attemptPause = 2 * time.Millisecond
	// ownGenerations bounds the own transactions that a Table remembers, so that Events skip them.
	ownGenerations = 64
)

// Table is the table "inet tortie" in one network namespace. It is safe for concurrent use, and the owners of one
// namespace's parts should share one.
type Table struct {
	// Repaired, if set, is called with the owner's prefixes after a Sync has restored what it had written before. It must
	// be set before the first Sync, and must not wait.
	Repaired func(prefix string)

	ns *netlinkx.Namespace // nil: the process's

	mu      sync.Mutex         // held for a whole Sync
	settled map[string]settled // by owner
	own     []uint32           // the last generations that this Table made
}

// settled is a part that was in the kernel in a generation.
type settled struct {
	part       Part
	generation uint32
}

// New returns the table of a network namespace, which must stay open as long as the table is used; nil means the
// process's. It touches nothing yet.
func New(ns *netlinkx.Namespace) *Table { return &Table{ns: ns, settled: map[string]settled{}} }

// Sync makes the chains, sets and rules of p's owner equal to p in one transaction, and reports whether it wrote. Only
// differences are written: if only elements differ, rules stay and keep their counters.
//
// The transaction names the generation that Sync has read, so that the kernel refuses it after any other transaction.
// If the generation is the same as after the last Sync of the same part, reading it is the only request.
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
			return false, socket{table: TableName}.explain(fmt.Errorf("write nftables table inet %s: %w", TableName, err))
		default:
			// The table may hold objects that reading does not show: write it anew.
			rebuild = true
		}
	}
	return false, fmt.Errorf("write nftables table inet %s: others changed nftables %d times meanwhile", TableName, attempts)
}

// attempt reads, compares and writes. The error is stale after another transaction. It has a socket of its own, as more
// answers may follow to a refused transaction.
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
	known := t.settled[p.owner()]
	same := reflect.DeepEqual(known.part, p)
	if known.generation == generation && !rebuild && same {
		return false, nil
	}
	have, err := t.look(s, p, generation, rebuild)
	if err != nil {
		return false, err
	}
	requests := plan(have, p, rebuild)
	undone := same // whether another program has undone a part of what was written before
	if !same && known.generation != 0 && known.generation != generation {
		undone = len(plan(have, known.part, false)) > 0
	}
	if len(requests) > 0 {
		if err := s.commit(generation, requests); err != nil {
			return false, err
		}
		generation = t.made(generation)
		if undone && t.Repaired != nil {
			t.Repaired(p.owner())
		}
	}
	t.settle(p, generation)
	return len(requests) > 0, nil
}

// look returns the content of p's owner in a generation. It reads the kernel unless the content is known from the last
// Sync and no rule changes: only the kernel knows the handles of rules.
func (t *Table) look(s socket, p Part, generation uint32, rebuild bool) (*content, error) {
	if known := t.settled[p.owner()]; known.generation == generation && !rebuild && !p.empty() && sameRules(known.part, p) {
		return contentOf(known.part), nil
	}
	have, err := s.read(p)
	// The answers may mix two generations, and an error may be about an object that was removed meanwhile.
	if now, genErr := s.generation(); genErr != nil || now != generation {
		return nil, fmt.Errorf("read: %w", cmp.Or(genErr, error(unix.ERESTART)))
	}
	return have, err
}

// made records that this Table made the generation after g, and returns it. Other parts that were settled in g are
// settled in the next.
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
		// The table is removed with its last owner.
		delete(t.settled, p.owner())
		return
	}
	t.settled[p.owner()] = settled{p, generation}
}

// Counter is the counter of a rule.
type Counter struct {
	Packets, Bytes uint64
}

// Counters returns the sums of the counters of rules with a comment, by comment, in chains with the prefix. A changed
// rule starts at zero.
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
			return Counter{nlmsg.Number64(nlmsg.Find(e.attrs, unix.NFTA_COUNTER_PACKETS)),
				nlmsg.Number64(nlmsg.Find(e.attrs, unix.NFTA_COUNTER_BYTES))}, true
		}
	}
	return Counter{}, false
}
