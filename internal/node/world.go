package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kube"
)

const (
	// doubtTime is how long a World that suddenly has lost much is not believed: an API server that comes back with an empty or an
	// old datastore shows that the pods are gone, which run on.
	doubtTime = time.Minute
	// muchLost is how many objects of a kind have to be missing for that.
	muchLost = 10
)

// view is what the agent makes of the World: when it has changed, and not in each pass.
type view struct {
	world kube.World // the last one that was believed
	since time.Time  // since when a newer one is not
	// base is the snapshot of world without what the node finds by itself.
	base     Snapshot
	problems []error
	built    bool
	builds   uint64 // how often base was made
}

// update takes a new World.
func (v *view) update(now time.Time, self Self, w kube.World) {
	doubt := v.doubt(now, w)
	if doubt != nil {
		w = v.world
	}
	settings, problems := v.base.settings.next(w, !v.built)
	base, more := BuildSnapshot(self, w)
	felix, unclear := ParseFelix(w.Felix, v.base.Felix)
	announced, wrong := serviceConfig(v.base.services, &w.BGP, !v.built)
	base.settings, base.Felix, base.services, base.ServiceRanges = settings, felix, announced, announced.Ranges()
	v.world, v.base, v.built = w, base, true
	v.builds++
	v.problems = slices.Concat(problems, more, unclear, wrong)
	for _, p := range w.Problems {
		v.problems = append(v.problems, inObject(p.Kind, api.Meta{Name: p.Name}, cmp.Or(errors.Unwrap(p.Err), p.Err))) // which names it too
	}
	if doubt != nil {
		v.problems = append(v.problems, inSelf("ClusterShrank", doubt))
	}
}

// doubted reports that there is a newer World that is not believed.
func (v *view) doubted() bool { return !v.since.IsZero() }

// doubt says why a World is not believed yet; nil if it is.
func (v *view) doubt(now time.Time, w kube.World) error {
	doubt := lost(v.world, w)
	switch {
	case !v.built || doubt == nil:
		v.since = time.Time{}
		return nil
	case v.since.IsZero():
		v.since = now
	}
	if now.Sub(v.since) < doubtTime {
		return doubt
	}
	v.since = time.Time{}
	return nil
}

// lost says what a World has lost that clusters do not lose at once; nil if nothing.
func lost(before, after kube.World) error {
	for _, kind := range []struct {
		name          string
		before, after int
	}{
		{"Nodes", len(before.Nodes), len(after.Nodes)},
		{"BlockAffinities", len(before.Affinities), len(after.Affinities)},
	} {
		if gone := kind.before - kind.after; gone >= muchLost && gone > kind.before/2 {
			return fmt.Errorf("the API server shows %d %s where it showed %d: keeping what was known for %s, in case it came back with an old datastore",
				kind.after, kind.name, kind.before, doubtTime)
		}
	}
	if len(before.Pools) > 0 && len(after.Pools) == 0 && len(after.Affinities) > 0 {
		return fmt.Errorf("the API server shows no IPPools where it showed %d, and blocks in them: keeping what was known for %s", len(before.Pools), doubtTime)
	}
	return nil
}
