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
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/desired"
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
	known map[desired.Claim]record
	// wanted are the blocks to be read.
	wanted map[netip.Prefix]bool

	work    chan struct{} // of size 1: wanted is not empty
	changed chan struct{} // of size 1: known has changed
}

// record is what is known of a claim.
type record struct {
	desired.Verdict
	block netip.Prefix
	read  time.Time // zero: never
}

func newRecords(get blockGetter, log *slog.Logger) *records {
	return &records{
		get: get, log: log, known: map[desired.Claim]record{}, wanted: map[netip.Prefix]bool{},
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
func (r *records) verdicts() map[desired.Claim]desired.Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) == 0 {
		return nil
	}
	out := make(map[desired.Claim]desired.Verdict, len(r.known))
	for c, known := range r.known {
		out[c] = known.Verdict
	}
	return out
}

// want has the records of claims read that are new or old, and forgets those that are neither among them nor kept: what is
// announced once more is looked at once more.
func (r *records) want(now time.Time, claims map[desired.Claim]netip.Prefix, keep func(desired.Claim) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, known := range r.known {
		_, announced := claims[c]
		if !announced && (!known.Confirmed || !keep(c)) {
			delete(r.known, c)
			continue
		}
		if now.Sub(known.read) > known.age() || !announced && now.Sub(known.read) > heldAge {
			r.wanted[known.block] = true
		}
	}
	for c, block := range claims {
		if _, ok := r.known[c]; !ok && len(r.known) < mostClaims {
			r.known[c] = record{Verdict: desired.Verdict{Pending: true, Why: "its block's record is being read"}, block: block}
			r.wanted[block] = true
		}
	}
	if len(r.wanted) > 0 {
		wake(r.work)
	}
}

func (k record) age() time.Duration {
	switch {
	case k.Confirmed:
		return recordAge
	case k.Pending:
		return time.Second
	}
	return refusedAge
}

// trust takes claims that an earlier agent has verified, until their records have been read.
func (r *records) trust(claims map[desired.Claim]netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, block := range claims {
		r.known[c] = record{Verdict: desired.Verdict{Confirmed: true}, block: block}
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
		if v.Pending && known.Confirmed {
			v = known.Verdict // what was confirmed stands while the API server is away
		}
		news = news || v != known.Verdict
		r.known[c] = record{Verdict: v, block: block, read: time.Now()}
	}
	if news {
		wake(r.changed)
	}
}

// judgeRecord says what a block's record, or the error of reading it, makes of a claim.
func judgeRecord(c desired.Claim, block netip.Prefix, obj *api.IPAMBlock, err error) desired.Verdict {
	switch {
	case errors.Is(err, datastore.ErrNotFound), err == nil && obj.Spec.Deleted:
		return desired.Verdict{Why: fmt.Sprintf("there is no record of block %s", block)}
	case err != nil:
		return desired.Verdict{Pending: true, Why: fmt.Sprintf("the record of block %s cannot be read: %v", block, err)}
	}
	holders, ok := holdersOf(&obj.Spec, block, c.Addr)
	switch {
	case !ok:
		return desired.Verdict{Why: fmt.Sprintf("the record of block %s says that nobody has the address", block)}
	case c.Elsewhere && !slices.ContainsFunc(holders, func(node string) bool { return node != c.Node }):
		return desired.Verdict{Why: fmt.Sprintf("the record of block %s does not say that the address is in use on another node", block)}
	case c.Elsewhere:
		return desired.Verdict{Confirmed: true}
	case len(holders) == 0 || slices.Contains(holders, c.Node):
		return desired.Verdict{Confirmed: true} // records of old do not name the node
	}
	return desired.Verdict{Why: fmt.Sprintf("the record of block %s says that the address is in use on node %s, not on %s", block, strings.Join(holders, ", "), c.Node)}
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
