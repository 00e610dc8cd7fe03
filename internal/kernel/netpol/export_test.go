package netpol

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// Silence is what the engine does where the kernel cannot log.
func (e *Engine) Silence(size uint32) {
	e.size = size
	e.silence()
}

// Touched reports whether another program may have changed the table since the last Sync or call. Events wakes for
// nothing else.
func (e *Engine) Touched(ctx context.Context) (bool, error) { return e.table.Touched(ctx) }

// StepByStep is a Sync in transactions of so many elements, with a call of look after each. The state before must be
// known.
func (e *Engine) StepByStep(ctx context.Context, rs *policy.Ruleset, portion int, look func()) error {
	e.portion = portion
	want, used := e.image(rs, map[programKey]error{})
	for c := range e.plan(e.have, want) {
		if err := e.commit(ctx, c, &Stats{}); err != nil {
			return err
		}
		look()
	}
	e.settle(want, used)
	return nil
}

// Age makes held links older.
func (e *Engine) Age(d time.Duration) {
	for link, h := range e.held {
		e.held[link] = held{h.comment, h.since.Add(-d)}
	}
}

// Renounce is what the engine does when the kernel has refused an expression.
func (e *Engine) Renounce(expression string) error {
	return e.renounce(&nft.Refused{Object: "deny", Expression: expression, Err: unix.ENOENT})
}

// Everything returns the Ruleset of Probe.
func Everything() *policy.Ruleset { return everything() }

// ProbeBy is a Probe of a kernel that answers so.
func (e *Engine) ProbeBy(check func(*nft.Change) error) error { return e.probe(e.table, check) }

// ReplaceBetween is handBack for a pod's link, with a call of between when each element has been read.
func ReplaceBetween(link, uid string, between func() error) error {
	t := nft.NewOwned(nil, TableName)
	defer t.Close()
	_, err := replaceLinks(t, link, func(e nft.Element) (nft.Element, bool, error) {
		ours := e.Comment == closedFor(uid)
		e.Comment = givenBack
		return e, ours, between()
	})
	return err
}
