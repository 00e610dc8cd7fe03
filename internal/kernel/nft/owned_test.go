package nft

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// TestMissingExpression: an error names the expression that the kernel does not have, and the remedy.
func TestMissingExpression(t *testing.T) {
	ns := netnstest.New(t)
	table := NewOwned(ns.Namespace, "test")
	defer table.Close()
	chain := Chain{Name: "chain", Rules: []Rule{NewRule("", L4Proto.Is("\x06"), Count(), Term{{name: "tarpit"}}, Do(Drop))}}
	c := table.Change()
	c.MakeTable(false)
	c.MakeChain(chain)
	c.AddRules(chain)
	for _, send := range []func(context.Context, *Change) error{table.Check, table.Commit} {
		err := send(t.Context(), c)
		var refused *Refused
		if !errors.As(err, &refused) || refused.Object != "chain" || refused.Expression != "tarpit" || !errors.Is(err, unix.ENOENT) {
			t.Fatalf("got %+v, want one about tarpit in chain", err)
		}
		difftest.Contains(t, err.Error(), "chain", "nft_tarpit", "CONFIG_NFT_TARPIT")
		if exists, err := table.Exists(t.Context()); exists || err != nil {
			t.Errorf("there is a table: %v, %v", exists, err)
		}
	}
}

// TestCheck: a checked change is not made.
func TestCheck(t *testing.T) {
	ns := netnstest.New(t)
	table := NewOwned(ns.Namespace, "test")
	defer table.Close()
	c := table.Change()
	c.MakeTable(true)
	chain := Chain{Name: "chain", Hook: &Hook{Type: Filter, Number: Input}, Rules: []Rule{NewRule("", Count(), Do(Drop))}}
	c.MakeChain(chain)
	c.AddRules(chain)
	for range 2 {
		errtest.Must(t, table.Check(t.Context(), c))
		if text := ns.Run(t, "nft", "list", "ruleset"); text != "" {
			t.Errorf("it was done: %s", text)
		}
	}
	if err := table.Commit(t.Context(), c); err != nil {
		t.Errorf("and then done: %v", err)
	}
}

// TestCommitWithoutEvents: if the events of another program's transaction are lost, nothing overwrites it.
func TestCommitWithoutEvents(t *testing.T) {
	ns := netnstest.New(t)
	table := NewOwned(ns.Namespace, "test")
	defer table.Close()
	ns.Run(t, "nft", "add table inet other")
	s, err := table.dial(t.Context())
	errtest.Must(t, err)
	generation, err := s.generation()
	errtest.Must(t, err)
	table.generation.Store(generation)
	ns.Run(t, "nft", "add table inet test")
	c := table.Change()
	c.RemoveTable()
	if err := table.Commit(t.Context(), c); !errors.Is(err, ErrChanged) {
		t.Errorf("got %v, want %v", err, ErrChanged)
	}
	if exists, err := table.Exists(t.Context()); !exists || err != nil {
		t.Errorf("the other one's table is there: %v, %v", exists, err)
	}
}

// TestOwnedEvents: Touched reports others' changes only, also after the socket for transactions was opened anew.
func TestOwnedEvents(t *testing.T) {
	ns := netnstest.New(t)
	table := NewOwned(ns.Namespace, "test")
	defer table.Close()
	touched := func(when string, want bool) {
		t.Helper()
		if got, err := table.Touched(t.Context()); got != want || err != nil {
			t.Errorf("%s: touched %v, %v, want %v", when, got, err, want)
		}
	}
	commit := func(of func(*Change)) {
		t.Helper()
		c := table.Change()
		of(c)
		errtest.Must(t, table.Commit(t.Context(), c))
	}
	touched("at first", true)
	commit(func(c *Change) { c.MakeTable(true) })
	touched("by itself", false)
	table.hangUp()
	commit(func(c *Change) { c.MakeChain(Chain{Name: "chain"}) })
	touched("by itself on another socket", false)
	ns.Run(t, "nft", "add table inet other; add table ip test")
	touched("by another elsewhere", false)
	ns.Run(t, "nft", "add chain inet test other")
	touched("by another", true)
	touched("once", false)
}
