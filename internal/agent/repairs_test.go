package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// TestRepairsAreTold: there is one Event a minute, with all repairs since and their counts of this day, and lines in
// the log.
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
		"Node n: Repaired: thing 0 was so (1st time today); thing 1 was so (1st time today); thing 2 was so (1st time today); thing 3 was so " +
			"(1st time today); thing 4 was so (1st time today); 2 more",
	}, to.lines)
	if n := strings.Count(log.String(), "\n"); n != 10 {
		t.Errorf("%d lines in the log, want one for each thing of each Event:\n%s", n, log.String())
	}
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st",
		111: "111th", 122: "122nd"} {
		if got := counted(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

// TestRepairsWhileTheAPIServerIsAway: repairs in an Event that is not written yet are reported again, with new ones.
func TestRepairsWhileTheAPIServerIsAway(t *testing.T) {
	to := &told{away: true}
	r := &repairs{to: to, node: "n", log: slog.New(slog.DiscardHandler)}
	now := time.Date(2026, 11, 29, 23, 59, 0, 0, time.UTC)
	for _, d := range []repair{{"routes", "were gone"}, {"link tunl0", "was down"}, {"routes", "were changed"},
		{"link tunl0", "was missing"}} {
		r.add(now, d)
		r.flush(now)
		now = now.Add(repairPause)
		r.flush(now)
	}
	to.away = false
	r.add(now, repair{"routes", "were gone"})
	r.flush(now)
	difftest.Want(t, "", []string{
		"Node n: Repaired: routes were gone (1st time today)",
		"Node n: Repaired: routes were gone (1st time today); link tunl0 was down (1st time today)",
		"Node n: Repaired: routes were changed (1st time today); link tunl0 was down (1st time today)",
		"Node n: Repaired: routes were changed (1st time today); link tunl0 was missing (2nd time today)",
		"Node n: Repaired: routes were gone (2nd time today)",
	}, to.lines)
}

// joined returns all repairs as one text.
func joined(all []repair) string {
	var texts []string
	for _, r := range all {
		texts = append(texts, r.thing+" "+r.was)
	}
	return strings.Join(texts, "; ")
}

// A first creation, or a change of the desired state, is no repair.
func TestWhatIsARepair(t *testing.T) {
	known := parameters{}
	values := map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/conf/vxlan.calico/rp_filter": "2"}
	get := func(k sysctl.Key) (string, error) { return values[k.String()], nil }
	before := []hostsysctl.Difference{
		{Setting: hostsysctl.Setting{Key: sysctl.Key{"net", "ipv4", "ip_forward"}, Value: "1"}, Was: "0"},
		{Setting: hostsysctl.Setting{Key: sysctl.Key{"net", "ipv4", "conf", "vxlan.calico", "rp_filter"}, Value: "2"}, Was: "1"},
	}
	difftest.Want(t, "first", "", joined(repairedSysctls(known, before, get)))
	difftest.Want(t, "again", "net.ipv4.ip_forward was 0, set to 1; net.ipv4.conf.vxlan/calico.rp_filter was 1, set to 2",
		joined(repairedSysctls(known, before, get)))
	values["net/ipv4/ip_forward"] = "0" // it could not be set
	difftest.Want(t, "failed", "", joined(repairedSysctls(known, before[:1], get)))

	type pass struct {
		as   int // desired
		was  []string
		err  error
		want string
	}
	missing, mtu, failed := []string{"was missing"}, []string{"had MTU 1400", "was down"}, errors.New("no")
	for name, passes := range map[string][]pass{
		"first":   {{1, missing, nil, ""}, {1, nil, nil, ""}},
		"missing": {{1, nil, nil, ""}, {1, missing, nil, "link tunl0 was missing, made again"}, {1, nil, nil, ""}},
		"changed": {{1, nil, nil, ""}, {1, mtu, nil, "link tunl0 had MTU 1400, was down, set again"}},
		"made later": {{1, nil, nil, ""}, {1, mtu, failed, ""},
			{1, nil, nil, "link tunl0 had MTU 1400, was down, set again"}, {1, nil, nil, ""}},
		"not made at first":       {{1, missing, failed, ""}, {1, missing, nil, ""}},
		"desired otherwise":       {{1, nil, nil, ""}, {2, mtu, nil, ""}, {2, mtu, nil, "link tunl0 had MTU 1400, was down, set again"}},
		"back, with a failure":    {{1, nil, nil, ""}, {2, mtu, failed, ""}, {1, mtu, nil, ""}},
		"desired, made later":     {{1, nil, nil, ""}, {2, mtu, failed, ""}, {2, mtu, nil, ""}},
		"found, desired meantime": {{1, nil, nil, ""}, {1, mtu, failed, ""}, {2, nil, nil, ""}},
	} {
		var d device
		for i, p := range passes {
			difftest.Want(t, fmt.Sprint(name, ", pass ", i), p.want, joined(d.made("tunl0", p.as, p.was, p.err)))
		}
	}

	way := func(to string) []desired.DesiredRoute {
		return []desired.DesiredRoute{{Route: routes.Route{Dst: netip.MustParsePrefix(to), Hops: []routes.Hop{{Dev: "eth0"}}}}}
	}
	difftest.Want(t, "new", "", joined(repairedRoutes(nil, way("10.0.0.0/26"), 1)))
	difftest.Want(t, "another", "", joined(repairedRoutes(way("10.0.1.0/26"), way("10.0.0.0/26"), 1)))
	difftest.Want(t, "nothing written", "", joined(repairedRoutes(way("10.0.0.0/26"), way("10.0.0.0/26"), 0)))
	difftest.Want(t, "undone", "routes 1 of 1 were missing or changed, such as one to 10.0.0.0/26: written again",
		joined(repairedRoutes(way("10.0.0.0/26"), way("10.0.0.0/26"), 1)))
}

// TestEntriesThatAreUndone: entries of a new or changed peer, of a new device, and after a change of the device are
// written for the first time.
func TestEntriesThatAreUndone(t *testing.T) {
	peer := func(n byte) vxlan.Peer {
		return vxlan.Peer{Addr: netip.AddrFrom4([4]byte{10, 0, n, 0}), MAC: vxlan.MAC{n}, Node: netip.AddrFrom4([4]byte{172, 30, 0, n})}
	}
	moved := peer(1)
	moved.Node = netip.AddrFrom4([4]byte{172, 30, 0, 9})
	type pass struct {
		mtu     int
		peers   []vxlan.Peer
		anew    bool
		written []vxlan.Peer
		err     error
		want    string
	}
	one, both, failed := []vxlan.Peer{peer(1)}, []vxlan.Peer{peer(1), peer(2)}, errors.New("no")
	const text = "peers of vxlan.calico 1 of 2 were missing or changed, written again"
	for name, passes := range map[string][]pass{
		"new":            {{1450, one, true, one, nil, ""}, {1450, both, false, both[1:], nil, ""}, {1450, both, false, nil, nil, ""}},
		"undone":         {{1450, both, true, both, nil, ""}, {1450, both, false, one, nil, text}},
		"undone, failed": {{1450, both, true, both, nil, ""}, {1450, both, false, one, failed, text}, {1450, both, false, nil, nil, ""}},
		"moved":          {{1450, both, true, both, nil, ""}, {1450, []vxlan.Peer{moved, peer(2)}, false, []vxlan.Peer{moved}, nil, ""}},
		"moved and back": {{1450, one, true, one, nil, ""}, {1450, []vxlan.Peer{moved}, false, []vxlan.Peer{moved}, failed, ""},
			{1450, one, false, one, nil, ""}},
		"device anew":    {{1450, both, true, both, nil, ""}, {1450, both, true, both, nil, ""}},
		"device changed": {{1450, both, true, both, nil, ""}, {1400, both, false, both, nil, ""}, {1400, both, false, one, nil, text}},
	} {
		var d device
		for i, p := range passes {
			tunnel := vxlan.Tunnel{Local: netip.MustParseAddr("172.30.0.1"), MTU: p.mtu, Peers: p.peers}
			difftest.Want(t, fmt.Sprint(name, ", pass ", i), p.want,
				joined(d.madeVXLAN(tunnel, vxlan.Merged{Anew: p.anew, Written: p.written}, p.err)))
		}
	}
}

// TestAnnotationsThatAreUndone: undone annotations are reported once they are written, whichever try succeeds, and
// whether its answer arrives or not.
func TestAnnotationsThatAreUndone(t *testing.T) {
	const key = api.AnnotationIPv4Address
	const text = "annotation " + key + " of the Node was changed or removed, written again"
	right, wrong := map[string]string{key: "10.0.0.1/24"}, map[string]string{key: "10.0.0.9/24"}
	a := annotations{right: map[string]string{}, undone: map[string]bool{}}
	look := func(what, want string, now map[string]string) {
		t.Helper()
		difftest.Want(t, what, want, joined(a.look(now, right)))
	}
	written := func(what, want string) {
		t.Helper()
		difftest.Want(t, what, want, joined(a.written()))
	}
	look("at first", "", nil)
	written("at first", "")
	look("right", "", right)
	for range 2 { // the write fails
		look("wrong", "", wrong)
	}
	written("the write succeeds", text)
	look("the watch is late", "", wrong)
	written("the watch is late", "")
	look("right again", "", right)
	look("removed", "", nil)
	look("the answer to the write was lost", text, right)
	look("and then", "", right)
	other := map[string]string{key: "10.0.0.2/24"}
	difftest.Want(t, "desired otherwise", "", joined(a.look(right, other)))
	look("back, as what was written comes", "", other)
	written("back", "")
}

// All annotations that the agent announces are reported.
func TestAnnotationsThatAreTold(t *testing.T) {
	for _, key := range []string{
		api.AnnotationASNumber, api.AnnotationReflection, api.AnnotationIPv4WireGuard, api.AnnotationWireGuardKey,
		api.AnnotationWireGuardNextKeyV6,
	} {
		a := annotations{right: map[string]string{}, undone: map[string]bool{}}
		right := map[string]string{key: "right"}
		a.look(right, right)
		a.look(nil, right)
		difftest.Want(t, key, "annotation "+key+" of the Node was changed or removed, written again", joined(a.written()))
	}
}
