package diagnose

import (
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
)

func TestPathFindings(t *testing.T) {
	now := time.Date(2026, 11, 29, 7, 35, 0, 0, time.UTC)
	with := func(p *nodestatus.Paths, age time.Duration) *Observations {
		return &Observations{Agent: &nodestatus.Report{Time: now, Started: now.Add(-age), Paths: p}}
	}
	missed := []nodestatus.MissedPath{{Node: "n2", Address: "10.0.0.2", Kind: "VXLAN", Since: now.Add(-40 * time.Second)}}
	both := with(&nodestatus.Paths{Up: 2}, time.Hour)
	both.Agent.Paths6 = &nodestatus.Paths{Down: 1,
		Missed: []nodestatus.MissedPath{{Node: "n2", Address: "fd00::2", Kind: "VXLAN", Since: now.Add(-40 * time.Second)}}}
	for name, c := range map[string]struct {
		o    *Observations
		want string
	}{
		"no agent":   {&Observations{}, ""},
		"not probed": {with(nil, time.Hour), ""},
		"up":         {with(&nodestatus.Paths{Up: 2}, time.Hour), "ok: 2 nodes forward probes of IPv4 back"},
		"both": {both, "ok: 2 nodes forward probes of IPv4 back\n" +
			"problem fd00::2 (n2): probes that it should forward back are lost (VXLAN) for 40s; they came back before"},
		"down": {with(&nodestatus.Paths{Up: 1, Down: 1, Missed: missed}, time.Hour),
			"problem 10.0.0.2 (n2): probes that it should forward back are lost (VXLAN) for 40s; they came back before\n" +
				"ok: 1 nodes forward probes of IPv4 back"},
		"young": {with(&nodestatus.Paths{Unknown: 2}, time.Second), ""},
		"never": {with(&nodestatus.Paths{Unknown: 2}, time.Hour), "unknown: 2 nodes have not forwarded a probe of IPv4 back yet"},
	} {
		var got []string
		for _, f := range c.o.paths() {
			got = append(got, strings.TrimSpace(string(f.Level)+" "+f.About)+": "+f.Seen)
			if f.Check != "peer-path" || (f.Do == "") != (f.Level == OK) {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if text := strings.Join(got, "\n"); text != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, text, c.want)
		}
	}
}
