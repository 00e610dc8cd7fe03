package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// The restart barrier.
//
// A speaker that restarts says so in each OPEN (R and F bits of RFC 4724); a peer that does not see the F bit drops the
// paths that it has kept. GoBGP stops saying so, towards all peers, once the peers that it has heard from have sent their
// end of table. That is milliseconds after the first session is up, when most are not yet, and BIRD and FRR then remove
// our routes from their kernels until our UPDATE comes.
//
// So, after a restart, this process has one more peer, itself over loopback, which is heard from first and never sends
// its end of table. GoBGP then says it in every OPEN, and each session waits for its own deferral timer instead. The
// price is that our UPDATEs start deferralTime after a session is up, which is why that is as short as GoBGP allows:
// nothing is lost by it, we announce only what is our own and have no choice to make that the peers' tables could change.
// Nothing is ever learned from the barrier.

// barrierTimeout is for a handshake within this host; it takes milliseconds.
const barrierTimeout = 2 * time.Second

// raiseBarrier must come before the first peer. It lasts for window, after which no peer keeps paths of the process before.
func (s *Server) raiseBarrier(ctx context.Context, window time.Duration) error {
	config := s.peerConfig(Peer{
		Addr: barrierAddr, ASN: s.local.ASN, From: gobgpAddr,
		// GoBGP sets no deadline that can be met on a session whose hold time is 0.
		HoldTime: math.MaxUint16 * time.Second,
	}.withDefaults(), barrierAddr)
	config.GracefulRestart.LocalRestarting = false
	if err := s.bgp.AddPeer(ctx, &api.AddPeerRequest{Peer: config}); err != nil {
		return fmt.Errorf("add ourselves as a peer: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	conn, err := s.shakeHands(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("session with ourselves: %w", err), s.deleteBarrier(ctx))
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // ends when the connection does
	time.AfterFunc(window, func() { s.lowerBarrier(conn) })
	return nil
}

func (s *Server) lowerBarrier(conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), barrierTimeout)
	defer cancel()
	err := s.do(ctx, func(ctx context.Context) error { return s.deleteBarrier(ctx) })
	if err != nil && !errors.Is(err, ErrStopped) {
		s.log.Warn("BGP restart barrier stays", "error", err)
	}
}

func (s *Server) deleteBarrier(ctx context.Context) error {
	if err := s.started(); err != nil {
		return err
	}
	return s.bgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: barrierAddr.String()})
}

// shakeHands opens the barrier's session. A connection that comes before GoBGP's side has left Idle is closed by it, so
// that this goes on until ctx ends.
func (s *Server) shakeHands(ctx context.Context) (net.Conn, error) {
	for {
		conn, err := s.inside.dial(ctx, barrierAddr)
		if err == nil {
			if err = s.open(ctx, conn); err == nil {
				return conn, nil
			}
			_ = conn.Close()
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// open speaks the handshake of RFC 4271. GoBGP has worked our OPEN in when its KEEPALIVE comes.
func (s *Server) open(ctx context.Context, conn net.Conn) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetReadDeadline(deadline); err != nil {
			return err
		}
	}
	family := bgp.RF_IPv4_UC
	capabilities := bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{
		bgp.NewCapMultiProtocol(family),
		bgp.NewCapFourOctetASNumber(s.local.ASN),
		bgp.NewCapGracefulRestart(false, false, 1, []*bgp.CapGracefulRestartTuple{bgp.NewCapGracefulRestartTuple(family, false)}),
	})
	// The router ID must not be our own; a loopback address is nobody's.
	open := bgp.NewBGPOpenMessage(bgp.AS_TRANS, math.MaxUint16, "127.0.179.1", []bgp.OptionParameterInterface{capabilities})
	for _, message := range []*bgp.BGPMessage{open, bgp.NewBGPKeepAliveMessage()} {
		wire, err := message.Serialize()
		if err != nil {
			return err
		}
		if _, err := conn.Write(wire); err != nil {
			return err
		}
	}
	for _, want := range []uint8{bgp.BGP_MSG_OPEN, bgp.BGP_MSG_KEEPALIVE} {
		header := make([]byte, bgp.BGP_HEADER_LENGTH)
		if _, err := io.ReadFull(conn, header); err != nil {
			return err
		}
		var h bgp.BGPHeader
		if err := h.DecodeFromBytes(header); err != nil {
			return err
		}
		if h.Type != want {
			return fmt.Errorf("message of type %d, want %d", h.Type, want)
		}
		if _, err := io.CopyN(io.Discard, conn, int64(h.Len)-bgp.BGP_HEADER_LENGTH); err != nil {
			return err
		}
	}
	return conn.SetReadDeadline(time.Time{})
}
