package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// place is a peer's place in GoBGP, which has a neighbour for it from the first session on. A neighbour costs 30 kB and
// three goroutines, and makes every turn of GoBGP's loop longer, with or without a session.
type place struct {
	neighbour
	told  inner // GoBGP's configuration of the peer
	gobgp *server.BgpServer

	mu         sync.Mutex // guards the rest, and is held while GoBGP adds or removes the neighbour
	made, gone bool
}

// newPlace returns a place for a peer under a new alias.
func (s *Server) newPlace(p Peer) *place {
	return &place{neighbour: s.neighbours.add(p.Addr), told: s.inner(p), gobgp: s.bgp}
}

// enter adds the neighbour, and reports whether it was new.
func (p *place) enter(ctx context.Context) (fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.gone:
		return false, errors.New("the peer was removed")
	case p.made:
		return false, nil
	}
	if err := p.gobgp.AddPeer(ctx, &api.AddPeerRequest{Peer: p.told.config(p.alias)}); err != nil {
		return false, fmt.Errorf("add peer %s: %w", p.peer, err)
	}
	p.made = true
	return true, nil
}

// resend has GoBGP repeat its announcements to the peer.
func (p *place) resend(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.made {
		return nil
	}
	return p.gobgp.ResetPeer(ctx, &api.ResetPeerRequest{Address: p.alias.String(), Soft: true, Direction: api.ResetPeerRequest_OUT})
}

// leave removes the neighbour for good.
func (p *place) leave(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	if !p.made {
		return nil
	}
	if err := p.gobgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.alias.String()}); err != nil {
		return err
	}
	p.made = false
	return nil
}

// abandon keeps enter from adding a neighbour; one that exists ends with GoBGP.
func (p *place) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone, p.made = true, false
}

// inner is GoBGP's configuration of a peer.
type inner struct {
	innerPeer
	cluster netip.Addr // the cluster ID for routes reflected to the peer; invalid: none are
}

// innerPeer has the fields of a Peer that GoBGP's configuration depends on.
type innerPeer struct {
	Addr, From                       netip.Addr
	ASN, LocalASN                    uint32
	HoldTime, Keepalive, RestartTime time.Duration
}

func (s *Server) inner(p Peer) inner {
	return inner{
		innerPeer: innerPeer{
			Addr: p.Addr, ASN: p.ASN, LocalASN: s.localASN(p), From: p.From,
			HoldTime: p.HoldTime, Keepalive: p.Keepalive, RestartTime: p.RestartTime,
		},
		cluster: s.cluster(p),
	}
}

// idleHoldTime is how many seconds GoBGP stays in Idle, where it closes incoming connections, after a reset. 0 would
// mean its default of 30. It multiplies without an overflow check: this many seconds are a negative number of
// nanoseconds, which have passed.
const idleHoldTime = uint64(math.MaxInt64/int64(time.Second)) + 1

// config returns GoBGP's configuration of a peer.
func (p inner) config(alias netip.Addr) *api.Peer {
	seconds := func(d time.Duration) uint64 { return uint64(d / time.Second) }
	return &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: alias.String(), PeerAsn: p.ASN, LocalAsn: p.LocalASN,
			// The relay detects loops: it knows how often our AS number may be in a path, and hides it (wire.MaskedASN). GoBGP
			// would not send a path with the peer's AS number, not even a withdrawal of the path before; with our own number in
			// its place the path reaches the relay, which withdraws it.
			AllowOwnAsn: math.MaxUint8, ReplacePeerAsn: p.ASN != p.LocalASN,
		},
		RouteReflector: p.reflection(),
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:               seconds(p.HoldTime),
			KeepaliveInterval:      max(1, seconds(cmp.Or(p.Keepalive, p.HoldTime/3))),
			IdleHoldTimeAfterReset: idleHoldTime,
		}},
		// LocalAddress is the next hop of this node's announcements on the session. GoBGP would also compare it with the
		// local address of a connection, unless the session is bound to an interface. It binds only connections that it
		// opens: none.
		Transport: &api.Transport{LocalAddress: p.ourEnd().String(), BindInterface: "lo", PassiveMode: true},
		GracefulRestart: &api.GracefulRestart{
			// GoBGP does not learn of a restart of ours: it would delay its UPDATEs for a second at least, and end the restart
			// for all peers when the first one has sent its table. The relay sets the restart bits.
			Enabled:     true,
			RestartTime: uint32(seconds(p.RestartTime)),
			// RFC 8538: a hold timer that runs out on a busy node does not flush its paths.
			NotificationEnabled: true,
		},
		AfiSafis: p.families(),
	}
}

// families returns the families of the session, and no others: for one that is configured and not negotiated GoBGP
// waits for an end of table that never comes.
func (p inner) families() (all []*api.AfiSafi) {
	for _, family := range wire.FamiliesOf(p.Addr).All() {
		as := familyV4
		if family == wire.IPv6 {
			as = familyV6
		}
		all = append(all, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: as, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
		})
	}
	return all
}

// reflection returns GoBGP's reflection settings for a peer of our own AS if this node is a reflector, else nil: in
// GoBGP every such peer is a client. To non-clients it would pass paths on without ORIGINATOR_ID and CLUSTER_LIST, and
// not withdraw a client's path when a path that is not for them replaces it. The relay tells clients from non-clients.
func (p inner) reflection() *api.RouteReflector {
	if !p.cluster.IsValid() {
		return nil
	}
	return &api.RouteReflector{RouteReflectorClient: true, RouteReflectorClusterId: p.cluster.String()}
}

// ourEnd returns the next hop of this node's announcements on the session: From, or a placeholder that the relay
// replaces by the connection's local address.
func (p inner) ourEnd() netip.Addr {
	return cmp.Or(p.From, wire.Placeholder(wire.FamilyOf(p.Addr)))
}
