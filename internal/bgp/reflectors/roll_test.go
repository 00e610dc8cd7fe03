package reflectors

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// rollOf is a roll of some nodes with random zones and words.
func rollOf(rng *rand.Rand, count, zones int) *Roll {
	nodes := make([]Node, count)
	for i := range nodes {
		n := Node{Name: fmt.Sprint("n", rng.IntN(1_000_000), "-", i), Zone: fmt.Sprint(rng.IntN(zones)), Says: Client, Families: IPv4}
		if rng.IntN(4) == 0 {
			n.Says = []Word{Reflector, Reflector, Retiring}[rng.IntN(3)]
		}
		n.Barred = rng.IntN(6) == 0
		nodes[i] = n
	}
	return NewRoll(nodes)
}

// Who was chosen is chosen again, zones are used evenly, and what a roll is made of may come in any order.
func TestSeats(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		zones := 1 + rng.IntN(5)
		r := rollOf(rng, 1+rng.IntN(30), zones)
		var of []int
		for i := range r.nodes {
			if rng.IntN(2) == 0 {
				of = append(of, i)
			}
		}
		count := 1 + rng.IntN(5)
		seats := r.seats(count, of)
		if len(seats) != min(count, len(of)) {
			t.Fatalf("seed %d: %d seats of %d for %d", seed, len(seats), count, len(of))
		}
		again := r.seats(count, seats)
		slices.Sort(seats)
		slices.Sort(again)
		if !slices.Equal(seats, again) {
			t.Fatalf("seed %d: %v are chosen of %v", seed, again, seats)
		}
		used, there := r.used(seats), r.used(of)
		for a := range used {
			for b := range used {
				if used[a] > used[b]+1 && there[b] > used[b] {
					t.Fatalf("seed %d: zones have %v of %v", seed, used, there)
				}
			}
		}
		shuffled := slices.Clone(r.nodes)
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if !slices.Equal(NewRoll(shuffled).nodes, r.nodes) {
			t.Fatalf("seed %d: the order depends on who comes first", seed)
		}
	}
}

// Each that may become a reflector has a place of his own, by zones and by order, and the first is where zones want
// him.
func TestPlaces(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		r := rollOf(rng, 2+rng.IntN(40), 1+rng.IntN(4))
		var sitting []int
		for _, i := range r.reflecting {
			if r.fit(i) && rng.IntN(2) == 0 {
				sitting = append(sitting, i)
			}
		}
		spread, plain := map[int]bool{}, map[int]bool{}
		candidates := 0
		for i := range r.nodes {
			if !r.fit(i) || r.nodes[i].Says.reflects() {
				continue
			}
			candidates++
			p := r.place(i, sitting)
			if spread[p.spread] || plain[p.plain] {
				t.Fatalf("seed %d: two have place %+v", seed, p)
			}
			spread[p.spread], plain[p.plain] = true, true
			used := r.used(sitting)
			for _, other := range r.zone {
				if p.spread == 0 && used[r.zone[i]] > used[other] && free(r, other) {
					t.Fatalf("seed %d: the first is in a zone with %d, another has %d", seed, used[r.zone[i]], used[other])
				}
			}
		}
		for place := range candidates {
			if !spread[place] || !plain[place] {
				t.Fatalf("seed %d: nobody has place %d of %d", seed, place, candidates)
			}
		}
	}
}

// free reports whether a zone has somebody to ask.
func free(r *Roll, zone int) bool {
	for i := range r.nodes {
		if r.zone[i] == zone && r.fit(i) && !r.nodes[i].Says.reflects() {
			return true
		}
	}
	return false
}

// A family that most do not have is no reason to refuse a reflector, nor to give up the mesh's sessions in it.
func TestFamilies(t *testing.T) {
	nodes := []Node{{Name: "dual-a", Says: Client, Families: IPv4 | IPv6}, {Name: "dual-b", Says: Client, Families: IPv4 | IPv6}}
	for i := range 10 {
		nodes = append(nodes, Node{Name: fmt.Sprint("v4-", i), Says: Client, Families: IPv4})
	}
	nodes[5].Says, nodes[6].Says, nodes[7].Says = Reflector, Reflector, Reflector
	var s State
	p := s.Decide(Settings{Above: 4, Count: 3}, View{Self: "dual-a", Roll: NewRoll(nodes)}, time.Now())
	if !p.On || p.Role != AsClient || len(p.Reflectors) != 3 {
		t.Fatalf("%+v", p)
	}
	if !p.KeepMesh("dual-b") || p.KeepMesh("v4-0") || !p.KeepMesh("a stranger") {
		t.Errorf("sessions of the mesh: dual-b %v, v4-0 %v, a stranger %v", p.KeepMesh("dual-b"), p.KeepMesh("v4-0"), p.KeepMesh("a stranger"))
	}
	for i := range nodes {
		nodes[i].Families = IPv4 | IPv6
	}
	nodes[0].Families = IPv4
	r := NewRoll(nodes)
	if r.fit(r.index["dual-a"]) || !r.fit(r.index["dual-b"]) {
		t.Error("a node without the family of all others may reflect, or one with it may not")
	}
}

// Operators' own reflectors keep nodes from agreeing on others, and end nothing that is agreed on.
func TestManual(t *testing.T) {
	nodes := make([]Node, 10)
	for i := range nodes {
		nodes[i] = Node{Name: fmt.Sprint(i), Says: Client, Families: IPv4}
	}
	var s State
	v := View{Self: "1", Roll: NewRoll(nodes), Manual: "rr"}
	p := s.Decide(Settings{Above: 4, Count: 3}, v, time.Now())
	if p.On || p.Problem == nil || p.Annotate != Client || !p.KeepMesh("2") {
		t.Errorf("%+v", p)
	}
	nodes[2].Says = Reflector
	v.Roll = NewRoll(nodes)
	if p = s.Decide(Settings{Above: 4, Count: 3}, v, time.Now()); !p.On || p.Problem == nil {
		t.Errorf("%+v", p)
	}
	v.Refusal = "the mesh is off"
	if p = s.Decide(Settings{Above: 4, Count: 3}, v, time.Now()); p.Role != NoRole || p.Annotate != Nothing || !p.KeepMesh("2") {
		t.Errorf("%+v", p)
	}
}

// Words that nobody knows take no part.
func TestWords(t *testing.T) {
	r := NewRoll([]Node{{Name: "a", Says: "emperor"}, {Name: "b", Says: Retiring}, {Name: "c", Says: Client}})
	if r.Len() != 2 || r.Has("a") || len(r.Reflecting()) != 1 {
		t.Errorf("%+v", r)
	}
}

func BenchmarkDecide(b *testing.B) {
	nodes := make([]Node, 5000)
	for i := range nodes {
		nodes[i] = Node{Name: fmt.Sprint("node-", i), Zone: fmt.Sprint(i % 3), Says: Client, Families: IPv4}
	}
	roll := NewRoll(nodes)
	b.Run("roll", func(b *testing.B) {
		for b.Loop() {
			NewRoll(nodes)
		}
	})
	b.Run("vacancy", func(b *testing.B) {
		var s State
		for b.Loop() {
			s.Decide(Settings{Above: 100, Count: 3}, View{Self: "node-7", Roll: roll}, time.Unix(0, 0))
		}
	})
}
