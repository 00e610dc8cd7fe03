package flows

import (
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
)

// table aggregates an interval's connections. It has room for most Keys; further connections are added up by direction,
// verdict and protocol alone.
type table struct {
	most int
	of   map[Key]*Counts
}

func newTable(most int) *table { return &table{most: most, of: map[Key]*Counts{}} }

// counts returns the counts for a Key; crowded: the Key has no counts of its own.
func (t *table) counts(k *Key) (c *Counts, crowded bool) {
	if c := t.of[*k]; c != nil {
		return c, false
	}
	if len(t.of) < t.most {
		c := &Counts{}
		t.of[*k] = c
		return c, false
	}
	rest := Key{Direction: k.Direction, Allow: k.Allow, Protocol: k.Protocol, Source: End{Type: TypeNetwork, Name: other},
		Dest: End{Type: TypeNetwork, Name: other}}
	if c = t.of[rest]; c == nil {
		c = &Counts{}
		t.of[rest] = c // at most 2 · 2 · 256 Keys
	}
	return c, true
}

// take empties the table.
func (t *table) take() map[Key]*Counts {
	all := t.of
	t.of = make(map[Key]*Counts, min(len(all), t.most))
	return all
}

// ring keeps the newest records: at most most of them, and at most mostBytes.
type ring struct {
	most, mostBytes int
	records         []stored
	first           uint64 // number of the first one
	bytes           int
}

func (r *ring) add(s stored) {
	r.records = append(r.records, s)
	r.bytes += s.size()
	drop := 0
	for len(r.records)-drop > r.most || r.bytes > r.mostBytes && drop < len(r.records) {
		r.bytes -= r.records[drop].size()
		r.records[drop] = stored{}
		drop++
	}
	r.records, r.first = r.records[drop:], r.first+uint64(drop)
}

// after returns up to most records from a number on, and the number after the last of them.
func (r *ring) after(number uint64, most int) (found []stored, next uint64) {
	end := r.first + uint64(len(r.records))
	if number > end { // the number is from an earlier agent
		number = r.first
	}
	number = max(number, r.first)
	found = r.records[number-r.first:]
	found = found[:min(len(found), most)]
	return found, number + uint64(len(found))
}

// live has the connections that have begun, with their last counts. Connections beyond its room are counted when they
// end.
type live struct {
	most int
	of   map[liveKey]*liveFlow
}

// liveKey distinguishes connections. The ID alone is a digest, or in old kernels an address of the kernel's memory.
type liveKey struct {
	id               uint32
	sourcePort, port uint16
}

type liveFlow struct {
	sides          [2]*label // by direction; nil: the end is no pod of this node
	sent, received netlinkx.Count
	interval       uint32 // of the last count
	listed         uint32 // the last list that had it
}

func keyOf(f *netlinkx.TrackedFlow) liveKey { return liveKey{f.ID, f.SourcePort, f.Port} }

// label describes a connection at its beginning, from one of its ends.
type label struct {
	Key
	// staged is the staged policy that changes the decision; without a Name there is none.
	staged policy.ID
	// counts are the counts of the interval, nil at first; crowded: many Keys share them.
	counts   *Counts
	interval uint32
	crowded  bool
	totals   []*uint64
}

// grown returns the packets and bytes since before. If a counter started again, before is ignored.
func grown(before, now netlinkx.Count) netlinkx.Count {
	if now.Packets < before.Packets || now.Bytes < before.Bytes {
		return now
	}
	return netlinkx.Count{Packets: now.Packets - before.Packets, Bytes: now.Bytes - before.Bytes}
}

func add(to *netlinkx.Count, more netlinkx.Count) {
	to.Packets += more.Packets
	to.Bytes += more.Bytes
}
