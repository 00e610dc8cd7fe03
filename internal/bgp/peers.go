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

	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
)

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
		s.setBFD(want)
		if s.local.Restarting && len(s.peers) == 0 {
			s.bfd.Listened(ctx)
		}
		c := diff(s.peers, want, netip.Addr.Compare)
		errs := []error{s.setSecrets(want), s.listenNear(ctx, want)}
		for _, addr := range c.remove {
			errs = append(errs, s.removePeer(ctx, addr))
		}
		for _, addr := range slices.Concat(c.replace, s.turned(want, c)) {
			errs = append(errs, s.replacePeer(ctx, want[addr]))
		}
		for _, addr := range c.add {
			s.addPeer(want[addr])
		}
		if len(c.remove)+len(c.replace) > 0 {
			s.wake() // their paths are gone
		}
		return errors.Join(errs...)
	})
}

// turned returns the unchanged peers that can have a session now and had none, as when the kernel had no room for their
// keys, and those that had one and no longer can.
func (s *Server) turned(want map[netip.Addr]Peer, c changes[netip.Addr]) (again []netip.Addr) {
	for addr, known := range s.sessions {
		if p, stays := want[addr]; stays && (known.link == nil) == (s.unsigned(p) == "") && !slices.Contains(c.replace, addr) {
			again = append(again, addr)
		}
	}
	return again
}

// listenNear listens on this node's link-local addresses on the interfaces of peers with link-local addresses.
func (s *Server) listenNear(ctx context.Context, peers map[netip.Addr]Peer) error {
	before := s.near
	if s.near = nearAddrs(peers); slices.Equal(s.near, before) {
		return nil
	}
	err := s.listen(ctx, s.local)
	// An address that cannot be listened on is tried again by the next call, for sessions that wait for the peer to
	// connect.
	s.near = slices.DeleteFunc(s.near, func(addr netip.Addr) bool { return !s.relay.Listens(netip.AddrPortFrom(addr, s.local.Port)) })
	return err
}

// setSecrets sets the passwords and keys of all peers in the relay, before the first peer can connect. If the kernel
// lacks MD5 or TCP-AO, link notes it for each peer that needs it.
func (s *Server) setSecrets(peers map[netip.Addr]Peer) error {
	secrets, some := relay.Secrets{Passwords: make(map[netip.Addr]string, len(peers)), AO: make(map[netip.Addr]tcpao.Keys)}, false
	for addr, p := range peers {
		secrets.Passwords[addr] = p.Password
		some = some || p.Password != ""
		if p.AO != "" && s.noAO == nil {
			secrets.AO[addr] = p.AO
		}
	}
	if !some || s.noMD5 != nil {
		secrets.Passwords = nil // the relay would keep the map
	}
	refused, err := s.relay.SetSecrets(secrets)
	s.refused = refused
	return err
}

// session is a peer's place in GoBGP and its link to the outside.
type session struct {
	*place
	link  *relay.Link // nil: there is none; the history has the reason
	rules *relay.Rules
}

func (s session) retire() {
	if s.link != nil {
		s.link.Retire()
	}
}

func (s session) release() {
	if s.link != nil {
		s.link.Release()
	}
}

func (s session) wait(ctx context.Context) {
	if s.link != nil {
		s.link.Wait(ctx)
	}
}

// mute reports whether nothing is sent to the peer: it has no link or is held down.
func (s session) mute() bool { return s.link == nil || !s.heldUntil().IsZero() }

func (s session) heldUntil() time.Time {
	if s.link == nil {
		return time.Time{}
	}
	return s.link.HeldUntil()
}

func (s *Server) addPeer(p Peer) {
	s.ends.begin(p.Addr)
	s.link(p, session{place: s.newPlace(p)})
	s.known[p.Addr] = true
}

// link sets the peer's link to the outside for its place in GoBGP. known may have a link already, for the same place or
// another one.
func (s *Server) link(p Peer, known session) {
	known.rules = s.rulesOf(p)
	outer, back := s.relayPeer(p), behind{Server: s, place: known.place, inside: s.inside}
	switch hindrance := s.unsigned(p); {
	case hindrance != "":
		s.ends.failed(p.Addr, noSession+hindrance)
		known.retire()
		known.release()
		known.link = nil
	case known.link != nil:
		known.link = s.relay.Replace(known.link, outer, known.rules, back)
	default:
		known.link = s.relay.Add(outer, known.rules, back)
	}
	s.peers[p.Addr], s.sessions[p.Addr] = p, known
	s.window.forget() // the peer of the paths may have changed
}

// unsigned returns why the kernel cannot sign a peer's connections; empty: it can, or need not.
func (s *Server) unsigned(p Peer) string {
	switch {
	case p.Password != "" && s.noMD5 != nil:
		return "it has a password, and " + s.noMD5.Error()
	case p.AO != "" && s.noAO != nil:
		return "it has TCP-AO keys, and " + s.noAO.Error()
	case s.refused[p.Addr] != nil:
		return s.refused[p.Addr].Error()
	}
	return ""
}

// replacePeer changes a peer. Most changes do not concern GoBGP, which keeps the peer's paths. For the others GoBGP's
// UpdatePeer would apply some at once, some at the next OPEN and some never, so the peer is removed and added.
func (s *Server) replacePeer(ctx context.Context, p Peer) error {
	known, want := s.sessions[p.Addr], s.inner(p)
	switch {
	case known.told == want && known.link != nil && s.unsigned(p) == "" && known.link.Become(s.relayPeer(p)):
		s.peers[p.Addr] = p
		return s.setRules(ctx, p.Addr)
	case known.told == want:
		s.link(p, known)
		return nil
	case known.told.innerPeer == want.innerPeer:
		s.exchange(p)
		return nil
	}
	if err := s.removePeer(ctx, p.Addr); err != nil {
		return err
	}
	s.addPeer(p)
	return nil
}

// exchange assigns a peer another place in GoBGP when its reflection cluster changes. The old place stays, with its
// paths, until the peer has sent all of them again; to the peer it looks like a broken connection.
func (s *Server) exchange(p Peer) {
	old := s.sessions[p.Addr]
	s.link(p, session{place: s.newPlace(p), link: old.link})
	go s.removeLater(old.place, s.inside, s.sessions[p.Addr].link, p.RestartTime)
}

// settleWait is the time for GoBGP to process the end of a table.
const settleWait = time.Second

// removeLater removes a peer's old place in GoBGP when its successor has the peer's whole table, or after most. If
// GoBGP was restarted since, all its old neighbours are gone already.
func (s *Server) removeLater(old *place, of inside, successor *relay.Link, most time.Duration) {
	if successor != nil {
		select {
		case <-successor.Whole():
		case <-time.After(most):
		}
	}
	time.Sleep(settleWait)
	err := s.do(context.Background(), func(ctx context.Context) error {
		s.neighbours.remove(old.neighbour)
		if s.phase != running || s.inside != of {
			return nil
		}
		s.window.forget()
		s.version.Add(1)
		return old.leave(ctx)
	})
	if err != nil {
		s.log.Error("remove what a BGP peer was before", "peer", old.peer, "error", err)
	}
	s.wake()
}

// cluster returns the cluster ID under which this node reflects routes to a peer; invalid: it does not.
func (s *Server) cluster(p Peer) netip.Addr {
	if s.external(p) {
		return netip.Addr{}
	}
	return s.local.ClusterID
}

// removePeer has GoBGP send Cease; the link gets a moment to deliver it.
func (s *Server) removePeer(ctx context.Context, addr netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove peer %s: %w", addr, err)
	}
	gone := s.sessions[addr]
	gone.retire()
	if err := gone.leave(ctx); err != nil {
		return fmt.Errorf("remove peer %s: %w", addr, err)
	}
	gone.release()
	s.forgetPeer(addr)
	return nil
}

// forgetPeer removes a peer when GoBGP's neighbour is gone, or about to go.
func (s *Server) forgetPeer(addr netip.Addr) {
	s.window.forget()
	s.version.Add(1)
	s.neighbours.remove(s.sessions[addr].neighbour)
	s.ends.end(addr)
	delete(s.peers, addr)
	delete(s.sessions, addr)
}

// relayPeer returns the relay's configuration of a peer.
func (s *Server) relayPeer(p Peer) relay.Peer {
	peer := relay.Peer{
		SpeakerASN: s.local.ASN, RouterID: s.local.RouterID, Addr: p.Addr, From: p.From, Port: p.Port, ASN: p.ASN, Passive: p.Passive,
		ConnectRetry: p.ConnectRetry, HoldTime: p.HoldTime, RestartTime: p.RestartTime, Keepalive: p.Keepalive,
		Password: p.Password, AO: p.AO, MaxPrefixes: p.MaxPrefixes, Hops: p.TTLSecurity, ClusterID: s.cluster(p),
	}
	// A peer that was removed or changed got a Cease, and has dropped the paths that it had kept.
	if s.local.Restarting && !s.known[p.Addr] {
		peer.KeptUntil = s.startedAt.Add(p.RestartTime)
	}
	return peer
}

// Peers implements Speaker.
func (s *Server) Peers(ctx context.Context) ([]PeerStatus, error) {
	var list []PeerStatus
	err := s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		if !s.table.valid || s.window.busy() == nil { // else Snapshot would read it again
			if err := s.readTable(ctx); err != nil {
				return err
			}
		}
		for _, addr := range slices.SortedFunc(maps.Keys(s.peers), netip.Addr.Compare) {
			list = append(list, s.status(s.peers[addr]))
		}
		return nil
	})
	if err != nil {
		return nil, err // list may still be written to
	}
	return list, nil
}

// Traffic implements Speaker.
func (s *Server) Traffic() map[netip.Addr]Traffic { return s.relay.Traffic() }

// Told implements Speaker.
func (s *Server) Told() []netip.Prefix { return s.relay.Told() }

// Ends implements Speaker.
func (s *Server) Ends() *Ends { return s.ends }

// Totals implements Speaker.
func (s *Server) Totals() Totals { return s.relay.Totals() }

// stateOf returns a session's state. The handshake is the relay's. A session is established only when both GoBGP and
// the history have it: else the status would have the time of the previous state.
func stateOf(s relay.Status, up bool) State {
	switch {
	case s.Up && up:
		return Established
	case s.Up, s.OpenConfirm:
		return OpenConfirm
	case s.OpenSent:
		return OpenSent
	}
	return Active
}

// status returns the state of a peer from the relay's status and the history.
func (s *Server) status(p Peer) PeerStatus {
	known := s.sessions[p.Addr]
	now := relay.Status{}
	if known.link != nil {
		now = known.link.Status()
	}
	past, up := s.ends.get(p.Addr)
	status := PeerStatus{
		Addr: p.Addr, ASN: p.ASN, LocalASN: s.localASN(p), Client: p.Client, Passive: p.Passive,
		State: Idle, Since: past.since, LastError: past.err, Failure: past.class, ErrorSince: past.errSince, LastErrorAt: past.errAt,
		Received: now.Received, Sent: now.Sent, HeldUntil: known.heldUntil(),
		Supports: now.Offer, SaysEnd: now.SaysEnd, TableEnded: now.TableEnded, Refused: now.Refused, OldKeys: now.OldKeys,
		WrongKeys: now.WrongKeys, BFD: s.bfd.Status(p.Addr),
		Self: now.Self,
	}
	if !known.mute() {
		status.State = stateOf(now, up && s.neighbours.state(known.alias) == api.PeerState_ESTABLISHED)
	}
	if kept := s.table.stale[p.Addr]; kept > 0 && !now.Up {
		status.Restarting, status.Received = true, kept
	}
	return status
}
