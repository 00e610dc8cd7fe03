package paths

import (
	"fmt"
	"net/netip"
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

// Peer is another node, and the way there.
type Peer struct {
	Node string
	Addr netip.Addr // the node's own
	Port uint16     // of BGP there
	Kind Kind
	// Device is the link of the way. Way lacks its index, and without encapsulation the MAC.
	Device string
	Way    hairpin.Way
	// Unprobed is why no probe is sent; empty if probes are.
	Unprobed string
}

const (
	// atOnce is how many nodes are probed in a round.
	atOnce = 3
	// fixed of them are always the same, those that follow this node in the order of names: so each node has two that probe it in each round.
	fixed = 2
	// enough probes lost in a row make a node that answered before down.
	enough = 6
	// aliveTime is how long a node must be missed that answers nothing else while its kubelet says that it is ready, or that answered nothing a moment ago.
	aliveTime = time.Minute
)

// pick returns the peers to probe in a round, at most atOnce of them; peers are in the order of names. The third place goes round among the rest, in
// each other round among those of them that are down.
func pick(self string, peers []Peer, round int, isDown func(Peer) bool) []Peer {
	first := 0
	for first < len(peers) && peers[first].Node < self {
		first++
	}
	ring := append(append([]Peer(nil), peers[first:]...), peers[:first]...)
	if len(ring) <= atOnce {
		return ring
	}
	picked, rest := ring[:fixed:fixed], ring[fixed:]
	var down []Peer
	for _, p := range rest {
		if isDown(p) {
			down = append(down, p)
		}
	}
	if len(down) > 0 && round%2 == 1 {
		rest, round = down, round/2
	}
	return append(picked, rest[round%len(rest)])
}

// result is what was seen of one peer in a round.
type result struct {
	Peer
	answered bool
	lost     int       // probes without an answer
	first    time.Time // when the first of them was sent
	alive    bool      // the node answers otherwise
	ready    bool      // its kubelet says that it is ready
}

// state is what is known of a peer.
type state struct {
	kind     Kind
	answered bool // it has answered a probe once: before that nothing is concluded
	lost     int  // since its last answer
	since    time.Time
	silent   time.Time // when it last answered nothing at all
	down     bool
	told     bool // by an Event of its own
}

// see takes a result, and reports whether the peer is up again.
func (s *state) see(now time.Time, r result) (again bool) {
	if r.answered {
		again = s.down
		*s = state{kind: r.Kind, answered: true, told: s.told}
		return again
	}
	if s.lost == 0 {
		s.since = r.first
	}
	s.lost += r.lost
	if !r.alive {
		s.silent = now
	}
	// A node that starts answers pings before its agent has made the tunnel.
	alive := r.alive && now.Sub(s.silent) >= aliveTime
	s.down = s.down || s.answered && s.lost >= enough && (alive || r.ready && now.Sub(s.since) >= aliveTime)
	return false
}

// saying is an Event about a Node.
type saying struct {
	node, text string
	good       bool // it is up again
	again      bool // it was said before
}

// conclude takes the results of a round, and returns what is to be said. If a node misses all that it probes, two at least, the cause is most likely
// its own.
func (w *Worker) conclude(now time.Time, results []result) (said []saying) {
	missed, judged := 0, 0
	var again []result
	before := map[string]time.Time{}
	for _, r := range results {
		s := w.states[r.Node]
		if s == nil || s.kind != r.Kind {
			s = &state{kind: r.Kind}
			w.states[r.Node] = s
		}
		before[r.Node] = s.since
		if s.see(now, r) && s.told {
			again = append(again, r)
		}
		if s.answered {
			judged++
		}
		if s.down {
			missed++
		}
	}
	alone := judged > 1 && missed == judged
	for _, r := range again {
		w.states[r.Node].told = false
		said = append(said, saying{r.Node, fmt.Sprintf("%s is reached by pods of %s again (%s), after %s", r.Node, w.Node, r.Kind, now.Sub(before[r.Node]).Round(time.Second)), true, false})
	}
	switch {
	case alone:
		repeated := !w.alone.IsZero()
		if !repeated {
			w.alone = w.states[results[0].Node].since
		}
		var names []string
		for _, r := range results {
			names = append(names, r.Node)
		}
		return append(said, saying{w.Node, fmt.Sprintf("pods of %s reach no other node (%s, since %s), neither %s: %s", w.Node, results[0].Kind, clock(w.alone), strings.Join(names, " nor "), remedy(results[0].Kind, w.Node)), false, repeated})
	case !w.alone.IsZero() && judged > missed:
		said = append(said, saying{w.Node, fmt.Sprintf("pods of %s reach other nodes again, after %s", w.Node, now.Sub(w.alone).Round(time.Second)), true, false})
		w.alone = time.Time{}
	}
	for _, r := range results {
		if s := w.states[r.Node]; s.down {
			repeated := s.told
			s.told = true
			said = append(said, saying{r.Node, fmt.Sprintf("%s is not reached by pods of %s (%s, since %s): %s", r.Node, w.Node, r.Kind, clock(s.since), remedy(r.Kind, r.Node)), false, repeated})
		}
	}
	return said
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

// remedy says where to look.
func remedy(k Kind, node string) string {
	what := "that its firewall, and those between the nodes, let packets of pods pass"
	switch k {
	case VXLAN:
		what = "that firewalls let VXLAN pass, UDP port 4789 or FelixConfiguration's vxlanPort"
	case IPIP:
		what = "that firewalls let IP protocol 4 pass"
	}
	return fmt.Sprintf("see on %s %s, and that no chain drops what is forwarded (nft list ruleset, iptables -S FORWARD, sysctl net.ipv4.ip_forward); node diagnose there names more", node, what)
}
