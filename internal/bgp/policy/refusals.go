package policy

import (
	"net/netip"
)

// Refusal says how many prefixes of a session are refused for one reason.
type Refusal struct {
	Reason string
	// Prefixes is how many are refused now, Total how often one was.
	Prefixes int
	Total    uint64
	// Last is the one that was refused last.
	Last netip.Prefix
}

// Refusals keeps account of the prefixes of one direction of a session that are refused. Its memory is bounded. Its methods
// may be called from any goroutine.
type Refusals struct{}

// Note says what became of a prefix: refused for a reason or, with an empty one, not, or no longer.
func (r *Refusals) Note(prefix netip.Prefix, reason string) {} // TODO(policy): being written

// Reset forgets the prefixes: the session is over. Totals stay.
func (r *Refusals) Reset() {} // TODO(policy): being written

// List returns the reasons, those with the most prefixes first.
func (r *Refusals) List() []Refusal { return nil } // TODO(policy): being written
