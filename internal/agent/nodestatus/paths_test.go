package nodestatus

import (
	"testing"
	"time"
)

func TestPathsText(t *testing.T) {
	now := time.Date(2026, 11, 29, 7, 35, 0, 0, time.UTC)
	missed := []MissedPath{{Node: "node2", Kind: "VXLAN", Since: now.Add(-42 * time.Second)}}
	for _, c := range []struct {
		paths *Paths
		want  string
	}{
		{nil, ""},
		{&Paths{}, ""},
		{&Paths{Up: 1}, "pods reach 1 node"},
		{&Paths{Up: 2, Unknown: 1}, "pods reach 2 nodes; 1 node not known yet"},
		{&Paths{Up: 1, Down: 1, Missed: missed}, "pods do not reach node2 (VXLAN) for 42s; pods reach 1 node"},
		{&Paths{Down: 3, Missed: missed}, "pods do not reach node2 (VXLAN) for 42s; nor 2 more"},
		{&Paths{Unprobed: 2, UnprobedReason: "it is far"}, "2 nodes cannot be probed: it is far"},
	} {
		r := Report{Time: now}
		if got := r.pathsText(c.paths); got != c.want {
			t.Errorf("%+v: %q, want %q", c.paths, got, c.want)
		}
	}
}
