package flows

import (
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
)

// table aggregates an interval's connections. It has room for most Keys; what comes then is added up by direction,
// verdict and protocol alone.
type table struct {
	most int
	of   map[Key]*Counts
}

func newTable(most int) *table { return &table{most: most, of: map[Key]*Counts{}} }

// counts are those of a Key; crowded: the Key has none of its own.
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
		t.of[rest] = c // at most 2 · 2 · 256 of these
	}
	return c, true
}

// take empties the table.
func (t *table) take() map[Key]*Counts {
	all := t.of
	t.of = make(map[Key]*Counts, min(len(all), t.most))
	return all
}

// ring keeps the newest records: at most most, and as many as take mostBytes.
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

// after returns up to most records from a number on, and the number behind the last of them.
func (r *ring) after(number uint64, most int) (found []stored, next uint64) {
	end := r.first + uint64(len(r.records))
	if number > end { // of an agent before this one
		number = r.first
	}
	number = max(number, r.first)
	found = r.records[number-r.first:]
	found = found[:min(len(found), most)]
	return found, number + uint64(len(found))
}

// live are connections that have begun, as they were counted last. Connections beyond its room are counted when they
// end.
type live struct {
	most int
	of   map[liveKey]*liveFlow
}

// liveKey tells connections apart: IDs are digests, and addresses of the kernel's memory in old ones.
type liveKey struct {
	id               uint32
	sourcePort, port uint16
}

type liveFlow struct {
	sides          [2]*label // by direction; nil: the end is no pod of this node
	sent, received netlinkx.Count
	interval       uint32 // in which it was counted last
	listed         uint32 // the list that it was last in
}

func keyOf(f *netlinkx.TrackedFlow) liveKey { return liveKey{f.ID, f.SourcePort, f.Port} }

// label describes a connection at its beginning, as one of its ends sees it.
type label struct {
	Key
	// staged is the staged policy because of which another decides; without a Name there is none.
	staged policy.ID
	// counts are those of the interval, once there are some; crowded: they are of many Keys.
	counts   *Counts
	interval uint32
	crowded  bool
	totals   []*uint64
}

// grown returns the packets and bytes since before. A counter that begins anew has nothing before it.
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
