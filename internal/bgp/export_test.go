package bgp

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// ForgetSigning makes this process believe that the kernel can't sign TCP segments.
func ForgetSigning() {
	checkMD5, checkAO = func() error { return relay.ErrNoMD5 }, func() error { return tcpao.ErrNoKernel }
}

// StartSlowly makes Start take at least as long in this process.
func StartSlowly(d time.Duration) {
	checkMD5 = func() error {
		time.Sleep(d) //nolint:forbidigo // a slow kernel
		return relay.CheckMD5()
	}
}

// AskGoBGP has the next Snapshot show what GoBGP has of IPv4.
func (s *Server) AskGoBGP() {
	t := table{version: s.version.Load(), valid: true}
	request := &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: familyV4, EnableOnlyBinary: true}
	err := s.bgp.ListPath(context.Background(), request, func(d *api.Destination) {
		prefix := netip.MustParsePrefix(d.Prefix)
		if _, own := s.originated[prefix]; own {
			return
		}
		for _, raw := range d.Paths { // in the order of preference
			t.paths = append(t.paths, s.ofGoBGP(prefix, netip.MustParseAddr(raw.GetNeighborIp()), raw))
		}
	})
	if err != nil {
		panic(err)
	}
	slices.SortStableFunc(t.paths, func(a, b learned) int { return a.Prefix.Compare(b.Prefix) })
	s.table = t
}

func (s *Server) ofGoBGP(prefix netip.Prefix, alias netip.Addr, raw *api.Path) (l learned) {
	attributes := slices.Concat(raw.GetPattrsBinary()...)
	lengths := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes)))
	text := message(2, lengths, attributes, []byte{byte(prefix.Bits())}, prefix.Addr().AsSlice()[:(prefix.Bits()+7)/8])
	wire.ReplaceAS(text, wire.MaskedASN, s.local.ASN)
	plain, _ := wire.TakeStamp(new([]byte), text, true)
	editor := wire.Editor{Family: wire.IPv4}
	_, err := editor.Edit(plain, func(_ netip.Prefix, a *wire.Attributes) wire.Change {
		l = newLearned(*a, 0)
		return wire.Change{}
	})
	if err != nil {
		panic(err)
	}
	l.Prefix, l.From, l.Stale = prefix, s.neighbours.get(alias), raw.GetStale()
	l.external = s.external(s.peers[l.From])
	return l
}

// AskRelay has the next Snapshot read the table anew.
func (s *Server) AskRelay() { s.version.Add(1) }
