package reflectors

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var seeds = flag.Int("seeds", 8, "how many clusters with troubles of their own are simulated")

var small = Settings{Above: 20, Count: 3}

// grown is a cluster that has come to rest with reflectors.
func grown(t *testing.T, seed uint64, nodes, zones int) *sim {
	t.Helper()
	s := newSim(seed, small)
	for i := range nodes {
		s.addNode(fmt.Sprintf("node-%d", i), fmt.Sprintf("zone-%d", i%zones))
	}
	s.settle(t, 5*time.Minute)
	return s
}

// settle waits until all agree, and have for a while.
func (s *sim) settle(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	took, ok := s.runUntil(limit, func() bool { return s.agreed() == "" })
	if !ok {
		t.Fatalf("not within %v: %s\n%s", limit, s.agreed(), s.tail(40))
	}
	return took
}

// quiet lets a settled cluster be, and fails if anybody writes.
func (s *sim) quiet(t *testing.T, span time.Duration) {
	t.Helper()
	before := s.writes
	s.run(span)
	if s.writes != before {
		t.Errorf("%d writes in %v in which nothing happened:\n%s", s.writes-before, span, s.tail(20))
	}
	if wrong := s.agreed(); wrong != "" {
		t.Errorf("what nodes had agreed on did not last: %s\n%s", wrong, s.tail(20))
	}
}

// A cluster agrees once, on one reflector in each zone, and then rests.
func TestAgreement(t *testing.T) {
	s := grown(t, 1, 30, 3)
	s.quiet(t, time.Hour)
	if s.writes > 30+3 {
		t.Errorf("%d writes for 30 nodes:\n%s", s.writes, s.tail(50))
	}
}

// A mesh becomes reflectors: at no moment does a node have to go without BGP's word on another.
func TestMeshToReflectors(t *testing.T) {
	s := newSim(2, small)
	for i := range small.Above - 1 {
		s.addNode(fmt.Sprintf("node-%d", i), fmt.Sprintf("zone-%d", i%3))
	}
	s.run(time.Minute)
	s.complete(t)
	s.addNode("last", "zone-0")
	s.run(5 * time.Second)
	var without time.Duration
	_, ok := s.runUntil(5*time.Minute, func() bool {
		without += time.Duration(s.ignorant()) * simTick
		return s.agreed() == ""
	})
	if !ok || without != 0 {
		t.Errorf("agreed: %q; pairs of nodes were without BGP's word for %v in all\n%s", s.agreed(), without, s.tail(30))
	}
	s.complete(t)
	s.quiet(t, 10*time.Minute)
}

// ignorant counts pairs of which one has no path of BGP's to the other, among nodes that are past their start.
func (s *sim) ignorant() (count int) {
	for _, a := range s.members() {
		for _, b := range s.members() {
			if a != b && a.name != "last" && b.name != "last" && !s.knows(a, b.name) {
				count++
			}
		}
	}
	return count
}

func (s *sim) complete(t *testing.T) {
	t.Helper()
	if n := s.ignorant(); n > 0 {
		t.Errorf("%d pairs of nodes are without BGP's word", n)
	}
}

// A cluster that becomes small has its mesh before the reflectors go.
func TestReflectorsToMesh(t *testing.T) {
	s := grown(t, 3, 30, 3)
	sitting := s.reflecting()
	for i := 0; len(s.api) > small.below(); i++ {
		name := fmt.Sprintf("node-%d", i)
		if a := s.agents[name]; a.plan.Role == AsClient {
			s.deleteNode(name)
		}
	}
	without := 0
	_, ok := s.runUntil(10*time.Minute, func() bool {
		without += s.ignorant()
		return s.agreed() == ""
	})
	if !ok || without > 0 {
		t.Errorf("%s, %d without BGP's word, reflectors were %d\n%s", s.agreed(), without, len(sitting), s.tail(30))
	}
	s.quiet(t, 10*time.Minute)
}
