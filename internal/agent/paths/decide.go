package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/hairpin"
)

// Kind is how packets of pods travel to a node.
type Kind string

// The kinds.
const (
	VXLAN     Kind = "VXLAN"
	IPIP      Kind = "IPIP"
	Plain     Kind = "no encapsulation"
	WireGuard Kind = "WireGuard"
)

// Peer is another node, and the path to it for packets of one family.
type Peer struct {
	Node string
	Addr netip.Addr // the node's own
	Port uint16     // of BGP there
	Kind Kind
	// Device is the path's link. Way lacks the link's index, and without encapsulation the MAC.
	Device string
	Way    hairpin.Way
	// Unprobed is why no probe is sent; empty if probes are.
	Unprobed string
}

// family returns 0 for IPv4 and 1 for IPv6.
func (p Peer) family() int {
	if p.Addr.Is6() {
		return 1
	}
	return 0
}

// path is the key of a state.
type path struct {
	node   string
	family int
}

func (p Peer) path() path { return path{p.Node, p.family()} }

const (
	// atOnce is how many nodes are probed in a round.
	atOnce = 3
	// fixed of them are always the same: the nodes that follow this one in the order of names. So two nodes probe each
	// node in each round.
	fixed = 2
	// enough probes lost in a row make a node that answered before down.
	enough = 6
	// aliveTime is how long a node must be missed if nothing but its kubelet's readiness shows that it is up, or if it may
	// have restarted meanwhile.
	aliveTime = time.Minute
	// strangeTime is how long a ready node must answer all but probes before a remark, if it never answered a probe.
	strangeTime = 3 * time.Minute
	// recent bounds the time between two rounds' probes of a peer: no node restarts within it.
	recent = period + period/2
)

// pick returns the nodes to probe in a round, at most atOnce, in the order of names from self. The third place rotates
// through the rest; in every other round only through nodes of the rest that lose probes.
func pick(self string, nodes []string, round int, loses func(string) bool) []string {
	first, _ := slices.BinarySearch(nodes, self)
	ring := slices.Concat(nodes[first:], nodes[:first])
	if len(ring) <= atOnce {
		return ring
	}
	picked, rest := ring[:fixed:fixed], ring[fixed:]
	var losing []string
	for _, n := range rest {
		if loses(n) {
			losing = append(losing, n)
		}
	}
	if len(losing) > 0 {
		if round%2 == 1 {
			rest = losing
		}
		round /= 2
	}
	return append(picked, rest[round%len(rest)])
}

// result is the outcome of one peer's probes in a round.
type result struct {
	Peer
	near     bool // it is one of the fixed nodes
	answered bool
	lost     int       // probes without an answer
	first    time.Time // when the first of them was sent
	alive    bool      // the node answers otherwise
	ready    bool      // its kubelet reports it ready
}

// state is the state of a peer.
type state struct {
	kind     Kind
	answered bool      // it has answered a probe: before that nothing is concluded
	heard    time.Time // start of the round in which it last answered
	lost     int       // since its last answer
	since    time.Time
	quick    bool      // it answered in the round before the loss, and other packets ever since
	alive    time.Time // first round since which it has answered other packets in each
	down     bool
	told     bool // an Event of its own was written
	noted    bool // an Event was written that it has never answered
}

// losing reports whether a peer that answered before loses probes.
func (s state) losing() bool { return s.answered && s.lost > 0 }

// strange reports whether to check what else a node answers that has never answered a probe. Without encapsulation the
// network may drop the source of probes, so such nodes are left out.
func (s state) strange(r result) bool {
	return r.near && !s.answered && !s.noted && (r.Kind == VXLAN || r.Kind == IPIP)
}

// see updates the state by a result.
func (s *state) see(now time.Time, r result) {
	if r.answered {
		*s = state{kind: r.Kind, answered: true, heard: r.first, told: s.told, noted: s.noted}
		return
	}
	if s.lost == 0 {
		s.quick = r.first.Sub(s.heard) <= recent
		if !s.told {
			s.since = r.first
		}
	}
	s.lost += r.lost
	switch {
	case !r.alive:
		s.quick, s.alive = false, time.Time{}
	case s.alive.IsZero():
		s.alive = r.first
	}
	// A node that starts answers pings before its agent has made the tunnel.
	alive := r.alive && (s.quick || now.Sub(s.alive) >= aliveTime)
	s.down = s.down || s.answered && s.lost >= enough && (alive || r.ready && now.Sub(s.since) >= aliveTime)
}

// by returns the state if its path is of that kind. After a change of the kind only told and since are kept.
func (s *state) by(k Kind) *state {
	switch {
	case s == nil:
		return &state{kind: k}
	case s.kind != k:
		return &state{kind: k, since: s.since, told: s.told}
	}
	return s
}

// saying is an Event about a Node.
type saying struct {
	node, text string
	hows       []string // path, family and time, per family
	after      string
	good       bool // it is up again
	unknown    bool // it was never up
	again      bool // an Event about each was written before
}

func (s saying) String() string {
	return fmt.Sprintf("%s (%s)%s", s.text, strings.Join(s.hows, "; "), s.after)
}

// conclude evaluates the results of a round and returns the Events to write: one per node and text, with both families.
func (w *Worker) conclude(now time.Time, results []result) (said []saying) {
	var of [2][]result
	for _, r := range results {
		of[r.family()] = append(of[r.family()], r)
	}
	for f := range of {
		for _, s := range w.concludeOf(f, now, of[f]) {
			i := slices.IndexFunc(said, func(o saying) bool { return o.node == s.node && o.good == s.good && o.text == s.text })
			if i < 0 {
				said = append(said, s)
				continue
			}
			said[i].hows, said[i].again = append(said[i].hows, s.hows...), said[i].again && s.again
		}
	}
	return said
}

// concludeOf is conclude for one family. If a node misses all peers that it probes, at least two, the cause is most
// likely its own.
func (w *Worker) concludeOf(family int, now time.Time, results []result) (said []saying) {
	missed := 0
	var judged, again []result
	before := map[string]time.Time{}
	for _, r := range results {
		s := w.states[r.path()].by(r.Kind)
		w.states[r.path()] = s
		before[r.Node] = s.since
		s.see(now, r)
		if r.answered && s.told {
			again = append(again, r)
		}
		if r.answered || s.down {
			judged = append(judged, r)
		}
		if s.down {
			missed++
		}
	}
	alone := len(judged) > 1 && missed == len(judged)
	for _, r := range again {
		w.states[r.path()].told = false
		how := w.how(r, "after "+now.Sub(before[r.Node]).Round(time.Second).String())
		said = append(said, saying{node: r.Node, text: fmt.Sprintf("%s is reached by pods of %s again", r.Node, w.Node), hows: how, good: true})
	}
	switch {
	case alone:
		repeated := !w.alone[family].IsZero()
		if !repeated {
			w.alone[family] = w.states[judged[0].path()].since
		}
		var names []string
		for _, r := range judged {
			names = append(names, r.Node)
		}
		return append(said, saying{
			node: w.Node, text: fmt.Sprintf("pods of %s reach no other node", w.Node), hows: w.how(judged[0], "since "+clock(w.alone[family])),
			after: fmt.Sprintf(", neither %s: %s", strings.Join(names, " nor "), remedy(judged[0], w.Node)), again: repeated,
		})
	case !w.alone[family].IsZero() && len(judged) > missed:
		how := w.how(judged[0], "after "+now.Sub(w.alone[family]).Round(time.Second).String())
		said = append(said, saying{node: w.Node, text: fmt.Sprintf("pods of %s reach other nodes again", w.Node), hows: how, good: true})
		w.alone[family] = time.Time{}
	}
	return append(said, w.silent(results)...)
}

// silent returns the Events about nodes that answer no probe, whether they did before or not.
func (w *Worker) silent(results []result) (said []saying) {
	for _, r := range results {
		s := w.states[r.path()]
		if s.strange(r) && r.ready && s.lost >= enough {
			s.noted = true
			said = append(said, saying{
				node: r.Node, text: fmt.Sprintf("%s has sent back no probe of %s", r.Node, w.Node), hows: w.how(r, "since "+clock(s.since)),
				after: ", though it answers other packets: if pods of both do not reach each other, " + remedy(r, r.Node), unknown: true,
			})
		}
		if s.down {
			repeated := s.told
			s.told = true
			said = append(said, saying{
				node: r.Node, text: fmt.Sprintf("%s is not reached by pods of %s", r.Node, w.Node), hows: w.how(r, "since "+clock(s.since)),
				after: ": " + remedy(r, r.Node), again: repeated,
			})
		}
	}
	return said
}

// how describes the path and the time; it names the family if there are nodes of both.
func (w *Worker) how(r result, when string) []string {
	way := string(r.Kind)
	if slices.ContainsFunc(w.peers, func(p Peer) bool { return p.family() != r.family() }) {
		way += [...]string{", IPv4", ", IPv6"}[r.family()]
	}
	return []string{way + ", " + when}
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

// remedy describes where to look.
func remedy(r result, node string) string {
	what := "that its firewall, and those between the nodes, let packets of pods pass"
	switch r.Kind {
	case VXLAN:
		what = "that firewalls let VXLAN pass, UDP port 4789 or FelixConfiguration's vxlanPort"
	case IPIP:
		what = "that firewalls let IP protocol 4 pass"
	}
	forward := [...]string{"iptables -S FORWARD, sysctl net.ipv4.ip_forward",
		"ip6tables -S FORWARD, sysctl net.ipv6.conf.all.forwarding"}[r.family()]
	return fmt.Sprintf("see on %s %s, and that no chain drops what is forwarded (nft list ruleset, %s); node diagnose there names more",
		node, what, forward)
}
