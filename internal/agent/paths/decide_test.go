package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("n%02d", i))
	}
	return all
}

func without(nodes []string, self string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == self })
}

// TestPick: of any number of nodes each probes three at most, each is probed by two at least in each round, each probes
// each in turn, and a node that is down is probed again in the next rounds.
func TestPick(t *testing.T) {
	none := func(string) bool { return false }
	for n := 1; n < 30; n++ {
		all := names(n)
		probed := map[[2]string]bool{}
		for round := range n {
			by := map[string]int{}
			for _, self := range all {
				picked := pick(self, without(all, self), round, none)
				if len(picked) > atOnce {
					t.Fatalf("%d nodes: %v", n, picked)
				}
				for _, p := range picked {
					if p == self || probed[[2]string{self, p}] && len(picked) < min(atOnce, n-1) {
						t.Fatalf("%d nodes: %s probes %v", n, self, picked)
					}
					by[p]++
					probed[[2]string{self, p}] = true
				}
			}
			for _, p := range all {
				if by[p] < min(fixed, n-1) {
					t.Fatalf("%d nodes, round %d: %s is probed %d times", n, round, p, by[p])
				}
			}
		}
		if len(probed) != n*(n-1) {
			t.Errorf("%d nodes: %d pairs were probed in %d rounds", n, len(probed), n)
		}
	}
	all := names(21)
	times, others := 0, map[string]bool{}
	for round := range 40 {
		for _, p := range pick("n00", all[1:], round, func(n string) bool { return n == "n15" }) {
			if p == "n15" {
				times++
			}
			others[p] = true
		}
	}
	if times < 20 || len(others) != 20 {
		t.Errorf("a node that is down is probed %d times in 40 rounds, and %d nodes at all", times, len(others))
	}
}

// story runs rounds of node n00; each has the results of some peers.
type story struct {
	t   *testing.T
	w   *Worker
	now time.Time
}

func newStory(t *testing.T) *story {
	t.Helper()
	return &story{t: t, w: &Worker{Node: "n00", states: map[path]*state{}}, now: time.Date(2026, 11, 29, 7, 35, 0, 0, time.UTC)}
}

func (s *story) round(results ...result) string {
	s.now = s.now.Add(period)
	for i := range results {
		results[i].first = s.now
	}
	var texts []string
	for _, e := range s.w.conclude(s.now, results) {
		text, _, _ := strings.Cut(e.String(), ": see")
		reason := map[bool]string{false: "PathDown", true: "PathUp"}[e.good]
		if e.unknown {
			reason, text = "PathUnknown", e.String()
		}
		texts = append(texts, fmt.Sprintf("%s %s %s", e.node, reason, text))
	}
	return strings.Join(texts, "\n")
}

// quiet repeats the same results for a while, and expects no Event.
func (s *story) quiet(d time.Duration, results ...result) {
	s.t.Helper()
	for end := s.now.Add(d); s.now.Before(end); {
		s.want(s.round(results...), "")
	}
}

func (s *story) want(got, want string) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func up(node string) result   { return result{Peer: Peer{Node: node, Kind: VXLAN}, answered: true} }
func lost(node string) result { return result{Peer: Peer{Node: node, Kind: VXLAN}, lost: enough} }
func alive(node string) result {
	r := lost(node)
	r.alive = true
	return r
}

// by6 returns the same result for IPv6.
func by6(r result) result {
	r.Addr = netip.IPv6Loopback()
	return r
}

func TestConclude(t *testing.T) {
	t.Run("one node", func(t *testing.T) {
		s := newStory(t)
		s.want(s.round(up("n01"), up("n02")), "")
		s.want(s.round(alive("n01"), up("n02")), "n01 PathDown n01 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
		s.want(s.round(lost("n01"), up("n02")), "n01 PathDown n01 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
		s.want(s.round(up("n01"), up("n02")), "n01 PathUp n01 is reached by pods of n00 again (VXLAN, after 20s)")
		s.want(s.round(up("n01"), up("n02")), "")
	})
	t.Run("never answered", func(t *testing.T) { // a node that does not send probes back, such as of another network
		s := newStory(t)
		for range 20 {
			s.want(s.round(alive("n01"), up("n02")), "")
		}
		near := alive("n01")
		near.near, near.ready = true, true // for minutes
		s.want(s.round(near, up("n02")),
			"n01 PathUnknown n01 has sent back no probe of n00 (VXLAN, since 07:35:10 UTC), though it answers other packets: if pods of both do "+
				"not reach each other, see on n01 that firewalls let VXLAN pass, UDP port 4789 or FelixConfiguration's vxlanPort, and that no chain "+
				"drops what is forwarded (nft list ruleset, iptables -S FORWARD, sysctl net.ipv4.ip_forward); node diagnose there names more")
		s.want(s.round(near, up("n02")), "") // once
	})
	t.Run("never answered, without encapsulation", func(t *testing.T) { // the network may drop probes for their source
		s := newStory(t)
		near := alive("n01")
		near.Kind, near.near, near.ready = Plain, true, true
		for range 20 {
			s.want(s.round(near, up("n02")), "")
		}
	})
	t.Run("answered an earlier agent", func(t *testing.T) {
		s := newStory(t)
		kept := ""
		s.w.Keep = func(text string) error { kept = text; return nil }
		s.round(up("n01"), by6(up("n01")), lost("n02"), up("n03"))
		s.w.save()
		again := &Worker{Node: "n00"}
		errtest.Must(t, again.Recall([]byte(kept)))
		s.w = again
		again.keep(nil) // routes are not complete yet
		again.keep([]Peer{up("n01").Peer, by6(up("n01")).Peer, up("n02").Peer, up("n03").Peer})
		s.quiet(aliveTime, alive("n01"), by6(up("n01")), alive("n02"), up("n03"))
		s.want(s.round(alive("n01"), by6(up("n01")), alive("n02"), up("n03")),
			"n01 PathDown n01 is not reached by pods of n00 (VXLAN, IPv4, since 07:35:20 UTC)")
	})
	t.Run("another way", func(t *testing.T) {
		s := newStory(t)
		s.want(s.round(up("n01")), "")
		other := alive("n01")
		other.Kind = Plain
		s.want(s.round(other), "")
	})
	t.Run("few lost", func(t *testing.T) {
		s := newStory(t)
		few := alive("n01")
		few.lost = enough - 1
		s.round(up("n01"))
		s.want(s.round(few), "")
		s.want(s.round(up("n01")), "")
		s.want(s.round(few), "")
	})
	t.Run("node silent", func(t *testing.T) { // while it restarts, its kubelet's last report holds for a while
		s := newStory(t)
		s.round(up("n01"), up("n02"))
		since := s.now.Add(period)
		for s.now.Sub(since) < aliveTime-period {
			r := lost("n01")
			r.ready = true
			s.want(s.round(r, up("n02")), "")
		}
		s.want(s.round(lost("n01"), up("n02")), "")
		r := lost("n01")
		r.ready = true
		s.want(s.round(r, up("n02")), "n01 PathDown n01 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
	})
	t.Run("node that starts", func(t *testing.T) { // it answers before its agent runs
		s := newStory(t)
		s.round(up("n01"), up("n02"))
		s.want(s.round(lost("n01"), up("n02")), "")
		s.quiet(aliveTime, alive("n01"), up("n02"))
		s.want(s.round(alive("n01"), up("n02")), "n01 PathDown n01 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
	})
	t.Run("node in the third place that starts", func(t *testing.T) { // nothing is known of the time between
		s := newStory(t)
		s.round(up("n01"), up("n02"), up("n07"))
		s.now = s.now.Add(5 * time.Minute)
		s.quiet(aliveTime, up("n01"), up("n02"), alive("n07"))
		s.want(s.round(up("n01"), up("n02"), up("n07")), "")
		s.now = s.now.Add(5 * time.Minute)
		s.quiet(aliveTime, up("n01"), up("n02"), alive("n07"))
		s.want(s.round(up("n01"), up("n02"), alive("n07")), "n07 PathDown n07 is not reached by pods of n00 (VXLAN, since 07:46:30 UTC)")
	})
	t.Run("node in the third place that was off", func(t *testing.T) { // rounds that probe it may be minutes apart
		s := newStory(t)
		s.round(up("n07"))
		s.round(lost("n07"))
		s.now = s.now.Add(5 * time.Minute)
		s.quiet(aliveTime, alive("n07"))
		s.want(s.round(lost("n07")), "")
		s.quiet(aliveTime, alive("n07"))
	})
	t.Run("this node, and one in the third place", func(t *testing.T) {
		s := newStory(t)
		s.round(up("n01"), up("n02"), up("n07"))
		s.round(up("n01"), up("n02"))
		s.round(up("n01"), up("n02"))
		s.want(s.round(alive("n01"), alive("n02"), alive("n07")),
			"n00 PathDown pods of n00 reach no other node (VXLAN, since 07:35:40 UTC), neither n01 nor n02")
	})
	t.Run("this node, and one that never answered", func(t *testing.T) {
		s := newStory(t)
		never := alive("n01")
		never.Kind = Plain
		s.round(never, up("n02"), up("n03"))
		s.want(s.round(never, alive("n02"), alive("n03")),
			"n00 PathDown pods of n00 reach no other node (VXLAN, since 07:35:20 UTC), neither n02 nor n03")
	})
	t.Run("another way while it is down", func(t *testing.T) {
		s := newStory(t)
		s.round(up("n01"), up("n02"))
		s.want(s.round(alive("n01"), up("n02")), "n01 PathDown n01 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
		other := lost("n01")
		other.Kind = Plain
		s.w.keep([]Peer{other.Peer, up("n02").Peer})
		s.want(s.round(other, up("n02")), "")
		other.answered = true
		s.want(s.round(other, up("n02")), "n01 PathUp n01 is reached by pods of n00 again (no encapsulation, after 20s)")
		s.want(s.round(other, up("n02")), "")
	})
	t.Run("this node", func(t *testing.T) {
		s := newStory(t)
		s.round(up("n01"), up("n02"))
		s.want(s.round(alive("n01"), alive("n02")),
			"n00 PathDown pods of n00 reach no other node (VXLAN, since 07:35:20 UTC), neither n01 nor n02")
		s.want(s.round(alive("n01"), alive("n02")),
			"n00 PathDown pods of n00 reach no other node (VXLAN, since 07:35:20 UTC), neither n01 nor n02")
		s.want(s.round(up("n01"), alive("n02")), "n00 PathUp pods of n00 reach other nodes again (VXLAN, after 20s)\n"+
			"n02 PathDown n02 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
		s.want(s.round(up("n01"), up("n02")), "n02 PathUp n02 is reached by pods of n00 again (VXLAN, after 30s)")
	})
	t.Run("one family of a node, then both", func(t *testing.T) {
		s := newStory(t)
		s.w.peers = []Peer{up("n01").Peer, by6(up("n01")).Peer}
		s.round(up("n01"), by6(up("n01")), up("n02"), by6(up("n02")))
		s.want(s.round(up("n01"), by6(alive("n01")), up("n02"), by6(up("n02"))),
			"n01 PathDown n01 is not reached by pods of n00 (VXLAN, IPv6, since 07:35:20 UTC)")
		s.want(s.round(alive("n01"), by6(lost("n01")), up("n02"), by6(up("n02"))),
			"n01 PathDown n01 is not reached by pods of n00 (VXLAN, IPv4, since 07:35:30 UTC; VXLAN, IPv6, since 07:35:20 UTC)")
		s.want(s.round(up("n01"), by6(lost("n01")), up("n02"), by6(up("n02"))), "n01 PathUp n01 is reached by pods of n00 again (VXLAN, IPv4, "+
			"after 10s)\nn01 PathDown n01 is not reached by pods of n00 (VXLAN, IPv6, since 07:35:20 UTC)")
		s.want(s.round(up("n01"), by6(up("n01")), up("n02"), by6(up("n02"))),
			"n01 PathUp n01 is reached by pods of n00 again (VXLAN, IPv6, after 30s)")
	})
	t.Run("one family of this node", func(t *testing.T) {
		s := newStory(t)
		s.w.peers = []Peer{up("n01").Peer, by6(up("n01")).Peer}
		s.round(up("n01"), by6(up("n01")), up("n02"), by6(up("n02")))
		s.want(s.round(up("n01"), by6(alive("n01")), up("n02"), by6(alive("n02"))),
			"n00 PathDown pods of n00 reach no other node (VXLAN, IPv6, since 07:35:20 UTC), neither n01 nor n02")
		s.want(s.round(up("n01"), by6(up("n01")), up("n02"), by6(up("n02"))),
			"n00 PathUp pods of n00 reach other nodes again (VXLAN, IPv6, after 10s)")
	})
	t.Run("IPv6 alone", func(t *testing.T) {
		s := newStory(t)
		s.w.peers = []Peer{by6(up("n01")).Peer}
		s.round(by6(up("n01")))
		s.want(s.round(by6(alive("n01"))), "n01 PathDown n01 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
	})
	t.Run("two nodes", func(t *testing.T) {
		s := newStory(t)
		s.round(up("n01"))
		s.want(s.round(alive("n01")), "n01 PathDown n01 is not reached by pods of n00 (VXLAN, since 07:35:20 UTC)")
	})
}

func TestReport(t *testing.T) {
	s := newStory(t)
	for _, n := range names(25)[1:] {
		p := up(n).Peer
		p.Unprobed = map[string]string{"n03": "it is far"}[n]
		s.w.peers = append(s.w.peers, p, by6(up(n)).Peer)
	}
	for i := 4; i < 25; i++ {
		s.round(up(fmt.Sprintf("n%02d", i)))
	}
	s.round(up("n20"), by6(up("n20")))
	s.round(alive("n20"), by6(up("n20")))
	both := s.w.Report()
	r := both[0]
	if r.Up != 20 || r.Down != 1 || r.Unknown != 2 || r.Unprobed != 1 || r.Why != "it is far" || len(r.Paths) != mostShown ||
		r.Paths[0].Node != "n20" || r.Paths[0].Up || r.Paths[0].Since.IsZero() || r.Paths[1].Node != "n04" || !r.Paths[1].Up {
		t.Errorf("%+v", r)
	}
	if r := both[1]; r.Up != 1 || r.Unknown != 23 || r.Down+r.Unprobed != 0 || len(r.Paths) != 1 {
		t.Errorf("IPv6: %+v", r)
	}
}
