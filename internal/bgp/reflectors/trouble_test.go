package reflectors

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// names of agents.
func namesOf(agents []*simAgent) string {
	var all []string
	for _, a := range agents {
		all = append(all, a.name)
	}
	return strings.Join(all, " ")
}

// alive are the reflectors whose agents run.
func (s *sim) standing() []*simAgent {
	return slices.DeleteFunc(s.reflecting(), func(a *simAgent) bool { return a == nil || !a.running })
}

// What happens to reflectors, how long until there are three again that all have sessions with, and how many Nodes are
// written meanwhile.
func TestTroubles(t *testing.T) {
	const noFault = 30 * time.Second
	for name, c := range map[string]struct {
		do     func(s *sim, r []*simAgent)
		within time.Duration
		writes int
	}{
		"an agent restarts":  {func(s *sim, r []*simAgent) { s.kill(r[0]); s.after(5*time.Second, func() { s.start(r[0]) }) }, noFault, 0},
		"a Node is deleted":  {func(s *sim, r []*simAgent) { s.deleteNode(r[0].name) }, 30 * time.Second, 1},
		"a node loses power": {func(s *sim, r []*simAgent) { s.powerOff(r[0]) }, 3 * time.Minute, 1},
		"all lose power": {func(s *sim, r []*simAgent) {
			for _, a := range r {
				s.powerOff(a)
			}
		}, 4 * time.Minute, 3},
		"all are deleted": {func(s *sim, r []*simAgent) {
			for _, a := range r {
				s.deleteNode(a.name)
			}
		}, time.Minute, 3},
		"an agent ends, its node is ready": {func(s *sim, r []*simAgent) { s.kill(r[0]) }, 7 * time.Minute, 1},
		"a node is made to leave":          {func(s *sim, r []*simAgent) { r[0].unwill = "cordoned"; s.wake(r[0]) }, 3 * time.Minute, 3},
		"an operator bars one": {func(s *sim, r []*simAgent) { s.api[r[0].name].Barred = true; s.changed = true },
			3 * time.Minute, 3},
		"a word is taken away": {func(s *sim, r []*simAgent) { s.api[r[0].name].Says = Nothing; s.changed = true }, time.Minute, 2},
		"a Node comes anew": {func(s *sim, r []*simAgent) {
			s.api[r[0].name].Says = Nothing
			s.changed = true
			s.kill(r[0])
			s.start(r[0])
		}, 2 * time.Minute, 3},
		"an AS number of its own": {func(s *sim, r []*simAgent) { s.api[r[0].name].refusal = "its AS number"; s.changed = true }, time.Minute, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := grown(t, 7, 40, 4)
			s.run(time.Minute)
			r := s.standing()
			before := s.writes
			c.do(s, r)
			s.run(2 * time.Second)
			took := s.settle(t, c.within)
			s.run(2 * time.Minute)
			if wrote := s.writes - before; wrote > c.writes {
				t.Errorf("%d Nodes were written, want at most %d:\n%s", wrote, c.writes, s.tail(20))
			}
			s.quiet(t, 10*time.Minute)
			t.Logf("settled after %v: %s, before that %s; Nodes read: %d", took, namesOf(s.standing()), namesOf(r), s.asks)
		})
	}
}

// A zone is lost with its reflector and all that would come next in it; then it is back.
func TestZone(t *testing.T) {
	s := grown(t, 9, 60, 3)
	s.run(time.Minute)
	lost := s.standing()[0]
	var zone []*simAgent
	for _, a := range s.members() {
		if s.api[a.name].Zone == s.api[lost.name].Zone {
			zone = append(zone, a)
		}
	}
	for _, a := range zone {
		s.powerOff(a)
	}
	took, ok := s.runUntil(5*time.Minute, func() bool { return len(s.standing()) == 3 })
	if !ok {
		t.Fatalf("reflectors: %s\n%s", namesOf(s.standing()), s.tail(10))
	}
	t.Logf("a reflector in another zone after %v, Nodes read: %d", took, s.asks)
	s.run(5 * time.Minute)
	for _, a := range zone {
		s.powerOn(a)
	}
	s.settle(t, 10*time.Minute)
	s.quiet(t, 10*time.Minute)
}

// A network that is cut has reflectors on the side that is left without; they go when it is whole again.
func TestPartition(t *testing.T) {
	s := grown(t, 11, 40, 2)
	s.run(time.Minute)
	side := []string{}
	for i, a := range s.members() {
		if i%3 == 0 && !slices.Contains(s.standing(), a) {
			side = append(side, a.name)
		}
	}
	before := s.writes
	s.split(side, 1)
	s.run(20 * time.Minute)
	t.Logf("reflectors while it is cut: %s; %d Nodes were written, %d read", namesOf(s.standing()), s.writes-before, s.asks)
	if len(s.standing()) > 8 {
		t.Errorf("%d reflectors", len(s.standing()))
	}
	s.split(side, 0)
	s.settle(t, 10*time.Minute)
	s.quiet(t, 10*time.Minute)
}

// Anything may happen, together and again; when it is over, all agree, and nobody writes any more.
func TestAnything(t *testing.T) {
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := grown(t, seed, 24+int(seed%4)*12, 1+int(seed%4))
			for range 40 {
				s.trouble()
				s.run(s.upTo(40 * time.Second))
			}
			s.heal()
			s.settle(t, 15*time.Minute)
			s.run(5 * time.Minute) // what was begun comes to its end
			before := s.writes
			s.quiet(t, 20*time.Minute)
			t.Logf("seed %d: %d nodes, %d writes and %d reads by the nodes in %v of trouble", seed, len(s.api), before, s.asks,
				s.now.Sub(s.begun).Round(time.Second))
		})
	}
}

// trouble is one thing that happens.
func (s *sim) trouble() {
	some := s.pick(1 + s.rng.IntN(4))
	if s.rng.IntN(2) == 0 {
		some = append(some, s.standing()...)
		s.rng.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		some = some[:min(len(some), 1+s.rng.IntN(3))]
	}
	for _, a := range some {
		if s.api[a.name] == nil {
			continue
		}
		switch s.rng.IntN(11) {
		case 0, 1:
			s.kill(a)
			s.after(s.upTo(time.Minute), func() { s.startAgain(a) })
		case 2:
			s.powerOff(a)
			s.after(s.upTo(5*time.Minute), func() {
				if s.api[a.name] != nil {
					s.powerOn(a)
				}
			})
		case 3:
			if len(s.api) > small.Above {
				s.deleteNode(a.name)
			}
		case 4:
			s.serial++
			s.addNode(fmt.Sprintf("new-%d", s.serial), fmt.Sprintf("zone-%d", s.rng.IntN(3)))
		case 5:
			a.unwill = "cordoned"
			s.wake(a)
			s.after(s.upTo(5*time.Minute), func() { a.unwill = ""; s.wake(a) })
		case 6:
			s.api[a.name].Barred = !s.api[a.name].Barred
			s.changed = true
		case 7:
			a.blind = true
			s.after(s.upTo(2*time.Minute), func() { s.open(a) })
		case 8:
			s.split([]string{a.name}, 1+s.rng.IntN(2))
		case 9:
			s.split([]string{a.name}, 0)
		case 10:
			s.api[a.name].Says = []Word{Nothing, Client, Reflector}[s.rng.IntN(3)] // somebody edits it
			s.changed = true
		}
	}
}

func (s *sim) startAgain(a *simAgent) {
	if a.alive && !a.running && s.api[a.name] != nil {
		s.start(a)
	}
}

func (s *sim) open(a *simAgent) {
	a.blind = false
	s.see(a)
	s.wake(a)
}

// heal puts everything right again.
func (s *sim) heal() {
	s.split(s.order, 0)
	for _, name := range s.order {
		a := s.agents[name]
		a.unwill = ""
		s.open(a)
		r := s.api[name]
		if r == nil {
			continue
		}
		r.Barred = false
		if !a.alive {
			s.powerOn(a)
		}
		s.startAgain(a)
	}
	s.changed = true
}
