package bgp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

var (
	familyV4 = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	familyV6 = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
)

func familyOf(addr netip.Addr) *api.Family {
	if addr.Is4() {
		return familyV4
	}
	return familyV6
}

// SetOriginated implements Speaker.
func (s *Server) SetOriginated(ctx context.Context, paths []Path) error {
	want := make(map[netip.Prefix]netip.Addr, len(paths))
	for _, p := range paths {
		if err := checkOriginated(p); err != nil {
			return err
		}
		if other, ok := want[p.Prefix]; ok && other != p.NextHop {
			return fmt.Errorf("originated prefix %s: next hop is both %s and %s", p.Prefix, other, p.NextHop)
		}
		want[p.Prefix] = p.NextHop
	}
	return s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		c := diff(s.originated, want, netip.Prefix.Compare)
		var errs []error
		// A path with a new next hop replaces the old one, so that peers see one UPDATE and no withdrawal.
		for _, prefix := range slices.Concat(c.add, c.replace) {
			errs = append(errs, s.announce(ctx, prefix, want[prefix]))
		}
		for _, prefix := range c.remove {
			errs = append(errs, s.withdraw(ctx, prefix))
		}
		return errors.Join(errs...)
	})
}

// localPref is the LOCAL_PREF towards iBGP peers: the default of all implementations.
const localPref = 100

func (s *Server) announce(ctx context.Context, prefix netip.Prefix, nextHop netip.Addr) error {
	path, err := originatedPath(prefix, nextHop, s.epoch)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		_, err = s.bgp.AddPath(ctx, &api.AddPathRequest{TableType: api.TableType_GLOBAL, Path: path})
	}
	if err != nil {
		return fmt.Errorf("announce %s: %w", prefix, err)
	}
	s.originated[prefix] = nextHop
	s.version.Add(1)
	return nil
}

func (s *Server) withdraw(ctx context.Context, prefix netip.Prefix) error {
	path, err := originatedPath(prefix, s.originated[prefix], s.epoch)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = s.bgp.DeletePath(ctx, &api.DeletePathRequest{TableType: api.TableType_GLOBAL, Path: path})
	}
	if err != nil {
		return fmt.Errorf("withdraw %s: %w", prefix, err)
	}
	delete(s.originated, prefix)
	s.version.Add(1)
	return nil
}

// originatedPath builds the path as GoBGP's API wants it. It has the attributes that BIRD gives a static route in
// Calico: ORIGIN IGP, from GoBGP an empty AS_PATH, and from the export policy LOCAL_PREF 100 towards iBGP peers. In our own
// table it has the highest preference that there is, of which GoBGP prefers what is local: a peer that announces our block
// with a preference of its own, by mistake or not, would else have GoBGP withdraw ours from all peers.
func originatedPath(prefix netip.Prefix, nextHop netip.Addr, epoch uint8) (*api.Path, error) {
	if !nextHop.IsValid() {
		// GoBGP puts the session's own address in place of an unspecified one.
		nextHop = netip.IPv4Unspecified()
		if prefix.Addr().Is6() {
			nextHop = netip.IPv6Unspecified()
		}
	}
	nlri, err := anypb.New(&api.IPAddressPrefix{Prefix: prefix.Addr().String(), PrefixLen: uint32(prefix.Bits())})
	if err != nil {
		return nil, err
	}
	family := familyOf(prefix.Addr())
	var hop proto.Message = &api.NextHopAttribute{NextHop: nextHop.String()}
	if prefix.Addr().Is6() {
		hop = &api.MpReachNLRIAttribute{Family: family, NextHops: []string{nextHop.String()}, Nlris: []*anypb.Any{nlri}}
	}
	path := &api.Path{Family: family, Nlri: nlri}
	attrs := []proto.Message{&api.OriginAttribute{Origin: 0}, hop, &api.LocalPrefAttribute{LocalPref: math.MaxUint32}}
	if epoch > 0 {
		stamp := wire.Stamp{Source: wire.Own, Epoch: epoch}
		attrs = append(attrs, &api.UnknownAttribute{Flags: uint32(wire.StampFlags), Type: uint32(wire.StampType), Value: stamp.Value()})
	}
	for _, attr := range attrs {
		packed, err := anypb.New(attr)
		if err != nil {
			return nil, err
		}
		path.Pattrs = append(path.Pattrs, packed)
	}
	return path, nil
}

// Snapshot implements Speaker.
func (s *Server) Snapshot(ctx context.Context, accept Accept) ([]Path, error) {
	var paths []Path
	err := s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		if err := s.readTable(ctx); err != nil {
			return err
		}
		own := s.ownAddrs()
		paths = s.table.choose(func(p Path) bool { return !own[p.NextHop] && (accept == nil || accept(p)) })
		return nil
	})
	return paths, err
}

// ownAddrs returns the addresses of this node that BGP uses.
func (s *Server) ownAddrs() map[netip.Addr]bool {
	own := make(map[netip.Addr]bool)
	for _, addr := range s.local.Listen {
		own[addr] = true
	}
	for _, p := range s.peers {
		own[p.From] = true
	}
	return own
}

// table is all that GoBGP has learned, as it was last read.
type table struct {
	// version is the Server's, from before it was read.
	version      uint64
	valid        bool
	endings      map[netip.Addr]int // how many sessions had ended before it was read, by alias
	destinations []destination      // in the order of the prefix, without those that this node originates
	paths        []learned          // those of one destination together
}

// destination is a prefix and where in a table its paths are, in the order of preference.
type destination struct {
	prefix   netip.Prefix
	from, to int
}

// learned is a path with what decides on its rank and is not for the agent.
type learned struct {
	Path
	length   int // of the AS path, in which a set counts as one
	external bool
	stamped  bool // MED is what the peer has sent
	rank     uint32
	ours     uint32 // what wire.MaskedASN stands for
	oldest   bool   // RFC 9494: it is kept for want of another one
	// standard and large are the values of the attributes with communities, until all are read.
	standard, large []byte
}

// equals reports whether traffic may be shared between two paths of a prefix (RFC 4271 section 9.1.2.2, up to the point where
// only one can be left).
func (l *learned) equals(other *learned) bool {
	return l.LocalPref == other.LocalPref && l.length == other.length && l.Origin == other.Origin && l.MED == other.MED && l.external == other.external
}

// readTable makes s.table what GoBGP has now. It is a whole read, or none: GoBGP's table is changed by what its loop works
// in, each of which is counted, and by operations of this Server.
func (s *Server) readTable(ctx context.Context) error {
	version := s.version.Load()
	if s.table.valid && s.table.version == version {
		return nil
	}
	if fresh, ok := s.readLinks(version); ok {
		s.table = fresh
		return nil
	}
	peers := s.learnedFrom()
	fresh := table{version: version, valid: true, endings: s.neighbours.endings(), paths: make([]learned, 0, len(s.table.paths)), destinations: make([]destination, 0, len(s.table.destinations))}
	for _, family := range []*api.Family{familyV4, familyV6} {
		// Attributes in wire form: GoBGP's other form is a protobuf Any for each, ten times as slow to make and to read.
		request := &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: family, EnableOnlyBinary: true}
		if err := s.bgp.ListPath(ctx, request, func(d *api.Destination) { fresh.add(d, peers) }); err != nil {
			return fmt.Errorf("list learned paths: %w", err)
		}
	}
	// ListPath ends early, and without an error, when ctx does.
	if err := ctx.Err(); err != nil {
		return err
	}
	slices.SortFunc(fresh.destinations, func(a, b destination) int { return a.prefix.Compare(b.prefix) })
	s.table = fresh
	s.proveExact(fresh)
	return nil
}

// proveExact finds the peers of which GoBGP keeps nothing from a session that is over: what it has of them is not stale, and of those
// without a session nothing. A session that has ended since GoBGP was asked spoils the proof.
func (s *Server) proveExact(fresh table) {
	kept := make(map[netip.Addr]bool)
	up := make(map[netip.Addr]bool)
	for addr, known := range s.sessions {
		up[addr] = known.link != nil && known.link.Status().Up
	}
	for i := range fresh.paths {
		if p := &fresh.paths[i]; p.Stale || !up[p.From] {
			kept[p.From] = true
		}
	}
	for addr, known := range s.sessions {
		if !kept[addr] {
			known.proved(fresh.endings[known.alias])
		}
	}
}

// add takes a destination, whose paths come in the order of preference, unless this node originates it.
func (t *table) add(d *api.Destination, peers map[netip.Addr]source) {
	for _, raw := range d.Paths {
		if raw.GetNeighborIp() == "<nil>" { // net.IP(nil).String(): no peer, our own
			return
		}
	}
	from := len(t.paths)
	for _, raw := range d.Paths {
		if p, err := learnedPath(d.Prefix, raw, peers); err == nil {
			t.paths = append(t.paths, p)
		}
	}
	if to := len(t.paths); to > from {
		t.destinations = append(t.destinations, destination{prefix: t.paths[from].Prefix, from: from, to: to})
	}
}

// maxEqual is how many paths share the traffic of one prefix: what the kernel is asked to spread it over.
const maxEqual = 16

// choose returns of each destination the first usable path and, behind it, those that are its equals and lead elsewhere.
func (t *table) choose(usable Accept) []Path {
	chosen := make([]Path, 0, len(t.destinations))
	for _, d := range t.destinations {
		first, best := len(chosen), (*learned)(nil)
		for i := d.from; i < d.to && len(chosen)-first < maxEqual; i++ {
			p := &t.paths[i]
			switch {
			case best != nil && (!best.equals(p) || leadsTo(chosen[first:], p.NextHop)), !usable(p.Path):
				continue
			case best == nil:
				best = p
			}
			chosen = append(chosen, p.Path)
		}
	}
	return chosen
}

func leadsTo(paths []Path, hop netip.Addr) bool {
	return slices.ContainsFunc(paths, func(p Path) bool { return p.NextHop == hop })
}

// NextHops implements Speaker.
func (s *Server) NextHops(ctx context.Context, from []netip.Addr) (map[netip.Addr]bool, error) {
	hops := make(map[netip.Addr]bool)
	err := s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		if err := s.readTable(ctx); err != nil {
			return err
		}
		for i := range s.table.paths {
			if p := &s.table.paths[i]; slices.Contains(from, p.From) {
				hops[p.NextHop] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, err // hops may still be written to
	}
	return hops, nil
}

// source is the peer that announced a path.
type source struct {
	addr     netip.Addr
	external bool
	ours     uint32 // our AS number
}

// learnedFrom returns all peers by the addresses that GoBGP knows them by.
func (s *Server) learnedFrom() map[netip.Addr]source {
	sources := make(map[netip.Addr]source, len(s.peers))
	for alias, addr := range s.neighbours.peers() {
		sources[alias] = source{addr: addr, external: s.external(s.peers[addr]), ours: s.local.ASN}
	}
	return sources
}

// external reports whether a peer is in another AS than we are for it.
func (s *Server) external(p Peer) bool { return p.ASN != s.localASN(p) }

func (s *Server) localASN(p Peer) uint32 { return cmp.Or(p.LocalASN, s.local.ASN) }

// learnedPath reads one path of GoBGP's table. Attributes are input of a peer: unexpected values are errors. peers has the peers by
// the addresses that GoBGP knows them by.
func learnedPath(prefix string, raw *api.Path, peers map[netip.Addr]source) (learned, error) {
	parsed, err := netip.ParsePrefix(prefix)
	if err != nil {
		return learned{}, err
	}
	alias, err := netip.ParseAddr(raw.GetNeighborIp())
	if err != nil {
		return learned{}, err
	}
	from, ok := peers[alias]
	if !ok {
		return learned{}, fmt.Errorf("path %s from %s, which is no peer", parsed, alias)
	}
	p := learned{Path: Path{Prefix: parsed.Masked(), From: from.addr, Stale: raw.GetStale(), LocalPref: localPref}, external: from.external, ours: from.ours}
	for _, attr := range raw.GetPattrsBinary() {
		kind, value, ok := wire.FirstAttribute(attr)
		err := errShort
		if ok {
			err = p.set(kind, value)
		}
		if err != nil {
			return learned{}, fmt.Errorf("path %s from %s: %w", parsed, from.addr, err)
		}
	}
	p.finish()
	if !p.NextHop.IsGlobalUnicast() {
		return learned{}, fmt.Errorf("path %s from %s: next hop %s is no unicast address", parsed, from.addr, p.NextHop)
	}
	return p, nil
}

// Path attributes, RFC 4271 section 4.3 and RFC 4760 section 3.
const (
	attrOrigin         = 1
	attrASPath         = 2
	attrNextHop        = 3
	attrMED            = 4
	attrLocalPref      = 5
	attrCommunities    = 8
	attrMPReach        = 14
	attrLargeCommunity = 32

	asSet = 1
)

var errShort = errors.New("path attribute is cut short")

// set takes what a Path keeps from one attribute and ignores all others.
func (p *learned) set(kind uint8, value []byte) error {
	switch kind {
	case attrNextHop:
		return p.readNextHop(value)
	case attrMPReach:
		// Address family 2, subsequent family 1, then the next hop and its length.
		if len(value) < 4 || len(value)-4 < int(value[3]) {
			return errShort
		}
		return p.readNextHop(value[4 : 4+int(value[3])])
	case attrASPath:
		return p.readASPath(value)
	case attrOrigin:
		if len(value) != 1 {
			return errShort
		}
		p.Origin = Origin(value[0])
	case attrMED:
		return readNumber(&p.rank, value) // see wire.Stamp
	case attrLocalPref:
		return readNumber(&p.LocalPref, value)
	case attrCommunities:
		p.standard = value
	case attrLargeCommunity:
		p.large = value
	case wire.StampType:
		if stamp, ok := wire.ReadStamp(value); ok {
			p.MED, p.stamped = stamp.MED, true
		}
	}
	return nil
}

// finish derives fields after all attributes were read.
func (p *learned) finish() {
	if !p.stamped {
		p.MED = p.rank
	}
	all := wire.CommunitiesOf(p.standard, p.large)
	p.standard, p.large = nil, nil
	p.oldest, p.Communities = all.Has(wire.LLGRStale), all.String()
}

func readNumber(to *uint32, value []byte) error {
	if len(value) != 4 {
		return errShort
	}
	*to = binary.BigEndian.Uint32(value)
	return nil
}

func (p *learned) readNextHop(value []byte) error {
	if len(value) == 32 {
		value = value[:16] // a global and a link-local address, RFC 2545
	}
	addr, ok := netip.AddrFromSlice(value)
	if !ok {
		return fmt.Errorf("next hop of %d bytes", len(value))
	}
	p.NextHop = addr.Unmap()
	return nil
}

// readASPath reads segments of four-byte AS numbers; GoBGP keeps no others in its table.
func (p *learned) readASPath(value []byte) error {
	var words []string
	for len(value) > 0 {
		if len(value) < 2 || len(value) < 2+4*int(value[1]) {
			return errShort
		}
		kind, count := value[0], int(value[1])
		numbers := make([]string, count)
		for i := range numbers {
			number := binary.BigEndian.Uint32(value[2+4*i:])
			if number == wire.MaskedASN {
				number = p.ours
			}
			numbers[i] = strconv.FormatUint(uint64(number), 10)
		}
		word := strings.Join(numbers, " ")
		if kind == asSet {
			word = "{" + word + "}"
			count = 1
		}
		p.length += count
		words, value = append(words, word), value[2+4*len(numbers):]
	}
	p.ASPath = strings.Join(words, " ")
	return nil
}
