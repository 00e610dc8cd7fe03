package bgp

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// GoBGP's table is read from what the relay has passed to it, as long as both are surely the same: GoBGP takes six times as long to
// list it. They are not while GoBGP keeps something of a session that is over: then GoBGP is asked, until its answer shows
// that it keeps nothing any more; see neighbour.exact. What the relay has passed on and GoBGP has not worked in yet is in there a
// moment early. The choice between equals is GoBGP's own but for the age of paths from other ASes, by which it chooses for those
// that it passes them on to.

// parsed are the attributes that were read already: there are few different ones.
type parsed map[wire.Said]*learned

// mostParsed bounds the cache of parsed attributes that are no longer in use.
const mostParsed = 1 << 14

// readLinks reads the table from the relay; not ok: GoBGP has to be asked.
func (s *Server) readLinks(version uint64) (fresh table, ok bool) {
	if s.neighbours.inexact() {
		return table{}, false
	}
	if len(s.parsed) > mostParsed {
		s.parsed = make(parsed)
	}
	r := linkReader{Server: s, paths: make([]learned, 0, len(s.table.paths)+64)}
	for addr, known := range s.sessions {
		if known.link != nil {
			r.read(s.peers[addr], known)
		}
	}
	// A session that has ended meanwhile may not have been seen.
	if s.neighbours.inexact() {
		return table{}, false
	}
	return r.table(version), true
}

// linkReader collects what sessions have passed on.
type linkReader struct {
	*Server
	paths   []learned
	sources []rankedSource // of each path
}

// rankedSource is what decides between paths whose attributes are equal.
type rankedSource struct {
	internal bool
	router   netip.Addr
	alias    netip.Addr
}

func (r *linkReader) read(p Peer, known session) {
	from := len(r.paths)
	family := wire.FamilyOf(p.Addr)
	external := r.external(p)
	router, _ := known.link.Paths(func(prefix netip.Prefix, what wire.Said, change wire.Change) {
		if _, own := r.originated[prefix]; own {
			return
		}
		attrs := r.attributes(what, family)
		if attrs == nil {
			return
		}
		path := *attrs
		path.Prefix, path.From, path.external = prefix, p.Addr, external
		path.apply(change)
		r.paths = append(r.paths, path)
	})
	source := rankedSource{internal: p.ASN == r.local.ASN, router: router, alias: known.alias}
	for range r.paths[from:] {
		r.sources = append(r.sources, source)
	}
}

// attributes are those of what, nil if GoBGP's would not be taken.
func (s *Server) attributes(what wire.Said, family wire.Family) *learned {
	if known, ok := s.parsed[what]; ok {
		return known
	}
	fresh := &learned{Path: Path{LocalPref: localPref}}
	err := what.Read(family, func(hop netip.Addr) { fresh.NextHop = hop }, fresh.set)
	fresh.finish()
	if err != nil || !fresh.NextHop.IsGlobalUnicast() {
		fresh = nil
	}
	s.parsed[what] = fresh
	return fresh
}

// apply does what the relay has done to the path on its way in.
func (p *learned) apply(c wire.Change) {
	if c.SetLocalPref {
		p.LocalPref = c.LocalPref
	}
	if len(c.Prepend) > 0 {
		words := make([]string, 0, len(c.Prepend)+1)
		for _, number := range c.Prepend {
			words = append(words, strconv.FormatUint(uint64(number), 10))
		}
		p.ASPath = strings.TrimSpace(strings.Join(append(words, p.ASPath), " "))
		p.length += len(c.Prepend)
	}
	if len(c.Add) > 0 {
		p.Communities = withCommunities(p.Communities, c.Add)
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

// table puts the paths in the order of their prefixes and, of each, in the order of preference.
func (r *linkReader) table(version uint64) table {
	order := make([]int, len(r.paths))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		if c := r.paths[i].Prefix.Compare(r.paths[j].Prefix); c != 0 {
			return c
		}
		return r.comparePaths(i, j)
	})
	t := table{version: version, valid: true, paths: make([]learned, 0, len(order)), destinations: make([]destination, 0, len(order))}
	for n, i := range order {
		p := r.paths[i]
		t.paths = append(t.paths, p)
		if last := len(t.destinations) - 1; n > 0 && t.destinations[last].prefix == p.Prefix {
			t.destinations[last].to++
		} else {
			t.destinations = append(t.destinations, destination{prefix: p.Prefix, from: n, to: n + 1})
		}
	}
	return t
}

// comparePaths orders two paths of a prefix as GoBGP does (table.Destination.sort).
func (r *linkReader) comparePaths(i, j int) int {
	a, b, from, to := &r.paths[i], &r.paths[j], &r.sources[i], &r.sources[j]
	c := cmp.Or(
		boolean(a.oldest, b.oldest),
		cmp.Compare(b.LocalPref, a.LocalPref),
		cmp.Compare(a.length, b.length),
		cmp.Compare(a.Origin, b.Origin),
		cmp.Compare(a.rank, b.rank),
		boolean(from.internal, to.internal),
	)
	if c == 0 && from.internal {
		c = from.router.Compare(to.router)
	}
	if c == 0 {
		one, other := from.alias.As4(), to.alias.As4()
		c = bytes.Compare(one[:], other[:])
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
