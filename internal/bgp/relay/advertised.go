package relay

import (
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// index numbers the prefixes that are announced to peers, so that thousands of sets of prefixes are bitmaps.
type index struct {
	mu    sync.Mutex // guards the rest
	ids   map[netip.Prefix]uint32
	names []netip.Prefix // by number
	users []uint32       // by number
	free  []uint32
}

func newIndex() *index { return &index{ids: make(map[netip.Prefix]uint32)} }

// number returns the number of a prefix; not ok: it has none, as it was announced to no peer.
func (x *index) number(p netip.Prefix) (id uint32, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, ok = x.ids[p]
	return id, ok
}

// all returns the prefixes that have a number, in ascending order.
func (x *index) all() []netip.Prefix {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.SortedFunc(maps.Keys(x.ids), netip.Prefix.Compare)
}

// use returns the number of a prefix, which stays until drop was called as often as use.
func (x *index) use(p netip.Prefix) uint32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, ok := x.ids[p]
	switch n := len(x.free); {
	case ok:
	case n > 0:
		id, x.free = x.free[n-1], x.free[:n-1]
		x.names[id], x.ids[p] = p, id
	default:
		id = uint32(len(x.names))
		x.names, x.users = append(x.names, p), append(x.users, 0)
		x.ids[p] = id
	}
	x.users[id]++
	return id
}

func (x *index) drop(id uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.users[id]--; x.users[id] == 0 {
		delete(x.ids, x.names[id])
		x.free = append(x.free, id)
	}
}

// advertised is the set of prefixes announced to one peer in this session. It belongs to one goroutine, except count.
type advertised struct {
	index *index
	set   []uint64
	count atomic.Int64
}

func (s *advertised) has(id uint32) bool {
	word := int(id / 64)
	return word < len(s.set) && s.set[word]&(1<<(id%64)) != 0
}

// add notes that a prefix is announced.
func (s *advertised) add(p netip.Prefix) {
	if id, ok := s.index.number(p); ok && s.has(id) {
		return
	}
	id := s.index.use(p)
	for int(id/64) >= len(s.set) {
		s.set = append(s.set, 0)
	}
	s.set[id/64] |= 1 << (id % 64)
	s.count.Add(1)
}

// remove notes that a prefix is withdrawn, and reports whether it was announced.
func (s *advertised) remove(p netip.Prefix) bool {
	id, ok := s.index.number(p)
	if !ok || !s.has(id) {
		return false
	}
	s.set[id/64] &^= 1 << (id % 64)
	s.index.drop(id)
	s.count.Add(-1)
	return true
}

// forget drops all.
func (s *advertised) forget() {
	for word, set := range s.set {
		for ; set != 0; set &= set - 1 {
			s.index.drop(uint32(64*word + bits.TrailingZeros64(set)))
		}
	}
	s.set = nil
	s.count.Store(0)
}
