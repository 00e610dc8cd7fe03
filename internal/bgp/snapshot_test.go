package bgp

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
)

// learn gives a new speaker count paths of one peer, without the relay: as the relay would pass them on.
func learn(b *testing.B, count int) *Server {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := New(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		b.Fatal(err)
	}
	local := Local{ASN: 64512, RouterID: addr("10.0.0.1"), Listen: []netip.Addr{addr("10.0.0.1")}}
	if err := s.startInside(ctx, local); err != nil {
		b.Fatal(err)
	}
	s.phase, s.local = running, local
	known := s.neighbours.add(addr("10.0.0.2"))
	known.ending() // the relay knows nothing of it: GoBGP is asked
	peer := Peer{Addr: known.peer, ASN: 64512, From: addr("10.0.0.1")}.withDefaults()
	if err := s.bgp.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peerConfig(peer, known.alias)}); err != nil {
		b.Fatal(err)
	}
	conn, err := behind{Server: s, neighbour: known}.Attach(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	stream := append([]byte{}, hello...)
	for i := 0; i < count; i += 500 {
		body := append([]byte{0, 0, 0, 14}, origin...)
		body = append(append(body, emptyPath...), nextHop...)
		for j := i; j < min(i+500, count); j++ {
			body = append(body, 26)
			body = binary.BigEndian.AppendUint32(body, 10<<24+1<<23+uint32(j)<<6)
		}
		stream = append(stream, message(2, body)...)
	}
	if _, err := conn.Write(stream); err != nil {
		b.Fatal(err)
	}
	for n := 0; n != count; time.Sleep(10 * time.Millisecond) {
		paths, err := s.Snapshot(ctx, nil)
		if err != nil {
			b.Fatal(err)
		}
		n = len(paths)
	}
	return s
}

// BenchmarkSnapshot reads 10,000 learned paths from GoBGP: after a change, and again when nothing has changed.
func BenchmarkSnapshot(b *testing.B) {
	s := learn(b, 10000)
	for name, change := range map[string]uint64{"changed": 1, "unchanged": 0} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.version.Add(change)
				if _, err := s.Snapshot(b.Context(), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
