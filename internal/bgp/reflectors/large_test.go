package reflectors

import (
	"fmt"
	"testing"
	"time"
)

// figure is what one size of a cluster has come to.
type figure struct {
	Nodes                   int
	Elected, Replaced, All  float64 // seconds until all agree: from the start, after one reflector's death, after all reflectors'
	Client, Reflector       int     // sessions of each
	Writes, Reads, Surplus  int     // of Nodes; reflectors that were too many
	Decisions               int
	Took                    float64 // seconds, of the simulation
	ReplacedReads, AllReads int
}

// Thousands of nodes that start within seconds agree as few do: each writes its Node once, and those that reflect
// twice.
func TestLarge(t *testing.T) {
	sizes := []int{1000, 5000}
	if testing.Short() {
		sizes = []int{500}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := large(t, n)
			t.Logf("%+v", f)
			if f.Writes > n+3+2*f.Surplus || f.Surplus > 2 {
				t.Errorf("%d Nodes were written, %d reflectors too many", f.Writes, f.Surplus)
			}
			if f.Client != 3 || f.Reflector != n-1 {
				t.Errorf("a client has %d sessions, a reflector %d", f.Client, f.Reflector)
			}
		})
	}
}

// The defaults of the settings.
const (
	defaultAbove = 100
	defaultCount = 3
)

func large(t *testing.T, nodes int) figure {
	begun := time.Now()
	s := newSim(uint64(nodes), Settings{Above: defaultAbove, Count: defaultCount})
	s.tick = time.Second
	f := figure{Nodes: nodes}
	// Nodes come as an API server can register them, some hundred a second.
	for i := range nodes {
		at := time.Duration(i) * time.Second / 300
		s.after(at, func() { s.addNode(fmt.Sprintf("node-%d", i), fmt.Sprintf("zone-%d", i%3)) })
	}
	s.run(time.Duration(nodes) * time.Second / 300)
	f.Elected = s.settle(t, 10*time.Minute).Seconds()
	s.run(2 * time.Minute)
	for _, word := range s.words {
		if word == Reflector {
			f.Surplus++
		}
	}
	f.Surplus -= defaultCount
	f.Writes, f.Reads = s.writes, s.asks
	standing := s.standing()
	f.Reflector = len(s.wanted(standing[0]))
	for _, a := range s.pick(50) {
		if a.plan.Role == AsClient {
			f.Client = max(f.Client, len(s.wanted(a)))
		}
	}
	s.quiet(t, 2*time.Minute)

	s.kill(standing[0])
	s.api[standing[0].name].deadAt = s.now.Add(-simNotReady)
	f.Replaced = s.missed(t)
	f.ReplacedReads = s.asks - f.Reads
	for _, a := range s.standing() {
		s.kill(a)
		s.api[a.name].deadAt = s.now.Add(-simNotReady)
	}
	f.All = s.missed(t)
	f.AllReads = s.asks - f.ReplacedReads - f.Reads
	f.Decisions, f.Took = s.decisions, time.Since(begun).Seconds()
	return f
}

// missed returns how many seconds it takes until there are three again, and all have sessions with them.
func (s *sim) missed(t *testing.T) float64 {
	t.Helper()
	took, ok := s.runUntil(5*time.Minute, func() bool { return len(s.standing()) >= defaultCount && s.agreed() == "" })
	if !ok {
		t.Fatalf("%s\n%s", s.agreed(), s.tail(10))
	}
	return took.Seconds()
}
