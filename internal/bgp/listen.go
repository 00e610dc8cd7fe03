package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// ListenError is a failure to listen on one of the speaker's addresses.
type ListenError struct {
	Addr string // address and port
	Err  error
}

func (e *ListenError) Unwrap() error { return e.Err }

func (e *ListenError) Error() string {
	return fmt.Sprintf("listen for BGP on %s: %v: %s", e.Addr, e.Err, e.remedy())
}

func (e *ListenError) remedy() string {
	switch {
	case errors.Is(e.Err, syscall.EADDRINUSE):
		return "another BGP speaker has the port (BIRD of a calico-node, FRR, a second agent): stop it, or choose another " +
			"BGP port for the cluster"
	case errors.Is(e.Err, syscall.EACCES), errors.Is(e.Err, syscall.EPERM):
		return "capability NET_BIND_SERVICE is missing: add it to the container, or choose a port above 1023"
	case errors.Is(e.Err, syscall.EADDRNOTAVAIL):
		return "the address is not, or not yet, on an interface of this node: check the node address"
	}
	return "check the node address and BGP port"
}

// permanent reports whether waiting does not help.
func (e *ListenError) permanent() bool {
	return errors.Is(e.Err, syscall.EACCES) || errors.Is(e.Err, syscall.EPERM)
}

// Waits between attempts to bind.
const (
	firstBindWait = 250 * time.Millisecond
	maxBindWait   = 5 * time.Second
)

// Start implements Speaker.
func (s *Server) Start(ctx context.Context, local Local) error {
	if local.Port == 0 {
		local.Port = DefaultPort
	}
	if err := local.validate(); err != nil {
		return fmt.Errorf("start BGP speaker: %w", err)
	}
	pauses := wait.Backoff{First: firstBindWait, Most: maxBindWait}
	for {
		err := s.do(ctx, func(ctx context.Context) error { return s.start(ctx, local) })
		var busy *ListenError
		if !errors.As(err, &busy) || busy.permanent() {
			return err
		}
		if !wait.Sleep(ctx, pauses.Next()) {
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

// start makes one attempt. If it fails the speaker has either no session, or all its sessions and may go on with them.
func (s *Server) start(ctx context.Context, local Local) error {
	switch {
	case s.phase == stopped:
		return ErrStopped
	case s.phase == running && s.is(local): // by an earlier Start that outlived its caller's deadline
		return s.change(ctx, local)
	}
	if err := s.listen(ctx, local); err != nil {
		return err
	}
	if s.inside.to.IsValid() {
		if err := s.hangUp(ctx); err != nil {
			return err
		}
	}
	if err := s.startInside(ctx, local); err != nil {
		// A failed StartBgp keeps the listener that it already has. No peer gets a Cease: there are none yet.
		return errors.Join(err, s.relay.Listen(ctx, nil), s.bgp.StopBgp(ctx, &api.StopBgpRequest{}))
	}
	s.phase, s.local, s.startedAt = running, local, s.now()
	return nil
}

// is reports whether the speaker has the AS number and the router ID of local.
func (s *Server) is(local Local) bool {
	return local.ASN == s.local.ASN && local.RouterID == s.local.RouterID
}

// hangUp ends all sessions without a NOTIFICATION, as the end of the process would, stops GoBGP, and forgets everything
// set since Start. When ctx ends it returns an error and must be called again.
func (s *Server) hangUp(ctx context.Context) error {
	s.phase = created
	var all []<-chan struct{}
	for _, known := range s.sessions {
		if known.link != nil {
			all = append(all, known.link.HangUp())
		}
	}
	for _, over := range all { // GoBGP's NOTIFICATION at its end must not reach a peer
		select {
		case <-over:
		case <-ctx.Done():
			return fmt.Errorf("hang up on BGP peers: %w", ctx.Err())
		}
	}
	for addr, known := range s.sessions {
		known.abandon()
		s.forgetPeer(addr)
	}
	clear(s.originated)
	clear(s.known)
	clear(s.parsed) // they depend on our AS number
	s.policy, s.base, s.epoch = Policy{}, new(policy.Base), 0
	s.passable, s.passing, s.passes, s.table = nil, passing{}, 0, table{}
	s.window.clear()
	s.inside = inside{}
	s.wake()
	return s.bgp.StopBgp(ctx, &api.StopBgpRequest{})
}

// SetLocal implements Speaker.
func (s *Server) SetLocal(ctx context.Context, local Local) error {
	local.Port = cmp.Or(local.Port, DefaultPort)
	if err := local.validate(); err != nil {
		return fmt.Errorf("change this end of BGP sessions: %w", err)
	}
	return s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		if !s.is(local) {
			return fmt.Errorf("AS %d and router ID %s in place of %d and %s: only Start takes others", local.ASN, local.RouterID, s.local.ASN,
				s.local.RouterID)
		}
		return s.change(ctx, local)
	})
}

// change changes the addresses, port and cluster ID of a running speaker.
func (s *Server) change(ctx context.Context, local Local) error {
	local.Restarting = s.local.Restarting
	if err := s.listen(ctx, local); err != nil {
		return err
	}
	s.local = local
	var errs []error
	for _, addr := range slices.SortedFunc(maps.Keys(s.peers), netip.Addr.Compare) {
		if p := s.peers[addr]; s.inner(p) != s.sessions[addr].told {
			errs = append(errs, s.replacePeer(ctx, p))
		}
	}
	return errors.Join(errs...)
}

// nearAddrs returns this node's addresses on the interfaces of peers with link-local addresses, to which those peers
// connect. Their zones are indices: another interface may get the name.
func nearAddrs(peers map[netip.Addr]Peer) (addrs []netip.Addr) {
	zones := map[string]bool{}
	for peer := range peers {
		zones[peer.Zone()] = true
	}
	delete(zones, "")
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		link, err := net.InterfaceByName(zone)
		if err != nil {
			continue // dialling reports the missing interface
		}
		on, _ := link.Addrs()
		for _, a := range on {
			if p, err := netip.ParsePrefix(a.String()); err == nil && wire.LinkLocal(p.Addr()) {
				addrs = append(addrs, p.Addr().WithZone(strconv.Itoa(link.Index)))
			}
		}
	}
	return addrs
}

// listen binds the node's addresses.
func (s *Server) listen(ctx context.Context, local Local) error {
	all := local.Listen
	if !slices.Contains(all, netip.IPv6Unspecified()) {
		all = slices.Concat(all, s.near)
	}
	var addrs []netip.AddrPort
	for _, addr := range all {
		addrs = append(addrs, netip.AddrPortFrom(addr, local.Port))
	}
	err := s.relay.Listen(ctx, addrs)
	var op *net.OpError
	if !errors.As(err, &op) || op.Addr == nil {
		return err
	}
	err = &ListenError{Addr: op.Addr.String(), Err: op.Err}
	if text := err.Error(); text != s.hindrance {
		s.hindrance = text // logged once for all attempts and calls of Start
		s.log.Warn("BGP speaker waits for its address", "error", text)
	}
	return err
}

// checkMD5 and checkAO are variables for tests on kernels that support both.
var checkMD5, checkAO = relay.CheckMD5, tcpao.Check

// startInside starts GoBGP; its listener accepts the relay only.
func (s *Server) startInside(ctx context.Context, local Local) error {
	if s.noMD5 = checkMD5(); s.noMD5 != nil {
		s.log.Warn("BGP sessions with a password will not be opened, and any process on this host that may send from 127.0.0.0/8 can "+
			"pose as a peer", "error", s.noMD5)
	}
	s.noAO = checkAO()
	way, err := newInside(s.noMD5)
	if err != nil {
		return err
	}
	if err := s.bgp.StartBgp(ctx, &api.StartBgpRequest{Global: globalConfig(local, way.to)}); err != nil {
		return fmt.Errorf("listen inside: %w", err)
	}
	if err := way.lock(); err != nil {
		return fmt.Errorf("sign connections inside: %w", err)
	}
	s.inside = way
	return s.passOn(ctx, nil)
}

// globalConfig returns GoBGP's global configuration.
func globalConfig(local Local, inside netip.AddrPort) *api.Global {
	return &api.Global{
		Asn:             local.ASN,
		RouterId:        local.RouterID.String(),
		ListenPort:      int32(inside.Port()),
		ListenAddresses: []string{inside.Addr().String()},
		// Indices of GoBGP's table of families: IPv4 and IPv6 unicast. Without them it makes a table for each family that it
		// knows.
		Families: []uint32{0, 1},
		// The relay's rank in the place of a MED must order all paths; see wire.Stamp. It also keeps two reflectors from
		// oscillating (RFC 3345). The age of a path of another AS, in whole seconds, must not decide: the next process would
		// choose otherwise.
		RouteSelectionOptions: &api.RouteSelectionOptionsConfig{AlwaysCompareMed: true, ExternalCompareRouterId: true},
	}
}
