package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
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

// Refusals keeps account of the prefixes of one direction of a session that are refused. Its memory is bounded: what is beyond
// counts in Total alone, reasons under otherReasons. Its zero value is ready, and its methods may be called from any goroutine.
type Refusals struct {
	mu      sync.Mutex // guards the rest
	reasons []Refusal
	of      map[netip.Prefix]int // index of the reason
}

// Bounds. A peer has few reasons, as rules have: those of the operator's filters may be more.
const (
	maxReasons      = 64
	maxRefused      = 1 << 14
	otherReasons    = "other reasons"
	reasonsAndOther = maxReasons + 1
)

// Note says what became of a prefix: refused for a reason or, with an empty one, not, or no longer.
func (r *Refusals) Note(prefix netip.Prefix, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, known := r.of[prefix]
	if known {
		r.reasons[i].Prefixes--
		delete(r.of, prefix)
	}
	if reason == "" {
		return
	}
	i = r.index(reason)
	r.reasons[i].Total++
	r.reasons[i].Last = prefix
	if len(r.of) >= maxRefused {
		return
	}
	if r.of == nil {
		r.of = make(map[netip.Prefix]int)
	}
	r.of[prefix] = i
	r.reasons[i].Prefixes++
}

// index returns where a reason is counted. The mutex is held by the caller.
func (r *Refusals) index(reason string) int {
	if i := slices.IndexFunc(r.reasons, func(n Refusal) bool { return n.Reason == reason }); i >= 0 {
		return i
	}
	if len(r.reasons) >= maxReasons {
		if len(r.reasons) == reasonsAndOther {
			return maxReasons
		}
		reason = otherReasons
	}
	r.reasons = append(r.reasons, Refusal{Reason: reason})
	return len(r.reasons) - 1
}

// Reset forgets the prefixes: the session is over. Totals stay.
func (r *Refusals) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of = nil
	for i := range r.reasons {
		r.reasons[i].Prefixes = 0
	}
}

// List returns the reasons, those with the most prefixes first.
func (r *Refusals) List() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.Clone(r.reasons)
	slices.SortFunc(list, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(b.Prefixes, a.Prefixes), cmp.Compare(b.Total, a.Total), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}
