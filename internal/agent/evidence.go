package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	// evidencePause is the least time between two readings.
	evidencePause = 100 * time.Millisecond
	// evidenceAge is how long a read object is used.
	evidenceAge = 5 * time.Minute
)

// inquiry is an object to read: the IPAMBlock, or the Node if block is not valid.
type inquiry struct {
	node  string
	block netip.Prefix
}

// evidence reads the objects that decide where nodes contradict each other. Without contradictions it reads nothing.
type evidence struct {
	get objectGetter

	mu     sync.Mutex
	found  map[inquiry]answer
	todo   fairQueue[inquiry]
	work   chan struct{} // of size 1: there is something to do
	change chan struct{} // of size 1: found has changed
}

// answer is the result of a read. Neither internal nor record: the object does not exist.
type answer struct {
	internal []netip.Addr
	record   desired.BlockRecord
	read     time.Time
}

func newEvidence(get objectGetter) *evidence {
	return &evidence{get: get, found: map[inquiry]answer{}, work: make(chan struct{}, 1), change: make(chan struct{}, 1)}
}

// want queues the objects that a snapshot needs for reading, old ones again, and forgets the others.
func (e *evidence) want(now time.Time, u desired.Unsure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := make(map[inquiry]bool, len(u.Nodes)+len(u.Blocks))
	for _, n := range u.Nodes {
		asked[inquiry{node: n}] = true
	}
	for _, b := range u.Blocks {
		asked[inquiry{b.Node, b.Block}] = true
	}
	maps.DeleteFunc(e.found, func(q inquiry, _ answer) bool { return !asked[q] })
	for q := range asked {
		if known, ok := e.found[q]; !ok || now.Sub(known.read) >= evidenceAge {
			e.todo.add(q.node, q)
		}
	}
	e.todo.forget(now)
	wait.Signal(e.work)
}

// known returns the results of earlier reads.
func (e *evidence) known(believed desired.Announcements) desired.Evidence {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := desired.Evidence{Known: believed, Internal: map[string][]netip.Addr{}, Blocks: map[netip.Prefix]desired.BlockRecord{}}
	for q, a := range e.found {
		switch {
		case !q.block.IsValid():
			ev.Internal[q.node] = a.internal
		case a.record.Node != "":
			ev.Blocks[q.block] = a.record
		}
	}
	return ev
}

// run reads until ctx ends.
func (e *evidence) run(ctx context.Context) error {
	return e.todo.serve(ctx, &e.mu, e.work, evidencePause, func(_ string, q inquiry) { e.read(ctx, q) })
}

// read reads one object. A failure keeps the earlier result, and is retried: a waiting node makes no other request
// until its cluster changes.
func (e *evidence) read(ctx context.Context, q inquiry) {
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	a, err := e.ask(ctx, q)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.todo.fail(time.Now(), q.node, q)
		return
	}
	e.todo.judge(time.Now(), q.node, !q.block.IsValid() || a.record.Node == q.node)
	before, known := e.found[q]
	e.found[q] = a
	if !known || !slices.Equal(before.internal, a.internal) || before.record != a.record {
		wait.Signal(e.change)
	}
}

func (e *evidence) ask(ctx context.Context, q inquiry) (a answer, err error) {
	a.read = time.Now()
	if !q.block.IsValid() {
		n := &api.Node{Meta: api.Meta{Name: q.node}}
		if err = e.get.Get(ctx, n); err == nil {
			a.internal = n.InternalIPs()
		}
	} else {
		b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(q.block)}}
		err = e.get.Get(ctx, b)
		if s := &b.Spec; err == nil && !s.Deleted && s.CIDR == q.block.String() && s.Affinity != nil &&
			*s.Affinity == names.HostAffinity(q.node) {
			a.record = desired.BlockRecord{Node: q.node, Created: b.CreationTimestamp}
		}
	}
	if errors.Is(err, datastore.ErrNotFound) {
		err = nil
	}
	return a, err
}
