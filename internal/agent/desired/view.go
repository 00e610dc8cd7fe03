package desired

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

const (
	// shrinkTime is how long a state in which most objects are missing is held back: an API server with an empty or old
	// datastore lacks the objects of pods that still run.
	shrinkTime = time.Minute
	// muchLost is the least number of missing objects of a kind for that.
	muchLost = 10
)

// View is what the agent derives from the state of the cluster, once per change rather than per pass.
type View struct {
	Cluster state.Cluster // the state in use
	guard   shrinkGuard   // holds back a newer state
	// Base is the snapshot without the facts that the node finds by itself.
	Base     Snapshot
	Problems []error
	Built    bool
	// Evidence decides between nodes that contradict each other.
	Evidence Evidence
}

// Shrunk reports whether a newer state is held back.
func (v *View) Shrunk() bool { return v.guard.on() }

// Update takes up a new state of the cluster.
func (v *View) Update(now time.Time, self Self, w state.Cluster) {
	var why error
	if v.Built {
		why = lost(v.Cluster, w)
	}
	doubt := v.guard.about(now, why)
	if doubt != nil {
		w = v.Cluster
	}
	settings, problems := v.Base.settings.next(w, !v.Built)
	if v.Evidence.before = nil; v.Built {
		before := v.Base
		v.Evidence.before = &before
	}
	base, more := build(self, w, v.Evidence)
	v.Evidence.before = nil
	felix, unclear := ParseFelix(w.Felix, v.Base.Felix)
	announced, wrong := serviceConfig(v.Base.served, &w.BGP, !v.Built)
	base.settings, base.Felix, base.served, base.ServiceRanges = settings, felix, announced, announced.Ranges()
	base.build = v.Base.build + 1
	v.Cluster, v.Base, v.Built = w, base, true
	v.Problems = slices.Concat(problems, more, unclear, wrong, ProblemsOf(doubt))
	for _, p := range w.Problems { // Err names the object, as InObject does
		v.Problems = append(v.Problems, InObject(p.Kind, api.Meta{Name: p.Name}, cmp.Or(errors.Unwrap(p.Err), p.Err)))
	}
}

// shrinkGuard holds back a state in which most objects are gone at once, for shrinkTime or until a fuller one comes.
type shrinkGuard struct{ since time.Time }

// on reports whether a newer state is held back.
func (d *shrinkGuard) on() bool { return !d.since.IsZero() }

// about returns why a state is held back; nil if it is used.
func (d *shrinkGuard) about(now time.Time, why error) error {
	switch {
	case why == nil:
		d.since = time.Time{}
		return nil
	case d.since.IsZero():
		d.since = now
	}
	if now.Sub(d.since) < shrinkTime {
		return InSelf("ClusterShrank", why)
	}
	d.since = time.Time{}
	return nil
}

// lost returns an error if a newer state lacks more objects than a cluster loses at once; else nil.
func lost(before, after state.Cluster) error {
	err := shrunk(count{"Nodes", len(before.Nodes), len(after.Nodes)}, count{"BlockAffinities", len(before.Affinities), len(after.Affinities)})
	if err == nil && len(before.Pools) > 0 && len(after.Pools) == 0 && len(after.Affinities) > 0 {
		err = fmt.Errorf("the API server shows no IPPools where it showed %d, and blocks in them: keeping what was known for %s",
			len(before.Pools), shrinkTime)
	}
	return err
}

// count is the number of objects of a kind before and after.
type count struct {
	kind          string
	before, after int
}

// shrunk returns an error about the first kind of which most objects are missing; nil for none.
func shrunk(counts ...count) error {
	for _, c := range counts {
		if gone := c.before - c.after; gone >= muchLost && gone > c.before/2 {
			return fmt.Errorf(
				"the API server shows %d %s where it showed %d: keeping what was known for %s, in case it came back with an old datastore",
				c.after, c.kind, c.before, shrinkTime)
		}
	}
	return nil
}
