package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

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
	want := make(map[netip.Prefix]ownPath, len(paths))
	for _, p := range paths {
		if err := checkOriginated(p); err != nil {
			return err
		}
		now := ownPath{nextHop: p.NextHop, aggregate: p.Aggregate}
		if other, ok := want[p.Prefix]; ok && other != now {
			return fmt.Errorf("originated prefix %s: it is both %s and %s", p.Prefix, other, now)
		}
		want[p.Prefix] = now
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

// ownPath holds the settings of a prefix that this node originates.
type ownPath struct {
	nextHop   netip.Addr // invalid: this end of each session
	aggregate bool
}

// String is for errors.
func (o ownPath) String() string {
	if o.aggregate {
		return "an aggregate"
	}
	return fmt.Sprintf("by next hop %s", o.nextHop)
}

func (s *Server) announce(ctx context.Context, prefix netip.Prefix, as ownPath) error {
	path, err := originatedPath(prefix, as, s.epoch)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		_, err = s.bgp.AddPath(ctx, &api.AddPathRequest{TableType: api.TableType_GLOBAL, Path: path})
	}
	if err != nil {
		return fmt.Errorf("announce %s: %w", prefix, err)
	}
	s.originated[prefix] = as
	s.window.add(prefix)
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
	s.window.add(prefix)
	s.version.Add(1)
	return nil
}

// originatedPath builds the path for GoBGP's API. It has the attributes of BIRD's static routes in Calico: ORIGIN IGP,
// an empty AS_PATH (from GoBGP), and LOCAL_PREF 100 towards iBGP peers (from the export policy). In our own table it
// has the highest possible preference, and at equal preference GoBGP prefers local paths: otherwise a peer that
// announces our block with a higher preference, by mistake or not, would have GoBGP withdraw ours from all peers.
func originatedPath(prefix netip.Prefix, as ownPath, epoch uint8) (*api.Path, error) {
	nextHop, source := as.nextHop, wire.Own
	if as.aggregate {
		source = wire.Aggregate
	}
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
	if epoch > 0 || as.aggregate {
		stamp := wire.Stamp{Source: source, Epoch: epoch}
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
func (s *Server) Snapshot(ctx context.Context, judge Judge) ([]Path, []Objection, error) {
	var paths []Path
	var refused []Objection
	err := s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		if err := s.readTable(ctx); err != nil {
			return err
		}
		s.table.by(judge)
		paths, refused = s.table.choose(s.ownAddrs())
		return nil
	})
	if err != nil {
		return nil, nil, err // the operation may still write to both slices
	}
	return paths, refused, nil
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

// external reports whether a peer's AS number differs from ours towards it.
func (s *Server) external(p Peer) bool { return p.ASN != s.localASN(p) }

func (s *Server) localASN(p Peer) uint32 { return cmp.Or(p.LocalASN, s.local.ASN) }
