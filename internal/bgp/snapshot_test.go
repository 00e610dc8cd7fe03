package bgp

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// learn gives a new speaker count paths of one peer, which is on the loopback interface.
func learn(b *testing.B, count int) *Server {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := New(slog.New(slog.DiscardHandler), nil)
	errtest.Must(b, err)
	here, there := netip.MustParseAddrPort("127.0.0.1:11790"), addr("127.0.0.2")
	s.local = Local{ASN: 64512, RouterID: addr("10.0.0.1"), Listen: []netip.Addr{here.Addr()}, Port: here.Port()}
	s.relay = relay.New(s.log, s.now, relay.Config{})
	errtest.Must(b, errors.Join(s.relay.Listen(ctx, []netip.AddrPort{here}), s.startInside(ctx, s.local)))
	b.Cleanup(s.relay.Close)
	s.phase = running
	s.addPeer(Peer{Addr: there, ASN: 64512, From: here.Addr(), Passive: true}.withDefaults())
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(there, 0))}
	conn, err := dialer.DialContext(ctx, "tcp4", here.String())
	errtest.Must(b, err)
	b.Cleanup(func() { conn.Close() })
	if _, err := conn.Write(table10(count)); err != nil {
		b.Fatal(err)
	}
	waittest.Until(b, time.Minute, "all paths are learned", func() bool {
		paths, _, err := s.Snapshot(ctx, nil)
		errtest.Must(b, err)
		return len(paths) == count
	})
	return s
}

// table10 is a whole session of a peer that announces count blocks inside of 10.128.0.0/9.
func table10(count int) []byte {
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
	return stream
}

// BenchmarkSnapshot reads 10,000 learned paths anew, and again when nothing has changed. Neither judges a path again.
func BenchmarkSnapshot(b *testing.B) {
	s := learn(b, 10000)
	asked := 0
	for name, before := range map[string]func(){"changed": func() { s.ReadAnew() }, "unchanged": func() {}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				before()
				if _, _, err := s.Snapshot(b.Context(), picky{asked: &asked}); err != nil {
					b.Fatal(err)
				}
			}
			if asked > 10000 {
				b.Errorf("10000 paths were judged %d times", asked)
			}
		})
	}
}
