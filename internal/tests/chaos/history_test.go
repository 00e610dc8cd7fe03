package chaos

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// kind is the effect of an operation on an address.
type kind int

const (
	assign  kind = iota // a handle is assigned the address
	release             // a handle releases all its addresses
	read                // an observer reads the holder
	end                 // end of the history
)

func (k kind) String() string { return [...]string{"assign", "release", "read", "end"}[k] }

// operation is one entry of a history: a process's request, or an observation.
type operation struct {
	kind   kind
	handle string
	addrs  []netip.Addr          // assigned addresses
	held   map[netip.Addr]string // holders seen by read; an address that is missing is free
	// unknown is set if the effect is unknown: it may have happened, happen later, or never happen.
	unknown           bool
	called, completed time.Duration
}

// history records operations of concurrent processes.
type history struct {
	start time.Time
	mu    sync.Mutex // guards ops
	ops   []operation
}

func newHistory() *history { return &history{start: time.Now()} }

func (h *history) now() time.Duration { return time.Since(h.start) }

// at returns the offset of t in the history, at least 0.
func (h *history) at(t time.Time) time.Duration { return max(t.Sub(h.start), 0) }

func (h *history) add(op operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// step is the effect of an operation on one address.
type step struct {
	kind    kind
	handle  string // of read: the holder; empty: free
	unknown bool
}

func (s step) String() string {
	text := s.kind.String() + " " + cmp.Or(s.handle, "free")
	if s.unknown {
		text += " (killed or failed)"
	}
	return text
}

// over is the state after the end, where operations of unknown effect are placed that never took effect.
const over = "the end"

// model is one address: free, or held by one handle. An assignment to its holder changes nothing (a repeated ADD), nor
// does a release by another handle. An operation of unknown effect takes effect, or is placed after the end.
var model = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		holder, s := state.(string), input.(step)
		switch {
		case holder == over:
			return s.unknown, over
		case s.kind == end:
			return true, over
		case s.kind == read:
			return holder == s.handle, holder
		case s.kind == assign && s.unknown:
			return holder == "", s.handle
		case s.kind == assign:
			return holder == "" || holder == s.handle, s.handle
		case holder == s.handle:
			return true, ""
		}
		return !s.unknown, holder
	},
	DescribeOperation: func(input, _ any) string { return input.(step).String() },
}

// checkTime limits the linearizability check of one address. It has a few hundred operations, almost in order.
const checkTime = time.Minute

// check returns a description of every address whose operations are not linearizable with one holder at a time.
func (h *history) check() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var wrong []string
	for addr, handles := range h.touched() {
		ops := h.of(addr, handles)
		if got := porcupine.CheckOperationsTimeout(model, ops, checkTime); got != porcupine.Ok {
			wrong = append(wrong, fmt.Sprintf("%s: %s:\n%s", addr, got, describe(ops)))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// touched returns, for each address, the handles that have verifiably held it.
func (h *history) touched() map[netip.Addr]map[string]bool {
	all := map[netip.Addr]map[string]bool{}
	note := func(a netip.Addr, handle string) {
		if all[a] == nil {
			all[a] = map[string]bool{}
		}
		all[a][handle] = true
	}
	for _, op := range h.ops {
		for _, a := range op.addrs {
			note(a, op.handle)
		}
		for a, handle := range op.held {
			note(a, handle)
		}
	}
	return all
}

// of returns the operations on one address. An assignment whose address is unknown may be of any address that its
// handle is seen to hold; if there is none it is left out.
func (h *history) of(addr netip.Addr, handles map[string]bool) []porcupine.Operation {
	var ops []porcupine.Operation
	var last time.Duration
	add := func(op operation, s step) {
		completed := int64(op.completed)
		if s.unknown {
			completed = math.MaxInt64
		}
		ops = append(ops, porcupine.Operation{Input: s, Call: int64(op.called), Return: completed})
	}
	for _, op := range h.ops {
		last = max(last, op.completed)
		s := step{op.kind, op.handle, op.unknown}
		switch {
		case op.kind == read:
			s.handle = op.held[addr]
			add(op, s)
		case op.kind == release && handles[op.handle],
			op.kind == assign && op.unknown && handles[op.handle],
			op.kind == assign && slices.Contains(op.addrs, addr):
			add(op, s)
		}
	}
	return append(ops, porcupine.Operation{Input: step{kind: end}, Call: int64(last) + 1, Return: int64(last) + 1})
}

// describe lists operations by start time. Of consecutive equal reads it lists the first.
func describe(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var out []string
	var seen string
	for _, op := range ops {
		s := op.Input.(step)
		if s.kind == read && s.String() == seen {
			continue
		}
		if s.kind == read {
			seen = s.String()
		}
		until := "?"
		if op.Return != math.MaxInt64 {
			until = time.Duration(op.Return).Round(time.Millisecond).String()
		}
		out = append(out, fmt.Sprintf("  %10v .. %-10s %s", time.Duration(op.Call).Round(time.Millisecond), until, s))
	}
	return strings.Join(out, "\n")
}

// The checker accepts linearizable histories and rejects others.
func TestChecker(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	op := func(k kind, handle string, from, to int, addrs ...netip.Addr) operation {
		return operation{kind: k, handle: handle, addrs: addrs, called: time.Duration(from), completed: time.Duration(to)}
	}
	unknown := func(k kind, handle string, from int) operation {
		return operation{kind: k, handle: handle, unknown: true, called: time.Duration(from), completed: time.Duration(from)}
	}
	saw := func(handle string, at int) operation {
		o := operation{kind: read, called: time.Duration(at), completed: time.Duration(at), held: map[netip.Addr]string{}}
		if handle != "" {
			o.held[a] = handle
		}
		return o
	}
	for _, c := range []struct {
		name  string
		ops   []operation
		wrong bool
	}{
		{name: "one after the other", ops: []operation{
			op(assign, "x", 1, 2, a), op(release, "x", 3, 4), op(assign, "y", 5, 6, a), op(release, "y", 7, 8)}},
		{name: "assigned while it is being released", ops: []operation{
			op(assign, "x", 1, 2, a), op(release, "x", 3, 9), op(assign, "y", 4, 6, a)}},
		{name: "repeated request", ops: []operation{op(assign, "x", 1, 2, a), op(assign, "x", 3, 4, a)}},
		{name: "two families", ops: []operation{op(assign, "x", 1, 2, a, b), op(release, "x", 3, 4), op(assign, "y", 5, 6, b)}},
		{name: "killed release, then assigned", ops: []operation{
			op(assign, "x", 1, 2, a), unknown(release, "x", 3), op(assign, "y", 5, 6, a), saw("y", 7)}},
		{name: "killed release without effect", ops: []operation{
			op(assign, "x", 1, 2, a), unknown(release, "x", 3), saw("x", 4), op(release, "x", 5, 6), saw("", 7)}},
		{name: "killed assignment that is seen", ops: []operation{
			unknown(assign, "x", 1), saw("", 2), saw("x", 3), op(release, "x", 4, 5), op(assign, "y", 6, 7, a)}},
		{name: "killed assignment that never is", ops: []operation{unknown(assign, "x", 1), op(assign, "y", 2, 3, a), saw("y", 4)}},

		{name: "assigned twice", wrong: true, ops: []operation{op(assign, "x", 1, 2, a), op(assign, "y", 3, 4, a)}},
		{name: "assigned twice, at the same time", wrong: true, ops: []operation{op(assign, "x", 1, 5, a), op(assign, "y", 2, 4, a)}},
		{name: "second family assigned twice", wrong: true, ops: []operation{op(assign, "x", 1, 2, a, b), op(assign, "y", 3, 4, b)}},
		{name: "assigned before it was released", wrong: true, ops: []operation{
			op(assign, "x", 1, 2, a), op(assign, "y", 3, 4, a), op(release, "x", 5, 6)}},
		{name: "killed release came too late", wrong: true, ops: []operation{
			op(assign, "x", 1, 2, a), op(assign, "y", 3, 4, a), unknown(release, "x", 5)}},
		{name: "released by another", wrong: true, ops: []operation{
			op(assign, "x", 1, 2, a), op(release, "y", 3, 4), op(assign, "y", 5, 6, a), saw("y", 7)}},
		{name: "assigned and lost", wrong: true, ops: []operation{op(assign, "x", 1, 2, a), saw("", 3)}},
		{name: "released and still held", wrong: true, ops: []operation{op(assign, "x", 1, 2, a), op(release, "x", 3, 4), saw("x", 5)}},
		{name: "killed assignment over a live one", wrong: true, ops: []operation{
			op(assign, "y", 1, 2, a), unknown(assign, "x", 3), saw("x", 4), saw("y", 5)}},
		{name: "held by a handle without an assignment", wrong: true, ops: []operation{saw("x", 1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &history{ops: c.ops}
			if wrong := h.check(); len(wrong) > 0 != c.wrong {
				t.Errorf("violations: %q", wrong)
			}
		})
	}
}
