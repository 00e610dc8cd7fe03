package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// sets numbers the sets of pods that programs look up.
type sets struct {
	terms *terms
	// digests of the sets' definitions; ids is filled when all are known.
	digests []digest
	ids     []SetID
	numbers map[digest]int32
	byTerm  [][]int32 // union sets, by term
	stages  map[digest]*stage
	ordered []*stage // in the order of creation
}

func newSets(t *terms) *sets {
	return &sets{terms: t, numbers: map[digest]int32{}, stages: map[digest]*stage{}}
}

// number returns the number of the set with the definition; fresh: the set is new.
func (s *sets) number(definition digest) (number int32, fresh bool) {
	if n, ok := s.numbers[definition]; ok {
		return n, false
	}
	n := int32(len(s.digests))
	s.numbers[definition] = n
	s.digests = append(s.digests, definition)
	return n, true
}

// union returns the set of pods that match one of the terms.
func (s *sets) union(ids []int32) int32 {
	n, fresh := s.number(sha256.Sum256(s.terms.appendDigests([]byte("union"), ids)))
	for _, id := range ids {
		for len(s.byTerm) <= int(id) {
			s.byTerm = append(s.byTerm, nil)
		}
		if fresh {
			s.byTerm[id] = append(s.byTerm[id], n)
		}
	}
	return n
}

// appendDigests appends the digests of the terms in an order that does not depend on their numbers.
func (t *terms) appendDigests(b []byte, ids []int32) []byte {
	all := make([]digest, len(ids))
	for i, id := range ids {
		all[i] = t.digests[id]
	}
	slices.SortFunc(all, func(a, b digest) int { return slices.Compare(a[:], b[:]) })
	b = binary.BigEndian.AppendUint32(b, uint32(len(all)))
	for _, d := range all {
		b = append(b, d[:]...)
	}
	return b
}

// stage is a list of rules, of which the first that matches a pod decides, with the sets of pods by value. Value 0 is
// the verdict on pods that no rule matches.
type stage struct {
	rules []stageRule
	// whole: the sets have all pods of their value. Otherwise they lack pods with an address that gets the same value by
	// networks alone.
	whole bool
	// any: an address that several pods may have, certain for none, matches as one of them, see Segment.
	any  bool
	sets map[uint8]int32
	// nets are numbers of networks by value, from 1 on; nil: not made yet. Lists of many ports share them, so that a
	// namespace's ranges of ports do not multiply the cost of an administrator's networks.
	nets []int32
}

type stageRule struct {
	terms []int32
	nets  int32 // they match any address
	outer int32 // nets, and networks that match only addresses of no pod
	value uint8
}

// foreign reports whether some networks of the rule match only addresses of no pod.
func (r *stageRule) foreign() bool { return r.outer != r.nets }

// stage returns the stage of the rules. Equal rules share their sets.
func (s *sets) stage(rules []stageRule, whole, any bool) *stage {
	b := []byte{'s', boolByte(whole) | boolByte(any)<<1}
	for _, r := range rules {
		b = s.terms.appendDigests(append(b, r.value, boolByte(r.nets != none), boolByte(r.foreign())), r.terms)
		if r.nets != none {
			b = appendText(b, s.terms.netKeys[r.nets])
		}
		if r.foreign() {
			b = appendText(b, s.terms.netKeys[r.outer])
		}
	}
	definition := sha256.Sum256(b)
	if st := s.stages[definition]; st != nil {
		return st
	}
	st := &stage{rules: rules, whole: whole, any: any, sets: map[uint8]int32{}}
	for _, value := range st.values() {
		st.sets[value], _ = s.number(sha256.Sum256(append(definition[:], value)))
	}
	s.stages[definition] = st
	s.ordered = append(s.ordered, st)
	return st
}

// values returns the values that need sets, ascending, but 0 comes last.
func (st *stage) values() (values []uint8) {
	foreign := false
	for _, r := range st.rules {
		if r.value != 0 && (len(r.terms) > 0 || (st.whole || foreign) && r.nets != none) {
			values = append(values, r.value)
		}
		foreign = foreign || r.foreign()
	}
	slices.Sort(values)
	values = slices.Compact(values)
	if spares(st.rules) {
		values = append(values, 0)
	}
	return values
}

// spares reports whether a set must hold pods that a rule's networks must not match: rules of value 0 before it match
// them, or its networks do not count for pods.
func spares(rules []stageRule) bool {
	spared, foreign := false, false
	for _, r := range rules {
		if r.value != 0 && r.outer != none && (spared || r.foreign()) {
			return true
		}
		spared = spared || r.value == 0 && (len(r.terms) > 0 || foreign && r.nets != none)
		foreign = foreign || r.foreign()
	}
	return false
}

// member returns the set of an address, by the terms that its pods match, and the networks that contain it. unsure: it
// may also be no pod's.
func (st *stage) member(inside []bool, unsure bool, matches ...match) (set int32, ok bool) {
	value, byNets := st.decide(matches[0].has, inside)
	both := stricter
	if st.any {
		both = func(a, b uint8) uint8 { return max(a, b) }
	}
	for _, m := range matches[1:] {
		other, _ := st.decide(m.has, inside)
		value = both(value, other)
	}
	if unsure {
		value = both(value, byNets)
	}
	if value == byNets && (!st.whole || value == 0) {
		return none, false
	}
	set, ok = st.sets[value]
	return set, ok
}

// stricter returns the value for an address of two possible values: a denial first (of two the lower value), then 0,
// which leaves it to the following rules, then 1, which allows.
func stricter(a, b uint8) uint8 {
	if max(a, b) <= 1 {
		return min(a, b)
	}
	if min(a, b) <= 1 {
		return max(a, b)
	}
	return min(a, b)
}

// decide returns the value of a pod, and the value of an address of no pod inside the same networks.
func (st *stage) decide(matched, inside []bool) (value, byNets uint8) {
	decided, covered := false, false
	for i := range st.rules {
		r := &st.rules[i]
		if !decided && (r.nets != none && inside[r.nets] || anyOf(r.terms, matched)) {
			value, decided = r.value, true
		}
		if !covered && r.outer != none && inside[r.outer] {
			byNets, covered = r.value, true
		}
		if decided && covered {
			break
		}
	}
	return value, byNets
}

// anyOf is slices.ContainsFunc without a call for each term: each class of pods has a term for each rule.
func anyOf(terms []int32, matched []bool) bool {
	for _, id := range terms {
		if matched[id] {
			return true
		}
	}
	return false
}

// assign sets the ids of the sets: a part of the digest. On a collision the order of the digests decides.
func (s *sets) assign() {
	order := make([]int, len(s.digests))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return slices.Compare(s.digests[a][:], s.digests[b][:]) })
	s.ids = make([]SetID, len(s.digests))
	taken := map[SetID]bool{0: true}
	for _, i := range order {
		d := s.digests[i]
		for s.ids[i] = idOf(d); taken[s.ids[i]]; s.ids[i] = idOf(d) {
			d = sha256.Sum256(d[:])
		}
		taken[s.ids[i]] = true
	}
}

func idOf(d digest) SetID { return SetID(binary.BigEndian.Uint32(d[:4])) }

// match holds the terms that a pod matches with an address.
type match struct {
	ids []int32
	has []bool // by id
}

// match returns the terms that a pod matches with an address inside networks. unsure: the address may be another pod's.
func (t *terms) match(pod *Pod, byLabels []int32, inside []bool, unsure bool) match {
	m := match{has: make([]bool, len(t.all))}
	for _, id := range append(t.ofAddress(pod, inside, unsure), byLabels...) {
		if x := &t.all[id]; x.nets == none || inside[x.nets] {
			m.ids, m.has[id] = append(m.ids, id), true
		}
	}
	return m
}

// of returns the ids, ascending, of the sets of an address inside networks, by the terms that its pods match. If
// several pods may have it, or no pod if it is unsure, it is denied what one is, and allowed what all are.
func (s *sets) of(inside []bool, unsure bool, matches ...match) []SetID {
	var ids []SetID
	for _, id := range matches[0].ids {
		if int(id) < len(s.byTerm) { // sets of Allow rules: their terms match no unsure address
			for _, n := range s.byTerm[id] {
				ids = append(ids, s.ids[n])
			}
		}
	}
	for _, st := range s.ordered {
		if n, ok := st.member(inside, unsure, matches...); ok {
			ids = append(ids, s.ids[n])
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// networks returns the networks that the sets depend on.
func (s *sets) networks() (nets []int32) {
	for i := range s.terms.all {
		nets = append(nets, s.terms.all[i].nets)
	}
	for _, st := range s.ordered {
		for _, r := range st.rules {
			if len(st.sets) > 0 {
				nets = append(nets, r.nets, r.outer)
			}
		}
	}
	slices.Sort(nets)
	return slices.DeleteFunc(slices.Compact(nets), func(id int32) bool { return id == none })
}

// cuts returns the addresses at which one of the networks begins or has ended, ascending.
func (t *terms) cuts(nets []int32) []netip.Addr {
	cuts := []netip.Addr{netip.IPv6Unspecified()}
	for _, id := range nets {
		for _, r := range t.nets[id] {
			cuts = append(cuts, r.First)
			if end := r.Last.Next(); end.IsValid() {
				cuts = append(cuts, end)
			}
		}
	}
	slices.SortFunc(cuts, netip.Addr.Compare)
	return slices.Compact(cuts)
}

// inside reports, by network number, which of the networks contain an address.
func (t *terms) inside(nets []int32, addr netip.Addr) []bool {
	inside := make([]bool, len(t.nets))
	for _, id := range nets {
		inside[id] = t.nets[id].contains(addr)
	}
	return inside
}
