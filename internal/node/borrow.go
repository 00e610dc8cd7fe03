package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/names"
)

const (
	// recordPause is the least time between two readings of blocks: a peer that claims addresses in thousands of blocks costs the
	// API server this and no more.
	recordPause = 50 * time.Millisecond
	// recordTime bounds one reading.
	recordTime = 5 * time.Second
	// recordAge is how long a record is believed without being read again, as long as the claim stands.
	recordAge = 10 * time.Minute
	// refusedAge is the same for a claim that was refused: it may have come before the record.
	refusedAge = 30 * time.Second
	// heldAge is the same for one that BGP says nothing of, as there is no session with the node.
	heldAge = 30 * time.Second
	// mostClaims bounds what is remembered.
	mostClaims = 4096
)

// blockGetter reads one IPAMBlock.
type blockGetter interface {
	Get(ctx context.Context, obj api.Resource) error
}

// records finds out which single addresses nodes have borrowed from others' blocks. Watching all blocks would tell, but they
// change with every pod of the cluster; borrowing is rare. So each block in which somebody claims an address is read once, and again
// when the claim is old. A claim is learned from BGP, or from the kernel: a route of an earlier agent is a claim that it has
// verified.
type records struct {
	get blockGetter
	log *slog.Logger

	mu    sync.Mutex
	known map[claim]record
	// wanted are the blocks to be read.
	wanted map[netip.Prefix]bool

	work    chan struct{} // of size 1: wanted is not empty
	changed chan struct{} // of size 1: known has changed
}

// record is what is known of a claim.
type record struct {
	verdict
	block netip.Prefix
	read  time.Time // zero: never
}

func newRecords(get blockGetter, log *slog.Logger) *records {
	return &records{
		get: get, log: log, known: map[claim]record{}, wanted: map[netip.Prefix]bool{},
		work: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
}

// wake makes a channel of size 1 readable.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// verdicts returns what is known. The map is the caller's.
func (r *records) verdicts() map[claim]verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) == 0 {
		return nil
	}
	out := make(map[claim]verdict, len(r.known))
	for c, known := range r.known {
		out[c] = known.verdict
	}
	return out
}

// want has the records of claims read that are new or old, and forgets those that are neither among them nor kept: what is
// announced once more is looked at once more.
func (r *records) want(now time.Time, claims map[claim]netip.Prefix, keep func(claim) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, known := range r.known {
		_, announced := claims[c]
		if !announced && (!known.confirmed || !keep(c)) {
			delete(r.known, c)
			continue
		}
		if now.Sub(known.read) > known.age() || !announced && now.Sub(known.read) > heldAge {
			r.wanted[known.block] = true
		}
	}
	for c, block := range claims {
		if _, ok := r.known[c]; !ok && len(r.known) < mostClaims {
			r.known[c] = record{verdict: verdict{pending: true, why: "its block's record is being read"}, block: block}
			r.wanted[block] = true
		}
	}
	if len(r.wanted) > 0 {
		wake(r.work)
	}
}

func (k record) age() time.Duration {
	switch {
	case k.confirmed:
		return recordAge
	case k.pending:
		return time.Second
	}
	return refusedAge
}

// trust takes claims that an earlier agent has verified, until their records have been read.
func (r *records) trust(claims map[claim]netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, block := range claims {
		r.known[c] = record{verdict: verdict{confirmed: true}, block: block}
	}
}

// run reads records until ctx ends.
func (r *records) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.work:
		}
		for block := range r.take() {
			r.settle(ctx, block)
			sleep(ctx, recordPause)
		}
	}
}

func (r *records) take() map[netip.Prefix]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := r.wanted
	r.wanted = map[netip.Prefix]bool{}
	return wanted
}

// settle reads one block and judges all claims in it.
func (r *records) settle(ctx context.Context, block netip.Prefix) {
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	obj := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(block)}}
	err := r.get.Get(ctx, obj)
	r.mu.Lock()
	defer r.mu.Unlock()
	news := false
	for c, known := range r.known {
		if known.block != block {
			continue
		}
		v := judgeRecord(c, block, obj, err)
		if v.pending && known.confirmed {
			v = known.verdict // what was confirmed stands while the API server is away
		}
		news = news || v != known.verdict
		r.known[c] = record{verdict: v, block: block, read: time.Now()}
	}
	if news {
		wake(r.changed)
	}
}

// judgeRecord says what a block's record, or the error of reading it, makes of a claim.
func judgeRecord(c claim, block netip.Prefix, obj *api.IPAMBlock, err error) verdict {
	switch {
	case errors.Is(err, datastore.ErrNotFound), err == nil && obj.Spec.Deleted:
		return verdict{why: fmt.Sprintf("there is no record of block %s", block)}
	case err != nil:
		return verdict{pending: true, why: fmt.Sprintf("the record of block %s cannot be read: %v", block, err)}
	}
	holders, ok := holdersOf(&obj.Spec, block, c.addr)
	switch {
	case !ok:
		return verdict{why: fmt.Sprintf("the record of block %s says that nobody has the address", block)}
	case c.elsewhere && !slices.ContainsFunc(holders, func(node string) bool { return node != c.node }):
		return verdict{why: fmt.Sprintf("the record of block %s does not say that the address is in use on another node", block)}
	case c.elsewhere:
		return verdict{confirmed: true}
	case len(holders) == 0 || slices.Contains(holders, c.node):
		return verdict{confirmed: true} // records of old do not name the node
	}
	return verdict{why: fmt.Sprintf("the record of block %s says that the address is in use on node %s, not on %s", block, strings.Join(holders, ", "), c.node)}
}

// holdersOf returns the nodes that hold an address by its block's record, two while a virtual machine moves; ok is false if the
// address is free.
func holdersOf(spec *api.IPAMBlockSpec, block netip.Prefix, a netip.Addr) (nodes []string, ok bool) {
	i := ordinal(block, a)
	if i < 0 || i >= len(spec.Allocations) || spec.Allocations[i] == nil {
		return nil, false
	}
	at := *spec.Allocations[i]
	if at < 0 || at >= len(spec.Attributes) || spec.Attributes[at].ReleasedAt != "" {
		return nil, false
	}
	for _, attrs := range []map[string]string{spec.Attributes[at].Secondary, spec.Attributes[at].AlternateOwnerAttrs} {
		if node := attrs["node"]; node != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes, true
}

// ordinal is an address's place in its block, -1 if it is outside or the block is larger than any there is.
func ordinal(block netip.Prefix, a netip.Addr) int {
	const most = 16 // bits of place
	if !block.Contains(a) || a.BitLen()-block.Bits() > most {
		return -1
	}
	full, first := a.As16(), block.Addr().As16()
	return (int(full[14])<<8 | int(full[15])) - (int(first[14])<<8 | int(first[15]))
}

// claims returns the claims that paths make, with the block of each.
func (s *Snapshot) claims(paths []bgp.Path) map[claim]netip.Prefix {
	claims := map[claim]netip.Prefix{}
	for _, p := range paths {
		if c, block, ok := s.claimOf(p.Prefix, p.NextHop); ok {
			claims[c] = block
		}
	}
	return claims
}

// claimOf returns the claim that a path is, if it is one.
func (s *Snapshot) claimOf(p netip.Prefix, hop netip.Addr) (c claim, block netip.Prefix, ok bool) {
	if !p.IsSingleIP() {
		return claim{}, netip.Prefix{}, false
	}
	pool, inPool := s.poolOf(p)
	m, isNode := s.memberAt(hop)
	if !inPool || s.hasPod(p.Addr()) {
		return claim{}, netip.Prefix{}, false
	}
	block, owner, owned := s.blockOf(p)
	if !isNode {
		ours := owned && owner.Node == s.Self.Name && block != p && !pool.encapsulates()
		return claim{p.Addr(), s.Self.Name, true}, block, ours
	}
	if owned && owner.Node == m.Name || !owned && p.Bits() == pool.BlockBits {
		return claim{}, netip.Prefix{}, false
	}
	if !owned {
		block = netip.PrefixFrom(p.Addr(), pool.BlockBits).Masked()
	}
	return claim{addr: p.Addr(), node: m.Name}, block, true
}

// sessionless returns the confirmed claims of nodes that there is no session with.
func sessionless(verdicts map[claim]verdict, down func(claim) bool) []claim {
	var held []claim
	for c, v := range verdicts {
		if v.confirmed && down(c) {
			held = append(held, c)
		}
	}
	slices.SortFunc(held, func(a, b claim) int {
		if d := a.addr.Compare(b.addr); d != 0 {
			return d
		}
		return strings.Compare(a.node, b.node)
	})
	return held
}
