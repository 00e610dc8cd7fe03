package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	api "github.com/osrg/gobgp/v3/api"
)

// deferralTime is how long our own UPDATEs wait after a restart for the peers' end of table, in GoBGP's whole seconds.
// Its default is 360 s, in which a block that is claimed after the restart would be known to nobody.
const deferralTime = time.Second

// multihopTTL lets eBGP sessions cross routers, as Calico's multihop option does. GoBGP never limits iBGP sessions.
const multihopTTL = 255

// SetPeers implements Speaker.
func (s *Server) SetPeers(ctx context.Context, peers []Peer) error {
	want := make(map[netip.Addr]Peer, len(peers))
	for _, p := range peers {
		p = p.withDefaults()
		if err := p.validate(); err != nil {
			return err
		}
		if _, ok := want[p.Addr]; ok {
			return fmt.Errorf("peer %s is given twice", p.Addr)
		}
		want[p.Addr] = p
	}
	return s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		c := diff(s.peers, want, netip.Addr.Compare)
		s.prepareRestart(ctx, want)
		var errs []error
		for _, addr := range c.remove {
			errs = append(errs, s.removePeer(ctx, addr))
		}
		for _, addr := range c.replace {
			// GoBGP's UpdatePeer applies some changes at once, some at the next OPEN and some never.
			err := s.removePeer(ctx, addr)
			if err == nil {
				err = s.addPeer(ctx, want[addr])
			}
			errs = append(errs, err)
		}
		for _, addr := range c.add {
			errs = append(errs, s.addPeer(ctx, want[addr]))
		}
		if len(c.remove)+len(c.replace) > 0 {
			s.wake() // their paths are gone
		}
		return errors.Join(errs...)
	})
}

func (s *Server) addPeer(ctx context.Context, p Peer) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("add peer %s: %w", p.Addr, err)
	}
	s.hist.begin(p.Addr, p.Passive)
	if err := s.bgp.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peerConfig(p)}); err != nil {
		s.hist.end(p.Addr)
		return fmt.Errorf("add peer %s: %w", p.Addr, err)
	}
	s.peers[p.Addr] = p
	s.known[p.Addr] = true
	return nil
}

func (s *Server) removePeer(ctx context.Context, addr netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove peer %s: %w", addr, err)
	}
	if err := s.bgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()}); err != nil {
		return fmt.Errorf("remove peer %s: %w", addr, err)
	}
	s.hist.end(addr)
	delete(s.peers, addr)
	return nil
}

// peerConfig is a peer in GoBGP's words.
func (s *Server) peerConfig(p Peer) *api.Peer {
	seconds := func(d time.Duration) uint64 { return uint64(d / time.Second) }
	conf := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: p.Addr.String(), PeerAsn: p.ASN, LocalAsn: s.local.ASN},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:          seconds(p.HoldTime),
			KeepaliveInterval: max(1, seconds(p.HoldTime/3)),
			ConnectRetry:      seconds(p.ConnectRetry),
			// In Idle GoBGP closes what the peer opens. At its default of 30 s two ends can miss each other for minutes.
			IdleHoldTimeAfterReset: seconds(p.ConnectRetry),
		}},
		// GoBGP compares LocalAddress with where a connection came in: a session belongs to one node address.
		Transport: &api.Transport{LocalAddress: p.From.String(), RemotePort: uint32(p.Port), PassiveMode: p.Passive},
		GracefulRestart: &api.GracefulRestart{
			Enabled:      true,
			RestartTime:  uint32(seconds(p.RestartTime)),
			DeferralTime: uint32(seconds(deferralTime)),
			// RFC 8538: a hold timer that runs out on a busy node does not flush its paths.
			NotificationEnabled: true,
			LocalRestarting:     s.restartingTowards(p),
		},
		// One family, the session's: a family that is configured and not negotiated makes GoBGP wait for an end of table
		// that never comes.
		AfiSafis: []*api.AfiSafi{{
			Config:            &api.AfiSafiConfig{Family: familyOf(p.Addr), Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
		}},
	}
	if p.ASN != s.local.ASN {
		conf.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: multihopTTL}
	}
	return conf
}

// prepareRestart raises the barrier before the first peers, if one of them may still keep paths. Without it sessions work,
// at the price that is told in barrier.go.
func (s *Server) prepareRestart(ctx context.Context, want map[netip.Addr]Peer) {
	if len(s.known) > 0 {
		return
	}
	var window time.Duration
	for _, p := range want {
		if s.restartingTowards(p) {
			window = max(window, p.RestartTime)
		}
	}
	if window == 0 {
		return
	}
	if err := s.raiseBarrier(ctx, window); err != nil {
		s.log.Warn("BGP restart barrier failed: peers may drop this node's paths for a moment", "error", err)
	}
}

// restartingTowards reports whether a session is the first of this process with a peer that may still keep the paths of
// the process before.
func (s *Server) restartingTowards(p Peer) bool {
	return s.local.Restarting && !s.known[p.Addr] && s.now().Sub(s.startedAt) < p.RestartTime
}

// Peers implements Speaker.
func (s *Server) Peers(ctx context.Context) ([]PeerStatus, error) {
	var list []PeerStatus
	err := s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		found := make(map[netip.Addr]*api.Peer, len(s.peers))
		err := s.bgp.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
			if addr, err := netip.ParseAddr(p.GetConf().GetNeighborAddress()); err == nil {
				found[addr] = p
			}
		})
		// ListPeer ends early, and without an error, when ctx does.
		if err = errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("list peers: %w", err)
		}
		for _, addr := range slices.SortedFunc(maps.Keys(s.peers), netip.Addr.Compare) {
			list = append(list, s.status(s.peers[addr], found[addr]))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// states are GoBGP's states in the words of RFC 4271.
var states = map[api.PeerState_SessionState]State{
	api.PeerState_ACTIVE:      Active,
	api.PeerState_OPENSENT:    OpenSent,
	api.PeerState_OPENCONFIRM: OpenConfirm,
	api.PeerState_ESTABLISHED: Established,
}

// status joins what GoBGP says about a session, all getters of which take nil, with its history.
func (s *Server) status(p Peer, seen *api.Peer) PeerStatus {
	past := s.hist.get(p.Addr)
	status := PeerStatus{
		Addr: p.Addr, ASN: p.ASN, Passive: p.Passive,
		State: Idle, Since: past.since, LastError: past.err, ErrorSince: past.errSince, LastErrorAt: past.errAt,
		Restarting: seen.GetGracefulRestart().GetPeerRestarting(),
	}
	if state, ok := states[seen.GetState().GetSessionState()]; ok {
		status.State = state
	}
	for _, family := range seen.GetAfiSafis() {
		status.Received += int(family.GetState().GetReceived())
	}
	// GoBGP's own count of what it sends has one too many, the end-of-table marker. All that is ever sent is originated.
	if status.State == Established && !seen.GetGracefulRestart().GetLocalRestarting() {
		for prefix := range s.originated {
			if prefix.Addr().Is4() == p.Addr.Is4() {
				status.Sent++
			}
		}
	}
	return status
}
