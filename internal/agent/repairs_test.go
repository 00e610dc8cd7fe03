package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// TestRepairsAreTold: one Event a minute, with all that was repaired meanwhile and how often on this day, and lines in the log.
func TestRepairsAreTold(t *testing.T) {
	var log strings.Builder
	to := &told{}
	r := &repairs{to: to, node: "n", log: slog.New(slog.NewTextHandler(&log, nil))}
	now := time.Date(2026, 11, 29, 23, 50, 0, 0, time.UTC)
	forward := repair{"net.ipv4.ip_forward", "was 0, set to 1"}
	r.flush(now)
	r.add(now, forward)
	r.flush(now)
	for range 20 { // a program that undoes it at once
		r.add(now, forward)
		r.flush(now)
	}
	r.add(now, repair{"link vxlan.calico", "was missing, made again"})
	r.flush(now.Add(repairPause))
	r.flush(now.Add(2 * repairPause))
	now = now.Add(time.Hour)
	for i := range mostRepairs + 2 {
		r.add(now, repair{fmt.Sprint("thing ", i), "was so"})
	}
	r.flush(now)
	difftest.Want(t, "", []string{
		"Node n: Repaired: net.ipv4.ip_forward was 0, set to 1 (1st time today)",
		"Node n: Repaired: net.ipv4.ip_forward was 0, set to 1 (21st time today); link vxlan.calico was missing, made again (1st time today)",
		"Node n: Repaired: thing 0 was so (1st time today); thing 1 was so (1st time today); thing 2 was so (1st time today); thing 3 was so (1st time today); thing 4 was so (1st time today); 2 more",
	}, to.lines)
	if n := strings.Count(log.String(), "\n"); n != 10 {
		t.Errorf("%d lines in the log, want one for each thing of each Event:\n%s", n, log.String())
	}
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 111: "111th", 122: "122nd"} {
		if got := counted(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

// joined is all of them in words.
func joined(all []repair) string {
	var texts []string
	for _, r := range all {
		texts = append(texts, r.thing+" "+r.was)
	}
	return strings.Join(texts, "; ")
}

// What is made for the first time, or as the desired state has changed, is no repair.
func TestWhatIsARepair(t *testing.T) {
	known := parameters{}
	values := map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/conf/vxlan.calico/rp_filter": "2"}
	get := func(k sysctl.Key) (string, error) { return values[k.String()], nil }
	before := []hostsysctl.Difference{
		{Setting: hostsysctl.Setting{Key: sysctl.Key{"net", "ipv4", "ip_forward"}, Value: "1"}, Was: "0"},
		{Setting: hostsysctl.Setting{Key: sysctl.Key{"net", "ipv4", "conf", "vxlan.calico", "rp_filter"}, Value: "2"}, Was: "1"},
	}
	difftest.Want(t, "first", "", joined(repairedSysctls(known, before, get)))
	difftest.Want(t, "again", "net.ipv4.ip_forward was 0, set to 1; net.ipv4.conf.vxlan/calico.rp_filter was 1, set to 2", joined(repairedSysctls(known, before, get)))
	values["net/ipv4/ip_forward"] = "0" // it could not be set
	difftest.Want(t, "failed", "", joined(repairedSysctls(known, before[:1], get)))

	var stood desired.Standing
	stood[desired.VXLANTunnel] = true
	good := netlinkx.Link{Name: vxlan.Device4, Kind: "vxlan", Up: true}
	down, alien, moved := good, good, good
	down.Up, alien.Kind, moved.Peer = false, "dummy", netlinkx.PeerElsewhere
	for name, c := range map[string]struct {
		before desired.Standing
		links  []netlinkx.Link
		want   string
	}{
		"right":   {stood, []netlinkx.Link{good}, ""},
		"first":   {desired.Standing{}, nil, ""},
		"missing": {stood, nil, "link vxlan.calico was missing, made again"},
		"down":    {stood, []netlinkx.Link{down}, "link vxlan.calico was down or changed, set again"},
		"alien":   {stood, []netlinkx.Link{alien}, ""},
		"moved":   {stood, []netlinkx.Link{moved}, ""},
	} {
		difftest.Want(t, name, c.want, joined(repairedLinks(c.before, stood, c.links)))
	}
	difftest.Want(t, "not made", "", joined(repairedLinks(stood, desired.Standing{}, nil)))

	way := func(to string) []desired.DesiredRoute {
		return []desired.DesiredRoute{{Route: routes.Route{Dst: netip.MustParsePrefix(to), Hops: []routes.Hop{{Dev: "eth0"}}}}}
	}
	difftest.Want(t, "new", "", joined(repairedRoutes(nil, way("10.0.0.0/26"), 1)))
	difftest.Want(t, "another", "", joined(repairedRoutes(way("10.0.1.0/26"), way("10.0.0.0/26"), 1)))
	difftest.Want(t, "nothing written", "", joined(repairedRoutes(way("10.0.0.0/26"), way("10.0.0.0/26"), 0)))
	difftest.Want(t, "undone", "routes 1 of 1 were missing or changed, such as one to 10.0.0.0/26: written again", joined(repairedRoutes(way("10.0.0.0/26"), way("10.0.0.0/26"), 1)))
}
