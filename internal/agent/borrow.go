package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	// recordPause is the least time between two readings of blocks: peers that claim addresses in thousands of blocks cost
	// the API server no more than that.
	recordPause = 50 * time.Millisecond
	// recordTime bounds one reading.
	recordTime = 5 * time.Second
	// recordAge is how long a confirmed record is valid while the claim stands.
	recordAge = 10 * time.Minute
	// refusedAge is the same for a refused claim: the claim may be older than the record.
	refusedAge = 30 * time.Second
	// heldAge is the same for a claim that BGP no longer announces, as there is no session with the node.
	heldAge = 30 * time.Second
	// mostOpen bounds the unconfirmed claims that are remembered per claimant. A node never has more by its pods, which
	// start one by one. mostConfirmed bounds the confirmed ones.
	mostOpen, mostConfirmed = 64, 1024
)

// objectGetter reads one object.
type objectGetter interface {
	Get(ctx context.Context, obj api.Resource) error
}

// records finds out which single addresses nodes have borrowed from others' blocks. It does not watch all blocks: they
// change with every pod of the cluster, and borrowing is rare. It reads each block in which a node claims an address
// once, and again when the claim is old. A claim comes from BGP, or from the kernel: an earlier agent has verified the
// claims behind its routes. A node with many claims, or refused ones, delays only its own.
type records struct {
	get objectGetter

	mu    sync.Mutex
	known map[desired.Claim]record
	// wanted are the blocks to read.
	wanted fairQueue[netip.Prefix]

	work    chan struct{} // of size 1: wanted is not empty
	changed chan struct{} // of size 1: known has changed
}

// record is the known state of a claim.
type record struct {
	desired.Verdict
	desired.Claimed
	read time.Time // zero: never
}

func newRecords(get objectGetter) *records {
	return &records{get: get, known: map[desired.Claim]record{}, work: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// verdicts returns the known verdicts. The map is the caller's.
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

// want queues the records of new and old claims for reading. It forgets known claims that are no longer made, unless
// they are confirmed and keep returns true: if announced again they are read again.
func (r *records) want(now time.Time, claims desired.Claims, keep func(desired.Claim) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	made := map[string]int{}
	for _, c := range claims {
		made[c.By]++
	}
	room := map[string]*[2]int{} // by claimant, for claims that are not confirmed and for those that are
	for c, known := range r.known {
		_, announced := claims[c]
		if !announced && (!known.Confirmed || !keep(c)) || announced && r.spent(now, known, made[known.By]) {
			delete(r.known, c)
			continue
		}
		if now.Sub(known.read) > known.age() || !announced && now.Sub(known.read) > heldAge {
			r.wanted.add(known.By, known.Block)
		}
		count(room, known)
	}
	for c, claimed := range claims {
		if _, ok := r.known[c]; ok {
			continue
		}
		fresh := record{Verdict: desired.Verdict{Pending: true, Why: "its block's record is being read"}, Claimed: claimed}
		if left := room[claimed.By]; left != nil && (left[0] >= mostOpen || left[1] >= mostConfirmed) {
			continue
		}
		r.known[c] = fresh
		count(room, fresh)
		r.wanted.add(claimed.By, claimed.Block)
	}
	r.wanted.forget(now)
	wait.Signal(r.work)
}

// spent reports whether a refused claim must make room, as its claimant makes more claims than are remembered.
func (r *records) spent(now time.Time, known record, made int) bool {
	return made > mostOpen && !known.Confirmed && !known.Pending && now.Sub(known.read) > refusedAge
}

func count(room map[string]*[2]int, known record) {
	n := room[known.By]
	if n == nil {
		n = new([2]int)
		room[known.By] = n
	}
	if known.Confirmed {
		n[1]++
	} else {
		n[0]++
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

// trust confirms claims that an earlier agent has verified, until their records have been read.
func (r *records) trust(claims desired.Claims) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, claimed := range claims {
		r.known[c] = record{Verdict: desired.Verdict{Confirmed: true}, Claimed: claimed}
	}
}

// run reads records until ctx ends.
func (r *records) run(ctx context.Context) error {
	return r.wanted.serve(ctx, &r.mu, r.work, recordPause, func(by string, block netip.Prefix) { r.settle(ctx, by, block) })
}

// settle reads one block for a claimant, and judges all claims in it.
func (r *records) settle(ctx context.Context, by string, block netip.Prefix) {
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	obj := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(block)}}
	err := r.get.Get(ctx, obj)
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, good := false, false
	for c, known := range r.known {
		if known.Block != block {
			continue
		}
		v := judgeRecord(c, block, obj, err)
		if v.Pending && known.Confirmed {
			v = known.Verdict // a confirmed claim stands while the API server is away
		}
		changed = changed || v != known.Verdict
		good = good || known.By == by && v.Confirmed
		known.Verdict, known.read = v, time.Now()
		r.known[c] = known
	}
	if err == nil || errors.Is(err, datastore.ErrNotFound) {
		r.wanted.judge(time.Now(), by, good)
	}
	if changed {
		wait.Signal(r.changed)
	}
}

// judgeRecord returns the verdict on a claim by a block's record, or by the error of reading it.
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
		return desired.Verdict{Why: fmt.Sprintf("the record of block %s does not assign the address", block)}
	case c.Elsewhere && !slices.ContainsFunc(holders, func(node string) bool { return node != c.Node }):
		return desired.Verdict{Why: fmt.Sprintf("the record of block %s does not say that the address is in use on another node", block)}
	case c.Elsewhere:
		return desired.Verdict{Confirmed: true}
	case len(holders) == 0: // as in old records: it may be any node's
		return desired.Verdict{Why: fmt.Sprintf("the record of block %s does not say on which node the address is in use", block)}
	case slices.Contains(holders, c.Node):
		return desired.Verdict{Confirmed: true}
	}
	return desired.Verdict{Why: fmt.Sprintf("the record of block %s says that the address is in use on node %s, not on %s", block,
		strings.Join(holders, ", "), c.Node)}
}

// holdersOf returns the nodes that hold an address by its block's record, two while a virtual machine moves; ok is
// false if the address is free.
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

// ordinal returns the index of an address in its block; -1 if it is outside, or the block is larger than any real one.
func ordinal(block netip.Prefix, a netip.Addr) int {
	const most = 16 // bits of place
	if !block.Contains(a) || a.BitLen()-block.Bits() > most {
		return -1
	}
	full, first := a.As16(), block.Addr().As16()
	return (int(full[14])<<8 | int(full[15])) - (int(first[14])<<8 | int(first[15]))
}
