package takeover

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

func of(protocol netlinkx.Protocol, dsts ...string) []netlinkx.Route {
	var routes []netlinkx.Route
	for _, d := range dsts {
		routes = append(routes, netlinkx.Route{Dst: netip.MustParsePrefix(d), Protocol: protocol})
	}
	return routes
}

func TestTracker(t *testing.T) {
	const bird, felix = netlinkx.ProtocolBIRD, netlinkx.ProtocolFelix
	var k Tracker
	now := time.Now()
	writes := func(what string, wantBIRD, wantFelix bool) {
		t.Helper()
		if got := k.Writes(now, bird); got != wantBIRD {
			t.Errorf("%s: BIRD runs: %v", what, got)
		}
		if got := k.Writes(now, felix); got != wantFelix {
			t.Errorf("%s: Felix runs: %v", what, got)
		}
	}
	writes("at first", false, false)
	k.TookRoutes(now, of(bird, "10.1.0.0/26", "10.2.0.0/26"))
	k.TookRoutes(now, of(felix, "10.1.0.0/26"))
	writes("all was taken", false, false)
	now = now.Add(time.Second)
	k.TookRoutes(now, of(bird, "10.3.0.0/26")) // it was not in the way before
	writes("another was taken", false, false)
	now = now.Add(30 * time.Second)
	k.TookRoutes(now, of(bird, "10.2.0.0/26"))
	writes("one came back", true, false)
	now = now.Add(shortPause - time.Second)
	writes("for a while", true, false)
	now = now.Add(time.Second)
	writes("then it is tried again", false, false)
	k.TookRoutes(now, of(bird, "10.2.0.0/26", "10.3.0.0/26"))
	writes("what was left alone is taken", false, false)
	now = now.Add(time.Second)
	k.TookRoutes(now, of(bird, "10.3.0.0/26"))
	now = now.Add(2*shortPause - time.Second)
	writes("the second pause is longer", true, false)
	for range 20 {
		now = now.Add(longPause)
		writes("never longer than the longest", false, false)
		k.TookRoutes(now, of(bird, "10.2.0.0/26"))
		k.TookRoutes(now, of(bird, "10.2.0.0/26"))
	}

	k.TookRules(now)
	if k.WritesRules(now) {
		t.Error("rules that were removed once count as those that came back")
	}
	k.TookRules(now.Add(time.Minute))
	if !k.WritesRules(now.Add(2*time.Minute)) || k.WritesRules(now.Add(time.Hour)) {
		t.Error("rules came back, and that is not believed for a while")
	}
}

// TestTrackerIsBounded: a predecessor with more routes than are remembered costs no more.
func TestTrackerIsBounded(t *testing.T) {
	var k Tracker
	var routes []netlinkx.Route
	for i := range 2 * mostTaken {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		routes = append(routes, netlinkx.Route{Dst: netip.PrefixFrom(a, 32), Protocol: 12})
	}
	k.TookRoutes(time.Now(), routes)
	if n := len(k.routes[12].away); n != mostTaken {
		t.Errorf("%d are remembered, want %d", n, mostTaken)
	}
}

func TestFindBIRD(t *testing.T) {
	const text = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20001 /var/run/calico/bird.ctl
0000000000000000: 00000002 00000000 00010000 0001 01 20002 /run/calico/bird6.ctl
0000000000000000: 00000003 00000000 00000000 0001 03 20003 /var/run/calico/bird.ctl
0000000000000000: 00000002 00000000 00010000 0001 01 20004 /run/blackbird.ctl
0000000000000000: 00000002 00000000 00010000 0001 01 20005
0000000000000000: 00000002 00000000 00010000 0001 01 20006 @bird
cut
`
	if got, want := findBIRD(text), []string{"/var/run/calico/bird.ctl", "/run/calico/bird6.ctl"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// FuzzFindBIRD: whatever the list of Unix sockets, a result is in it and ends in .ctl.
func FuzzFindBIRD(f *testing.F) {
	f.Add("0: 2 0 00010000 0001 01 20001 /var/run/calico/bird.ctl\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, found := range findBIRD(text) {
			if !strings.Contains(text, found) || !strings.HasSuffix(found, ".ctl") {
				t.Errorf("%q in %q", found, text)
			}
		}
	})
}

// FuzzSort: each of the agent's routes is given away or removed, once, and keeps its key.
func FuzzSort(f *testing.F) {
	f.Add(uint64(1), false)
	f.Add(uint64(2), true)
	f.Fuzz(func(t *testing.T, seed uint64, all bool) {
		random := rand.New(rand.NewPCG(seed, 0))
		var ours []netlinkx.Route
		theirs := map[netip.Prefix]bool{}
		for i := range random.IntN(20) {
			r := netlinkx.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24), Protocol: 84, Dev: random.IntN(4),
				Metric: uint32(random.IntN(2))}
			r.Type = []netlinkx.RouteType{netlinkx.Unicast, netlinkx.Unreachable}[random.IntN(2)]
			ours = append(ours, r)
			if random.IntN(3) == 0 {
				theirs[r.Dst] = true
			}
		}
		give, remove, steps := (Handover{All: all}).sort(ours, theirs, []int{3}, nil)
		if len(give)+len(remove) != len(ours) || len(steps) != len(ours) || all && len(give) > 0 {
			t.Fatalf("%d given, %d removed, %d steps for %d routes", len(give), len(remove), len(steps), len(ours))
		}
		for _, r := range give {
			if theirs[r.Dst] || r.Protocol == 84 || (r.Protocol == netlinkx.ProtocolFelix) != r.Leaves(3) || r.Type == netlinkx.Unreachable {
				t.Errorf("given: %s", r)
			}
		}
		for _, r := range remove {
			if r.Protocol != 84 || !all && !theirs[r.Dst] {
				t.Errorf("removed: %s", r)
			}
		}
	})
}
