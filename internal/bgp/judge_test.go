package bgp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// picky has an objection to peers, and counts the paths that it has judged.
type picky struct {
	unwanted map[netip.Addr]bool
	asked    *int // shared by all
}

func (j picky) Objection(p Path) (o Objection) {
	if *j.asked++; j.unwanted[p.From] {
		o = Objection{Path: p, Why: fmt.Sprintf("it is from %s", p.From)}
	}
	return o
}

// feed has the paths that some peers announce, in random order of preference.
type feed map[netip.Prefix][]learned

// say changes a path, and returns its prefix.
func (f feed) say(random *rand.Rand) netip.Prefix {
	to := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(30)), 0}), 24)
	peer := netip.AddrFrom4([4]byte{10, 9, 0, byte(random.IntN(6))})
	paths := slices.DeleteFunc(slices.Clone(f[to]), func(l learned) bool { return l.From == peer })
	if random.IntN(3) > 0 {
		l := learned{Path: Path{Prefix: to, From: peer, NextHop: peer, MED: uint32(random.IntN(2))}}
		paths = slices.Insert(paths, random.IntN(len(paths)+1), l)
	}
	f[to] = paths
	return to
}

// paths returns the paths to some prefixes in the order of a table, nil: to all.
func (f feed) paths(names map[netip.Prefix]bool) (all []learned) {
	for to, paths := range f {
		if names == nil || names[to] {
			all = append(all, paths...)
		}
	}
	return inOrder(all)
}

// Whatever changes in the feed and in the inputs of the judge: a table that keeps its judgements chooses and refuses
// the same paths as one that is judged anew, and no path is judged twice.
func TestJudgedOnce(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 34))
		f, asked, changed := feed{}, 0, 0
		all := table{}
		unwanted, own := map[netip.Addr]bool{}, map[netip.Addr]bool{}
		for range 200 {
			names := map[netip.Prefix]bool{}
			for range random.IntN(4) {
				names[f.say(random)] = true
			}
			news := len(f.paths(names))
			if random.IntN(5) == 0 { // read the whole table
				now := f.paths(nil)
				all.recall(now)
				all.paths = now
			} else {
				some := f.paths(names)
				all.recall(some)
				all.paths = merge(all.paths, names, some)
			}
			if random.IntN(10) == 0 {
				unwanted = map[netip.Addr]bool{{}: true, netip.AddrFrom4([4]byte{10, 9, 0, byte(random.IntN(6))}): true}
				news = len(all.paths)
			}
			if random.IntN(10) == 0 { // paths hidden by one to this node may be judged now
				own = map[netip.Addr]bool{netip.AddrFrom4([4]byte{10, 9, 0, 5}): random.IntN(2) == 0}
				news = len(all.paths)
			}
			asked = 0
			all.by(picky{unwanted, &asked})
			chosen, refused := all.choose(own)
			if changed += asked; asked > news {
				t.Fatalf("seed %d: asked about %d paths of which %d are new", seed, asked, news)
			}
			anew := table{paths: f.paths(nil), judge: picky{unwanted, new(int)}}
			wantChosen, wantRefused := anew.choose(own)
			if !slices.Equal(chosen, wantChosen) || !slices.Equal(refused, wantRefused) {
				difftest.Want(t, "chosen", wantChosen, chosen)
				difftest.Want(t, "refused", wantRefused, refused)
				t.Fatalf("seed %d", seed)
			}
			asked = 0
			all.by(picky{unwanted, &asked})
			if all.choose(own); asked > 0 {
				t.Fatalf("seed %d: asked about %d paths although nothing is new", seed, asked)
			}
		}
		if changed < 200 {
			t.Errorf("seed %d: asked about %d paths in all: nothing was compared", seed, changed)
		}
	}
}
