package agent

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/takeover"
)

// bgpState is the speaker's configuration, and the paths that it has learned.
type bgpState struct {
	started bool      // the speaker listens
	local   bgp.Local // of its start or the last SetLocal
	policy  *bgp.Policy
	asked   []bgp.Peer
	askedAt time.Time // when asked last changed
	table   judgedTable
	fresh   bool // table is up to date

	begun     time.Time      // when the agent began; zero once it knows what an earlier agent knew
	settled   time.Time      // since when the tables of all peers are complete; zero if one is not
	inherited bool           // an earlier agent has left routes to other nodes
	holding   bool           // routes of an earlier agent are kept
	early     []routes.Route // routes programmed before BGP acts on them

	unresolved map[netip.Addr]time.Time // since when peers are unresolved
}

// judgedTable is the learned paths, accepted and refused, with the inputs of the decision.
type judgedTable struct {
	learned []bgp.Path
	refused []bgp.Objection

	grounds desired.Grounds
	judge   *desired.Judge // the judge of the paths
}

// is reports whether the speaker has an AS number and a router ID.
func (b *bgpState) is(want bgp.Local) bool {
	return b.started && want.ASN == b.local.ASN && want.RouterID == b.local.RouterID
}

// settling reports whether paths may still be missing after the start, so that routes of an earlier agent stay. It ends
// settleTime after the tables of all peers are complete, or after holdTime.
func (b *bgpState) settling(now time.Time) bool {
	if b.begun.IsZero() {
		return false
	}
	if now.Sub(b.begun) > holdTime || !b.settled.IsZero() && now.Sub(b.settled) > settleTime {
		b.begun = time.Time{} // for good: later, a lost session is BGP's to judge
		return false
	}
	return true
}

// watch records since when the tables of all peers are complete. Having no peers proves nothing if an earlier agent had
// some: the state of the cluster may be incomplete.
func (b *bgpState) watch(now time.Time, peers []bgp.PeerStatus) {
	waiting := slices.ContainsFunc(peers, func(p bgp.PeerStatus) bool { return !tableComplete(p, now) })
	switch {
	case waiting || len(peers) == 0 && b.inherited:
		b.settled = time.Time{}
	case b.settled.IsZero():
		b.settled = now
	}
}

// nextLook returns when to check again whether routes of an earlier agent may go. It polls, as there are reasons other
// than the tables.
func (b *bgpState) nextLook(now time.Time) time.Duration {
	if b.settled.IsZero() {
		return lookPause
	}
	return max(lookPause/2, b.settled.Add(settleTime).Sub(now))
}

// tableComplete reports whether a peer has sent its whole table, so that a missing path is withdrawn. Most peers send
// End-of-RIB (RFC 4724), on a busy node long after the session came up. A reflector has to learn the paths first, so no
// table is complete before settleTime.
func tableComplete(p bgp.PeerStatus, now time.Time) bool {
	up := now.Sub(p.Since)
	switch {
	case p.State != bgp.Established || up < settleTime:
		return false
	case p.EndOfTable():
		return now.Sub(p.TableEnded) >= workInTime
	}
	return !p.SaysEnd || up >= holdTime
}

// syncBGP sets the announced prefixes and then the sessions, and returns the learned paths.
func (a *Agent) syncBGP(ctx context.Context, s *desired.Snapshot) (judgedTable, error) {
	if a.Config.NoBGP {
		a.bgp.begun = time.Time{} // no paths will come
		return judgedTable{}, nil
	}
	if err := a.startBGP(ctx, s); err != nil {
		return judgedTable{}, err
	}
	listenErr := a.setLocal(ctx, s) // sessions go on where BGP listened before
	if err := a.announce(ctx, s); err != nil {
		return judgedTable{}, err
	}
	if err := a.setPeers(ctx, s); err != nil {
		return judgedTable{}, err
	}
	host, err := a.hostRoutes(s)
	if err != nil {
		return judgedTable{}, err
	}
	g := a.bgp.table.grounds
	g.HostRoutes = host
	if a.bgp.fresh && !a.changed.bgp && !a.bgp.holding && reflect.DeepEqual(s.Judging(g), a.bgp.table.judge) {
		return a.bgp.table, listenErr
	}
	a.bgp.fresh = false
	peers, err := a.Speaker.Peers(ctx)
	if err != nil {
		return judgedTable{}, err
	}
	peers = a.bgp.withUnresolved(time.Now(), peers, s)
	a.bgp.watch(time.Now(), peers)
	a.setProblems("bfd", s.FarBFD(peers, time.Now()))
	h, err := a.readTable(ctx, s, host, peers)
	a.Status.SetBGP(peers, h.learned)
	if err != nil {
		return judgedTable{}, errors.Join(listenErr, err)
	}
	a.bgp.table, a.bgp.fresh = h, true
	if changed, _ := s.By(h.grounds).Aggregate(h.learned); changed { // an aggregate begins and ends with its blocks
		shown := *s
		a.Status.SetNode(&shown)
		err = a.announce(ctx, s)
	}
	return h, errors.Join(listenErr, err)
}

// announce sets the announced prefixes and the policy, after the routes that they need.
func (a *Agent) announce(ctx context.Context, s *desired.Snapshot) error {
	a.addEarlyRoutes(ctx, s)
	if err := a.Speaker.SetOriginated(ctx, s.Originated()); err != nil {
		return err
	}
	return a.setPolicy(ctx, s)
}

// setLocal changes the listeners and the cluster ID of the speaker.
func (a *Agent) setLocal(ctx context.Context, s *desired.Snapshot) error {
	want, err := s.Local()
	if err != nil {
		return err
	}
	was := a.bgp.local
	if want.Port == was.Port && want.ClusterID == was.ClusterID && slices.Equal(want.Listen, was.Listen) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bgpStart)
	defer cancel()
	if err := a.Speaker.SetLocal(ctx, want); err != nil {
		return err
	}
	a.bgp.local = want
	return nil
}

// setPolicy changes the import and export policy of the speaker.
func (a *Agent) setPolicy(ctx context.Context, s *desired.Snapshot) error {
	p := s.Policy()
	if a.bgp.policy != nil && !a.changed.all && a.bgp.policy.Equal(p) {
		return nil
	}
	a.bgp.policy = nil
	if err := a.Speaker.SetPolicy(ctx, p); err != nil {
		return err
	}
	a.bgp.policy = &p
	return nil
}

// setPeers changes the sessions of the speaker.
func (a *Agent) setPeers(ctx context.Context, s *desired.Snapshot) error {
	peers := s.Peering.Peers
	same := a.bgp.asked != nil && slices.Equal(peers, a.bgp.asked)
	if same && !a.changed.all {
		return nil
	}
	a.bgp.asked = nil
	if err := a.Speaker.SetPeers(ctx, peers); err != nil {
		return err
	}
	a.bgp.asked = slices.Clip(append([]bgp.Peer{}, peers...))
	if !same {
		a.bgp.askedAt = time.Now()
	}
	return nil
}

// readTable returns the learned paths, judged by the IPAMBlocks of borrowed addresses too. Paths are judged before the
// best one is chosen: a refused path must not hide a usable one.
func (a *Agent) readTable(ctx context.Context, s *desired.Snapshot, host desired.HostRoutes, peers []bgp.PeerStatus) (judgedTable, error) {
	down := sessionsDown(s, peers, a.bgp.askedAt, time.Now())
	g := a.bgp.table.grounds // next hops are first resolved as in the last pass
	g.Borrowed, g.HostRoutes = a.records.verdicts(), host
	g.Held = desired.Sessionless(g.Borrowed, down)
	h, err := a.judgeTable(ctx, s, g)
	if err != nil {
		return judgedTable{}, err
	}
	claims := desired.Claims{}
	for _, p := range h.learned {
		s.Add(claims, p)
	}
	for _, r := range h.refused {
		s.Add(claims, r.Path)
	}
	a.records.want(time.Now(), claims, down)
	return h, nil
}

// sessionsDown returns a function that reports whether a missing path to a borrowed address means nothing: a session
// with the node is desired and its table is not complete; or there is none, and desired sessions changed a moment ago,
// so that others may not have its paths yet; or no reflector is connected.
func sessionsDown(s *desired.Snapshot, peers []bgp.PeerStatus, askedAt, now time.Time) func(desired.Claim) bool {
	silent := map[netip.Addr]bool{}
	for _, p := range peers {
		silent[p.Addr] = !tableComplete(p, now)
	}
	return func(c desired.Claim) bool {
		m, ok := s.Member(c.Node)
		if !ok { // it has gone, or the claim names this node: see Claim.Elsewhere
			return false
		}
		if quiet, own := silent[m.In(c.Addr)]; own {
			return quiet
		}
		return now.Sub(askedAt) < settleTime || s.Unreflected(c.Addr, silent)
	}
}

// startBGP starts the speaker, and starts it anew with another AS number or router ID. Routes then stay as at the start
// of an agent.
func (a *Agent) startBGP(ctx context.Context, s *desired.Snapshot) error {
	local, err := s.Local()
	if err != nil || a.bgp.is(local) {
		return err
	}
	if was := a.bgp.local; a.bgp.started {
		a.Log.Info("starting BGP anew", "asn", local.ASN, "was", was.ASN, "router-id", local.RouterID, "router-id-was", was.RouterID)
		a.bgp = bgpState{begun: time.Now()}
	}
	own, err := a.programmed()
	if err != nil {
		return err
	}
	// Routes of an earlier agent, or of Calico, are still in the kernel: peers may keep their routes to this node.
	local.Restarting = len(own) > 0
	inherited := desired.Claims{}
	for _, r := range own {
		for _, h := range append(r.Hops, netlinkx.Hop{Via: r.Via}) {
			if h.Via.IsValid() {
				a.bgp.inherited = true
				s.Add(inherited, bgp.Path{Prefix: r.Dst, NextHop: s.Behind(h.Via)})
			}
		}
	}
	a.records.trust(inherited)
	ctx, cancel := context.WithTimeout(ctx, bgpStart)
	defer cancel()
	if err := a.Speaker.Start(ctx, local); err != nil {
		return err
	}
	a.bgp.started, a.bgp.local = true, local
	return nil
}

// programmed returns the agent's and Calico's routes in the kernel.
func (a *Agent) programmed() (all []netlinkx.Route, err error) {
	for _, protocol := range append([]netlinkx.Protocol{netlinkx.Protocol(a.Config.RouteProtocol)}, takeover.Protocols...) {
		found, err := a.Kernel.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// keepRouters removes routes by a node's own address without a BGP path where an earlier agent's route through a router
// is in the kernel. Until the start is over BGP may announce that path again, and the underlay may not pass pods'
// packets without the router.
func (a *Agent) keepRouters(s *desired.Snapshot, ways []desired.DesiredRoute) ([]desired.DesiredRoute, error) {
	if a.bgp.begun.IsZero() {
		return ways, nil
	}
	present, err := a.programmed()
	byRouter := map[netip.Prefix]bool{}
	for _, r := range present {
		if slices.ContainsFunc(append(r.Hops, netlinkx.Hop{Via: r.Via}), func(h netlinkx.Hop) bool { return s.IsRouter(h.Via) }) {
			byRouter[r.Dst] = true
		}
	}
	return slices.DeleteFunc(ways, func(w desired.DesiredRoute) bool {
		return byRouter[w.Route.Dst] && len(w.Paths) > 0 && !w.Paths[0].From.IsValid()
	}), err
}

// judgeTable reads the paths that may become routes. Next hops are resolved through other paths: if these have changed,
// it reads once more.
func (a *Agent) judgeTable(ctx context.Context, s *desired.Snapshot, g desired.Grounds) (judgedTable, error) {
	for again := true; ; again = false {
		judge := s.Judging(g)
		learned, refused, err := a.Speaker.Snapshot(ctx, judge)
		if err != nil {
			return judgedTable{}, err
		}
		resolved, changed := judge.Resolve(learned)
		if g = resolved; changed && again {
			continue
		}
		if changed { // next hops lead in a circle, or through many paths: unresolved ones wait
			judge = s.Judging(g)
			learned = slices.DeleteFunc(learned, func(p bgp.Path) bool {
				o := judge.Objection(p)
				if o.Why != "" {
					refused = append(refused, o)
				}
				return o.Why != ""
			})
		}
		return judgedTable{learned: learned, refused: refused, grounds: g, judge: judge}, nil
	}
}

// hostRoutes returns the host's own routes, through which next hops of routers are resolved.
func (a *Agent) hostRoutes(s *desired.Snapshot) (desired.HostRoutes, error) {
	if !s.Routed() {
		return desired.HostRoutes{}, nil
	}
	var routes []netlinkx.Route
	for _, protocol := range netlinkx.HostProtocols {
		found, err := a.Kernel.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return desired.HostRoutes{}, err
		}
		routes = append(routes, slices.DeleteFunc(found, func(r netlinkx.Route) bool { return !r.Via.IsValid() || r.Dst.Bits() == 0 })...)
	}
	if len(routes) == 0 {
		return desired.HostRoutes{}, nil
	}
	links, err := a.Kernel.Links()
	return desired.HostRoutesOf(routes, links), err
}

// addEarlyRoutes programs the routes to peers before their sessions, and unreachable routes of aggregates before these
// are announced; syncRoutes keeps them.
func (a *Agent) addEarlyRoutes(ctx context.Context, s *desired.Snapshot) {
	early, problems := s.StaticRoutes()
	a.setProblems("gateway", problems)
	early = append(early, s.AggregateRoutes()...)
	if slices.EqualFunc(early, a.bgp.early, routes.Route.Equal) {
		return
	}
	a.FIB.SetPredecessors(a.calico.Predecessors(time.Now(), s.PoolRanges()))
	if _, err := a.FIB.Merge(ctx, early); err == nil { // else syncRoutes reports it
		a.bgp.early = early
	}
}
