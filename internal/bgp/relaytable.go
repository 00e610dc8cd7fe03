package bgp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// GoBGP's table is not read: it is what the relay has passed on, with what is kept of sessions that are over, and a
// path that GoBGP has not worked in yet is in there a moment early. The choice between equals is GoBGP's own but for
// the age of paths from other ASes, by which it chooses for those that it passes them on to.

// learned is a path with what decides on its rank and is not for the agent.
type learned struct {
	Path
	length   int // of the AS path, in which a set counts as one
	external bool
	rank     uint32 // what GoBGP sees for a MED
	oldest   bool   // it is kept for want of another one: RFC 9494, or relay.Path.LastResort
	source   source
}

// source is what decides between paths whose attributes are equal.
type source struct {
	internal      bool
	router, alias netip.Addr
}

// equals reports whether traffic may be shared between two paths of a prefix (RFC 4271 section 9.1.2.2, up to the point
// where only one can be left).
func (l *learned) equals(other *learned) bool {
	return l.LocalPref == other.LocalPref && l.length == other.length && l.Origin == other.Origin && l.MED == other.MED &&
		l.external == other.external && l.oldest == other.oldest
}

// parsed are the attributes that were read already: there are few different ones.
type parsed map[wire.Said]learned

// mostParsed bounds the cache of parsed attributes that are no longer in use.
const mostParsed = 1 << 14

// readTable makes s.table what is learned now.
func (s *Server) readTable() {
	version := s.version.Load()
	if s.table.valid && s.table.version == version {
		return
	}
	if len(s.parsed) > mostParsed {
		s.parsed = make(parsed)
	}
	fresh := table{version: version, valid: true, paths: make([]learned, 0, len(s.table.paths)+64)}
	for addr, known := range s.sessions {
		if known.link != nil {
			s.readLink(&fresh, s.peers[addr], known)
		}
	}
	fresh.sort()
	s.table = fresh
}

// spot is a path's place in a table.
type spot struct {
	high, low uint64 // of the prefix's address
	family    int16  // bits of an address
	length    int16  // of the prefix
	at        int32  // where it was
}

// sort moves no path until its place is known: paths are large, and a table is not in order as a peer sends it.
func (t *table) sort() {
	order := make([]spot, len(t.paths))
	for i := range t.paths {
		p := t.paths[i].Prefix
		a := p.Addr().As16()
		order[i] = spot{binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]), int16(p.Addr().BitLen()), int16(p.Bits()), int32(i)}
	}
	slices.SortFunc(order, func(a, b spot) int {
		switch {
		case a.family != b.family:
			return cmp.Compare(a.family, b.family)
		case a.high != b.high:
			return cmp.Compare(a.high, b.high)
		case a.low != b.low:
			return cmp.Compare(a.low, b.low)
		case a.length != b.length:
			return cmp.Compare(a.length, b.length)
		}
		return t.paths[a.at].compare(&t.paths[b.at])
	})
	sorted := make([]learned, len(order))
	for i, p := range order {
		sorted[i] = t.paths[p.at]
	}
	t.paths = sorted
}

// readLink adds the paths of a peer.
func (s *Server) readLink(t *table, p Peer, known session) {
	external := s.external(p)
	from := source{internal: p.ASN == s.local.ASN, alias: known.alias}
	var last wire.Said // many paths behind each other have the same attributes
	var same learned
	seen := false
	known.link.Paths(func(passed relay.Path) {
		if _, own := s.originated[passed.Prefix]; own {
			return
		}
		if !seen || passed.Said != last {
			last, same, seen = passed.Said, s.attributes(passed.Said), true
		}
		path := same
		switch hop := path.NextHop; {
		case wire.LinkLocal(hop) && p.Addr.Zone() != "":
			path.NextHop = hop.WithZone(p.Addr.Zone())
		case !hop.IsGlobalUnicast():
			return
		}
		path.Prefix, path.From, path.Stale, path.external = passed.Prefix, p.Addr, passed.Stale, external
		path.oldest = path.oldest || passed.LastResort
		path.apply(passed.Change)
		path.source = from
		path.source.router = passed.Router
		if len(t.paths) == cap(t.paths) {
			t.paths = slices.Grow(t.paths, len(t.paths)) // append makes thousands by a quarter, and copies them each time
		}
		t.paths = append(t.paths, path)
	})
}

// attributes are those of what was said.
func (s *Server) attributes(what wire.Said) learned {
	known, ok := s.parsed[what]
	if !ok {
		known = newLearned(what.Attributes())
		s.parsed[what] = known
	}
	return known
}

func newLearned(a wire.Attributes, rank uint32) learned {
	l := learned{length: a.Path.Len(), rank: rank, oldest: a.Communities.Has(wire.LLGRStale)}
	l.Path = Path{
		NextHop: a.NextHop, ASPath: a.Path.String(), LocalPref: wire.LocalPref, MED: a.MED, Communities: a.Communities.String(),
		Origin: Origin(a.Origin),
	}
	if a.HasLocalPref {
		l.LocalPref = a.LocalPref
	}
	return l
}

// apply does what the relay has done to the path on its way in.
func (l *learned) apply(c wire.Change) {
	if c.SetLocalPref {
		l.LocalPref = c.LocalPref
	}
	if len(c.Prepend) > 0 {
		words := make([]string, 0, len(c.Prepend)+1)
		for _, number := range c.Prepend {
			words = append(words, strconv.FormatUint(uint64(number), 10))
		}
		l.ASPath = strings.TrimSpace(strings.Join(append(words, l.ASPath), " "))
		l.length += len(c.Prepend)
	}
	if len(c.Add) > 0 {
		l.Communities = withCommunities(l.Communities, c.Add)
	}
}

// withCommunities adds communities to a path's, which stay in order.
func withCommunities(text string, add []wire.Community) string {
	var all []wire.Community
	for _, word := range strings.Fields(text) {
		if c, err := wire.ParseCommunity(word); err == nil {
			all = append(all, c)
		}
	}
	return wire.NewCommunities(append(all, add...)...).String()
}

// Confined reports that the communities of a learned path keep it from peers in another AS, or from all (RFC 1997).
func (p Path) Confined(external bool) bool {
	for _, word := range strings.Fields(p.Communities) {
		switch c, _ := wire.ParseCommunity(word); c {
		case wire.NoAdvertise:
			return true
		case wire.NoExport, wire.NoExportSubconfed:
			if external {
				return true
			}
		}
	}
	return false
}

// compare orders two paths of a prefix as GoBGP does (table.Destination.sort).
func (l *learned) compare(other *learned) int {
	from, to := &l.source, &other.source
	c := cmp.Or(
		boolean(l.oldest, other.oldest),
		cmp.Compare(other.LocalPref, l.LocalPref),
		cmp.Compare(l.length, other.length),
		cmp.Compare(l.Origin, other.Origin),
		cmp.Compare(l.rank, other.rank),
		boolean(from.internal, to.internal),
	)
	if c == 0 && from.internal {
		c = from.router.Compare(to.router)
	}
	if c == 0 {
		one, another := from.alias.As4(), to.alias.As4()
		c = bytes.Compare(one[:], another[:])
	}
	return c
}

// boolean orders false before true.
func boolean(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
