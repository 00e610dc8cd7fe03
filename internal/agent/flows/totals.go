package flows

import (
	"github.com/tortie-net/tortie/internal/policy"
)

// Total names a counter of connections.
type Total struct {
	policy.Direction
	Allow bool
	// By is the deciding policy, or with Staged the staged policy; Others if there is no room for more policies.
	By policy.ID
	// Staged: Pending is the verdict with all staged policies in force.
	Staged, Pending bool
}

// Others stands for policies that have no counters of their own.
var Others = policy.ID{Kind: "others"}

// Lost counts losses.
type Lost struct {
	// Overruns is how often the kernel had no room for events. Crowded counts connections added up by direction, verdict
	// and protocol only. Unwritten counts records that could not be written to the file.
	Overruns, Crowded, Unwritten uint64
}

// totals are counters since the start, at most mostTotals and a few for Others.
type totals map[Total]*uint64

func (t totals) add(l *label) {
	if l.totals == nil {
		l.totals = append(l.totals, t.one(Total{Direction: l.Direction, Allow: l.Allow, By: l.Enforced.Policy}))
		if l.staged.Name != "" {
			l.totals = append(l.totals, t.one(Total{Direction: l.Direction, Allow: l.Allow, By: l.staged, Staged: true, Pending: l.Pending.Allow}))
		}
	}
	for _, n := range l.totals {
		*n++
	}
}

func (t totals) one(by Total) *uint64 {
	if _, known := t[by]; !known && len(t) >= mostTotals {
		by.By = Others
	}
	if t[by] == nil {
		t[by] = new(uint64)
	}
	return t[by]
}

// Totals returns all counters.
func (r *Recorder) Totals() map[Total]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[Total]uint64, len(r.totals))
	for by, n := range r.totals {
		all[by] = *n
	}
	return all
}

// Lost returns the losses since the start.
func (r *Recorder) Lost() Lost {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}
