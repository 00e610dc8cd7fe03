package desired

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

func worldOf(nodes, affinities, pools int) state.Cluster {
	var w state.Cluster
	for i := range nodes {
		w.Nodes = append(w.Nodes, api.Node{
			Meta: api.Meta{Name: fmt.Sprintf("n%d", i), Annotations: map[string]string{api.AnnotationIPv4Address: fmt.Sprintf("10.0.0.%d/24", i+1)}},
		})
	}
	for i := range affinities {
		w.Affinities = append(w.Affinities, api.BlockAffinity{
			Meta: api.Meta{Name: fmt.Sprint(i)},
			Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: fmt.Sprintf("n%d", i%max(1, nodes)),
				CIDR: fmt.Sprintf("192.168.%d.0/26", i)},
		})
	}
	for i := range pools {
		w.Pools = append(w.Pools,
			api.IPPool{Meta: api.Meta{Name: fmt.Sprint(i)}, Spec: api.IPPoolSpec{CIDR: fmt.Sprintf("192.%d.0.0/16", 168+i)}})
	}
	return w
}

// An API server that comes back with an old or empty datastore must not take the routes to pods that run on.
func TestAWorldThatLostMuchIsDoubted(t *testing.T) {
	full := worldOf(30, 60, 1)
	for name, tc := range map[string]struct {
		after state.Cluster
		doubt string // part of the problem; empty: believed at once
	}{
		"no affinities":            {worldOf(30, 0, 1), "shows 0 BlockAffinities where it showed 60"},
		"no nodes but this":        {worldOf(1, 60, 1), "shows 1 Nodes where it showed 30"},
		"no pools":                 {worldOf(30, 60, 0), "shows no IPPools"},
		"a datastore of last year": {worldOf(10, 20, 1), "shows 10 Nodes"},
		"a rack less":              {worldOf(20, 40, 1), ""},
		"a node less":              {worldOf(29, 58, 1), ""},
		"nothing is used any more": {worldOf(30, 55, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var v View
			start := time.Unix(1e9, 0)
			self := Self{Name: "n0"}
			v.Update(start, self, full)
			if len(v.Base.Others) != 29 || len(v.Base.Owners) == 0 {
				t.Fatalf("%d nodes, %d blocks of others", len(v.Base.Others), len(v.Base.Owners))
			}
			before := v.Base
			v.Update(start.Add(time.Hour), self, tc.after)
			text := strings.Join(texts(v.Problems), "\n")
			if tc.doubt == "" {
				if len(v.Base.Others) != len(tc.after.Nodes)-1 || text != "" {
					t.Errorf("not believed: %s", text)
				}
				return
			}
			if !strings.Contains(text, tc.doubt) || len(v.Base.Owners) != len(before.Owners) || len(v.Base.Others) != len(before.Others) {
				t.Errorf("believed at once, or nothing said: %s", text)
			}
			v.Update(start.Add(time.Hour+shrinkTime-time.Second), self, tc.after)
			if len(v.Base.Owners) != len(before.Owners) {
				t.Error("believed too early")
			}
			v.Update(start.Add(time.Hour+shrinkTime), self, tc.after)
			if got, want := len(v.Cluster.Affinities), len(tc.after.Affinities); got != want || len(v.Problems) > 0 {
				t.Errorf("after %s: %d affinities, want %d; %v", shrinkTime, got, want, v.Problems)
			}
		})
	}
}

// The objects come back: nothing has happened.
func TestADoubtThatWasRight(t *testing.T) {
	var v View
	start, self := time.Unix(1e9, 0), Self{Name: "n0"}
	v.Update(start, self, worldOf(30, 60, 1))
	v.Update(start.Add(time.Second), self, worldOf(30, 0, 1))
	v.Update(start.Add(2*time.Second), self, worldOf(30, 60, 1))
	if len(v.Problems) > 0 || v.guard.on() {
		t.Errorf("%v, doubted since %s", v.Problems, v.guard.since)
	}
	v.Update(start.Add(3*time.Second), self, worldOf(30, 0, 1))
	v.Update(start.Add(shrinkTime+2*time.Second), self, worldOf(30, 0, 1))
	if len(v.Base.Owners) == 0 {
		t.Error("the second loss was believed by the first one's time")
	}
}
