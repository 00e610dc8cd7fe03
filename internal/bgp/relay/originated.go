package relay

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Originated is a path that this node originates.
type Originated struct {
	Prefix    netip.Prefix
	NextHop   netip.Addr // invalid: this end of each session
	Aggregate bool
}

// originated is what this node originates, for peers whose sessions the relay carries alone. It does not change, but
// for being replaced.
type originated struct {
	version uint64
	paths   map[netip.Prefix]announced
	// step has the messages from the version before to this one: it is written once for all peers.
	step []byte
}

// announced is a path with the version since which it is so, or was to be announced once more.
type announced struct {
	Originated
	since uint64
}

// SetOriginated makes paths the whole of what this node originates. Peers whose sessions the relay carries alone are
// told, in their own time. The speaker behind has to be told of it afterwards: then a peer whose session it takes
// meanwhile misses nothing.
func (r *Relay) SetOriginated(paths []Originated) {
	r.originate(func(before map[netip.Prefix]announced, version uint64) map[netip.Prefix]announced {
		now := make(map[netip.Prefix]announced, len(paths))
		for _, p := range paths {
			same := before[p.Prefix]
			if same.Originated != p {
				same = announced{p, version}
			}
			now[p.Prefix] = same
		}
		return now
	})
}

// TouchOriginated has those paths that are touched announced once more: by rules that hold for every peer something
// else may become of them.
func (r *Relay) TouchOriginated(touched func(netip.Prefix) bool) {
	r.originate(func(before map[netip.Prefix]announced, version uint64) map[netip.Prefix]announced {
		now := maps.Clone(before)
		for prefix, p := range now {
			if touched(prefix) {
				now[prefix] = announced{p.Originated, version}
			}
		}
		return now
	})
}

// originate replaces the paths, if others come of them, and has peers told.
func (r *Relay) originate(next func(before map[netip.Prefix]announced, version uint64) map[netip.Prefix]announced) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.originated.Load()
	version := before.version + 1
	now := &originated{version: version, paths: next(before.paths, version)}
	if maps.Equal(before.paths, now.paths) {
		return
	}
	now.step = messages(before.paths, now.paths, false)
	r.originated.Store(now)
	for _, l := range r.links {
		if s := l.session(); s != nil {
			go s.tellOriginated()
		}
	}
}

// since returns the messages for a peer that has been told of what was originated before; again: all paths are
// announced once more.
func (o *originated) since(before *originated, again bool) (text []byte) {
	if !again && before.version+1 == o.version {
		return o.step
	}
	return messages(before.paths, o.paths, again)
}

// messages returns those that lead from some paths to others, or announce all once more.
func messages(before, now map[netip.Prefix]announced, again bool) (text []byte) {
	gone := make(map[wire.Family][]netip.Prefix)
	for prefix := range before {
		if _, stays := now[prefix]; !stays {
			family := wire.FamilyOf(prefix.Addr())
			gone[family] = append(gone[family], prefix)
		}
	}
	for family, prefixes := range gone {
		text = append(text, wire.Withdraw(family, prefixes)...)
	}
	type way struct {
		hop       netip.Addr
		aggregate bool
	}
	alike := make(map[way][]netip.Prefix)
	for prefix, p := range now {
		if again || before[prefix] != p {
			w := way{cmp.Or(p.NextHop, wire.Placeholder(wire.FamilyOf(prefix.Addr()))), p.Aggregate}
			alike[w] = append(alike[w], prefix)
		}
	}
	for w, prefixes := range alike {
		slices.SortFunc(prefixes, netip.Prefix.Compare)
		text = append(text, wire.Originate(w.hop, w.aggregate, prefixes)...)
	}
	return text
}

// tellAgain tells the peer all once more.
func (s *session) tellAgain() {
	s.out.again.Store(true)
	s.tellOriginated()
}

// tellOriginated tells a peer whose session the relay carries alone what this node originates, as far as it has not
// been told.
func (s *session) tellOriginated() {
	if s.out.telling.Swap(true) {
		return // who waits for the lock tells of this, too
	}
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	s.out.telling.Store(false)
	if s.alone.Load() {
		s.tellPending()
	}
}

// endAlone tells what is pending: from then on the speaker behind announces.
func (s *session) endAlone() {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	if s.alone.Load() {
		s.tellPending()
	}
	s.alone.Store(false)
}

// tellPending is tellOriginated with the mutex held.
func (s *session) tellPending() {
	before, now := s.out.originated, s.link.relay.originated.Load()
	text := now.since(before, s.out.again.Swap(false))
	if before == nothing {
		text = slices.Clip(text)
		for _, family := range s.wire.Offer().Families().All() {
			text = append(text, wire.EndTable(family)...)
		}
	}
	s.out.originated = now
	for message := range wire.Messages(text) {
		if !s.alone.Load() {
			return // it is over
		}
		if err := s.announce(message); err != nil {
			s.stop(nil, err)
			return
		}
	}
}

// nothing is what a peer was told before the first announcement.
var nothing = &originated{}
