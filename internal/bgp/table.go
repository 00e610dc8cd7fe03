package bgp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// learned is a path with the attributes that decide which paths are its equals and that the agent does not need.
type learned struct {
	Path
	length   int // of the AS path, where a set counts as one
	external bool
	judged   bool       // by the table's judge
	refused  *Objection // the judge's objection; nil: none
	// lastResort: the path is used only without another one, by RFC 9494 or because BFD has lost the peer: it may be that
	// only the peer's control plane restarts.
	lastResort bool
}

// equals reports whether traffic may be shared between two paths of a prefix (RFC 4271 section 9.1.2.2, up to the point
// where only one can be left).
func (l *learned) equals(other *learned) bool {
	return l.LocalPref == other.LocalPref && l.length == other.length && l.Origin == other.Origin && l.MED == other.MED &&
		l.external == other.external && l.lastResort == other.lastResort
}

// parsed caches parsed attributes by the text of wire.AppendPath: there are few different ones.
type parsed map[string]learned

// mostParsed bounds the cache of parsed attributes that are no longer in use.
const mostParsed = 1 << 14

// table holds the learned paths as last read.
type table struct {
	// version is the Server's before the table was read.
	version uint64
	valid   bool
	read    time.Time // when the whole table was last read
	// paths are the paths of all peers, except those to prefixes that this node originates, ordered by prefix and then by
	// preference.
	paths []learned
	// stale counts, by peer, the paths kept of a peer whose session is over or that has not sent them again.
	stale map[netip.Addr]int
	judge Judge
}

// maxEqual is how many paths at most share the traffic of one prefix in the kernel.
const maxEqual = 16

// by sets the judge of the paths.
func (t *table) by(judge Judge) {
	if reflect.DeepEqual(judge, t.judge) {
		return
	}
	t.judge = judge
	for i := range t.paths {
		t.paths[i].judged = false
	}
}

// usable reports whether the judge has no objection to a path.
func (t *table) usable(p *learned) bool {
	if t.judge != nil && !p.judged {
		p.judged, p.refused = true, nil
		if o := t.judge.Objection(p.Path); o.Why != "" {
			p.refused = &o
		}
	}
	return t.judge == nil || p.refused == nil
}

// recall copies the judgements of paths that are also in the table to paths, which are in order.
func (t *table) recall(paths []learned) {
	before := t.paths
	for i := range paths {
		p := &paths[i]
		for len(before) > 0 && before[0].Prefix.Compare(p.Prefix) < 0 {
			before = before[1:]
		}
		for j := 0; j < len(before) && before[j].Prefix == p.Prefix; j++ {
			if before[j].Path == p.Path {
				p.judged, p.refused = before[j].judged, before[j].refused
			}
		}
	}
}

// choose returns for each prefix the first usable path, followed by its equals with other next hops, maxEqual in all at
// most; none leads to this node's own addresses. It also returns the objections that it met.
func (t *table) choose(own map[netip.Addr]bool) (chosen []Path, refused []Objection) {
	chosen = make([]Path, 0, len(t.paths))
	first, best := 0, (*learned)(nil)
	var hop netip.Addr // of the path before: many paths have the same
	mine := false
	for i := range t.paths {
		p := &t.paths[i]
		if i == 0 || p.Prefix != t.paths[i-1].Prefix {
			first, best = len(chosen), nil
		}
		if p.NextHop != hop {
			hop, mine = p.NextHop, own[p.NextHop]
		}
		switch {
		case mine, len(chosen)-first == maxEqual, best != nil && (!best.equals(p) || leadsTo(chosen[first:], p.NextHop)):
			continue
		case !t.usable(p):
			refused = append(refused, *p.refused)
			continue
		case best == nil:
			best = p
		}
		chosen = append(chosen, p.Path)
	}
	return chosen, refused
}

func leadsTo(paths []Path, hop netip.Addr) bool {
	return slices.ContainsFunc(paths, func(p Path) bool { return p.NextHop == hop })
}

// wholePause is the age after which the whole table is read again although the changes are known: it would reveal a
// mistake.
const wholePause = time.Minute

// settling is how long a reader waits for UPDATEs that GoBGP has to process: otherwise it would read the whole of a
// table that changes again in a moment.
const settling = 100 * time.Millisecond

// readTable updates s.table from GoBGP: only the prefixes that have changed if these are known and not many, else all.
func (s *Server) readTable(ctx context.Context) error {
	s.window.rest(ctx, settling, lull)
	version, before := s.version.Load(), s.table
	again := before.valid && s.now().Sub(before.read) > wholePause
	if before.valid && before.version == version && !again {
		return nil
	}
	if len(s.parsed) > mostParsed {
		s.parsed = make(parsed)
	}
	names, known := s.window.changed()
	s.table.valid = false // until it is read
	r := reading{Server: s, neighbours: make(map[string]source, len(s.sessions))}
	var now table
	if known && before.valid && !again && len(names) <= len(before.paths)/4+1 {
		if err := r.prefixes(ctx, names); err != nil {
			return err
		}
		some := inOrder(r.paths)
		before.recall(some)
		now = table{paths: merge(before.paths, names, some), read: before.read}
	} else {
		r.paths = make([]learned, 0, max(len(before.paths), len(names))+64)
		if err := errors.Join(r.list(ctx, familyV4, nil), r.list(ctx, familyV6, nil)); err != nil {
			return err
		}
		now = table{paths: inOrder(r.paths), read: s.now()}
		before.recall(now.paths)
		if again && version == before.version && version == s.version.Load() && !slices.Equal(before.paths, now.paths) {
			s.log.Error("what was read of GoBGP's table in parts was not what it has: this is a bug")
		}
	}
	now.version, now.valid, now.stale, now.judge = version, true, staleIn(now.paths), before.judge
	s.table = now
	return nil
}

// prefixes reads GoBGP's paths to the prefixes in names.
func (r *reading) prefixes(ctx context.Context, names map[netip.Prefix]bool) error {
	var lookups [2][]*api.TableLookupPrefix
	for p := range names {
		lookups[p.Addr().BitLen()/128] = append(lookups[p.Addr().BitLen()/128], &api.TableLookupPrefix{Prefix: p.String()})
	}
	var errs []error
	for i, family := range []*api.Family{familyV4, familyV6} {
		if len(lookups[i]) > 0 { // no prefix would mean all
			errs = append(errs, r.list(ctx, family, lookups[i]))
		}
	}
	return errors.Join(errs...)
}

// list reads GoBGP's paths to some prefixes, or all of a family if some is nil.
func (r *reading) list(ctx context.Context, family *api.Family, some []*api.TableLookupPrefix) error {
	err := r.bgp.ListPath(ctx, &api.ListPathRequest{
		TableType: api.TableType_GLOBAL, Family: family, Prefixes: some, EnableOnlyBinary: true,
	}, r.destination)
	if err = cmp.Or(err, ctx.Err()); err != nil { // at the end of ctx ListPath returns nil and a part of the table
		return fmt.Errorf("read GoBGP's table: %w", err)
	}
	return nil
}

// merge returns paths, which are in order, with others in the place of the paths to the given prefixes.
func merge(paths []learned, to map[netip.Prefix]bool, others []learned) []learned {
	merged := make([]learned, 0, len(paths)+len(others))
	for i := range paths {
		p := &paths[i]
		for len(others) > 0 && others[0].Prefix.Compare(p.Prefix) < 0 {
			merged, others = append(merged, others[0]), others[1:]
		}
		if !to[p.Prefix] {
			merged = append(merged, *p)
		}
	}
	return append(merged, others...)
}

// staleIn counts the stale paths of each peer.
func staleIn(paths []learned) map[netip.Addr]int {
	stale := map[netip.Addr]int{}
	for i := range paths {
		if paths[i].Stale {
			stale[paths[i].From]++
		}
	}
	return stale
}

// reading is one pass over GoBGP's table.
type reading struct {
	*Server
	neighbours map[string]source // by GoBGP's text of their addresses
	paths      []learned
	text       []byte // scratch space for wire.AppendPath
}

// source is the peer that has announced a path.
type source struct {
	peer             netip.Addr // invalid: no configured peer, for example this node itself
	external, silent bool       // in another AS; BFD has lost it since it had a session
}

// destination adds the paths of a prefix, in GoBGP's order but with those of last resort at the end.
func (r *reading) destination(d *api.Destination) {
	prefix, err := netip.ParsePrefix(d.Prefix)
	if err != nil {
		r.log.Error("GoBGP has a path to what is no prefix", "prefix", d.Prefix, "error", err)
		return
	}
	if _, own := r.originated[prefix]; own {
		return
	}
	from := len(r.paths)
	for _, raw := range d.Paths {
		by := r.source(raw.GetNeighborIp())
		if !by.peer.IsValid() {
			continue
		}
		l, ok := r.attributes(raw.GetPattrsBinary())
		if !ok || !l.NextHop.IsGlobalUnicast() && l.NextHop.Zone() == "" {
			continue
		}
		l.Prefix, l.From, l.Stale, l.external = prefix, by.peer, raw.GetStale(), by.external
		l.lastResort = l.lastResort || by.silent && l.Stale
		r.paths = append(r.paths, l)
	}
	slices.SortStableFunc(r.paths[from:], func(a, b learned) int { return boolean(a.lastResort, b.lastResort) })
}

// source returns the peer that GoBGP knows by the address in text.
func (r *reading) source(text string) source {
	by, ok := r.neighbours[text]
	if !ok {
		alias, _ := netip.ParseAddr(text)
		peer := r.Server.neighbours.get(alias)
		if known, ours := r.sessions[peer]; ours {
			by = source{peer: peer, external: r.external(r.peers[peer]), silent: known.link != nil && known.link.Silent()}
		}
		r.neighbours[text] = by
	}
	return by
}

// attributes parses the attributes of a path; not ok: no peer has announced it.
func (r *reading) attributes(all [][]byte) (learned, bool) {
	r.text = wire.AppendPath(r.text[:0], all)
	l, ok := r.parsed[string(r.text)]
	if !ok {
		a, fine := wire.ReadPath(r.text, r.local.ASN)
		if !fine {
			return learned{}, false
		}
		l = newLearned(a)
		r.parsed[string(r.text)] = l
	}
	return l, true
}

func newLearned(a wire.Attributes) learned {
	l := learned{length: a.Path.Len(), lastResort: a.Communities.Has(wire.LLGRStale)}
	l.Path = Path{
		NextHop: a.NextHop, ASPath: a.Path.String(), LocalPref: wire.LocalPref, MED: a.MED, Communities: a.Communities.String(),
		Origin: Origin(a.Origin),
	}
	if a.HasLocalPref {
		l.LocalPref = a.LocalPref
	}
	return l
}

// Confined reports whether the communities of a learned path keep it from peers in another AS, or from all (RFC 1997).
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

// spot is a path's place in a table.
type spot struct {
	high, low uint64 // of the prefix's address
	family    int16  // bits of an address
	length    int16  // of the prefix
	at        int32  // its index before
}

// inOrder returns paths ordered by prefix, stable within each. It sorts small keys and moves each path once: paths are
// large, and GoBGP's table is in no order.
func inOrder(paths []learned) []learned {
	order := make([]spot, len(paths))
	for i := range paths {
		p := paths[i].Prefix
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
		return cmp.Compare(a.at, b.at)
	})
	sorted := make([]learned, len(order))
	for i, p := range order {
		sorted[i] = paths[p.at]
	}
	return sorted
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
