package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/duties"
	"github.com/tortie-net/tortie/internal/netlinkx"
	"github.com/tortie-net/tortie/internal/podnet"
)

// What the CNI plugins read and write: in the state directory, and facts.json in the run directory. The plugins know them as
// facts.DefaultFile and journal.DefaultDir.
const (
	nodenameFile = "nodename"
	mtuFile      = "mtu"
	journalDir   = "tortie/journal"
	factsFile    = "tortie/facts.json"
)

// bgpStart bounds how long one pass waits for BGP's port; the next pass tries again.
const bgpStart = 3 * time.Second

// pass makes this node as it should be. Each part is tried even if another failed; the error joins what went wrong.
func (a *Agent) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	s, err := a.look(ctx)
	if err != nil {
		return err // without an address nothing else can be right
	}
	a.Status.SetNode(&s)
	if a.started && (a.local.ASN != s.asn(s.Self.ASN) || a.local.Port != s.Port || a.local.Listen[0] != s.Self.Addr.Addr()) {
		return errRestart
	}
	problems := []error{
		a.announceSelf(ctx, &s),
		a.NAT.Sync(ctx, s.NAT()),
		a.Guard.Sync(ctx, s.Guard()),
		a.syncTunnel(ctx, &s),
		a.prepareHost(&s),
	}
	learned, err := a.syncBGP(ctx, &s)
	a.holding = err != nil || a.settling()
	problems = append(problems, err, a.syncRoutes(ctx, &s, learned))
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return a.openForPods(ctx, &s)
}

// look collects what is known into a snapshot.
func (a *Agent) look(ctx context.Context) (Snapshot, error) {
	world := a.Watch.World()
	i := slices.IndexFunc(world.Nodes, func(n api.Node) bool { return n.Name == a.Config.Nodename })
	if i < 0 {
		return Snapshot{}, fmt.Errorf("node %s does not exist in the API: keeping everything as it is until it comes back", a.Config.Nodename)
	}
	seen := world.Nodes[i]
	if seen.UID != a.node.UID {
		n, err := a.readNode(ctx)
		if err != nil {
			return Snapshot{}, err
		}
		a.node, a.available = n, false
	}
	a.node.Annotations = seen.Annotations
	world.Nodes, a.doubt = a.known.believe(world.Nodes, a.node.Name, time.Now())
	links, err := a.Kernel.Links()
	if err != nil {
		return Snapshot{}, err
	}
	addr, err := a.findAddress(links)
	if err != nil {
		return Snapshot{}, err
	}
	self := Self{
		Name: a.node.Name, Addr: addr.Addr, AddrSource: addr.Source, Link: addr.Link, LinkMTU: addr.LinkMTU, TunnelMTU: a.Config.TunnelMTU,
	}
	if self.Pods, err = a.localPods(links); err != nil {
		return Snapshot{}, err
	}
	s, problems := BuildSnapshot(self, world)
	felix, unclear := ParseFelix(a.Config.Felix.Over(world.Felix), a.felix)
	s.Felix, a.felix = felix, felix
	a.complain("object", append(problems, unclear...))
	s.Self.TunnelAddr, err = a.tunnelAddress(ctx, &s)
	a.pods = occupied(self.Pods, s.Self.TunnelAddr)
	return s, err
}

func texts(errs []error) []string {
	out := make([]string, len(errs))
	for i, err := range errs {
		out[i] = err.Error()
	}
	return out
}

func (a *Agent) findAddress(links []netlinkx.Link) (NodeAddress, error) {
	addrs, err := a.Kernel.Addrs(0, netlinkx.IPv4)
	if err != nil {
		return NodeAddress{}, err
	}
	return chooseAddress(a.Config.IP, a.node, links, addrs)
}

// localPods returns the addresses that the plugins have made routes for, in ascending order. The routes are the one record of
// them that needs no API server.
func (a *Agent) localPods(links []netlinkx.Link) ([]netip.Addr, error) {
	ours := map[int]bool{}
	for _, l := range links {
		ours[l.Index] = strings.HasPrefix(l.Name, podnet.DefaultVethPrefix)
	}
	routes, err := a.Kernel.Routes(netlinkx.RouteFilter{Family: netlinkx.IPv4, Protocol: netlinkx.ProtocolBoot})
	if err != nil {
		return nil, err
	}
	var pods []netip.Addr
	for _, r := range routes {
		if ours[r.Dev] && r.Dst.IsSingleIP() {
			pods = append(pods, r.Dst.Addr())
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	return slices.Compact(pods), nil
}

// occupied returns the addresses that the kernel has something at, in ascending order.
func occupied(pods []netip.Addr, tunnel netip.Addr) []netip.Addr {
	i, found := slices.BinarySearchFunc(pods, tunnel, netip.Addr.Compare)
	if !tunnel.IsValid() || found {
		return pods
	}
	return slices.Insert(slices.Clone(pods), i, tunnel)
}

// tunnelAddress returns the address of tunl0.
func (a *Agent) tunnelAddress(ctx context.Context, s *Snapshot) (netip.Addr, error) {
	return a.tunnel.Address(ctx, duties.TunnelInput{
		Ranges: s.tunnelRanges(), UID: a.node.UID, Noted: a.node.Annotations[api.AnnotationIPv4TunnelAddr],
	})
}

// addrText is empty for the invalid address.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// announceSelf tells other nodes, Calico's among them, how to reach this one.
func (a *Agent) announceSelf(ctx context.Context, s *Snapshot) error {
	err := duties.Announce(ctx, a.Store, a.node.Annotations, a.node.Name, map[string]string{
		api.AnnotationIPv4Address:    s.Self.Addr.String(),
		api.AnnotationIPv4TunnelAddr: addrText(s.Self.TunnelAddr),
	})
	if err != nil {
		return fmt.Errorf("announce this node's address: %w", err)
	}
	return nil
}

func (a *Agent) syncTunnel(ctx context.Context, s *Snapshot) error {
	if t, ok := s.Tunnel(); ok {
		return a.Encap.Sync(ctx, t)
	}
	return a.Encap.Remove(ctx)
}

// syncBGP sets what is announced and the sessions, in this order, and returns what is learned.
func (a *Agent) syncBGP(ctx context.Context, s *Snapshot) ([]bgp.Path, error) {
	if err := a.startBGP(ctx, s); err != nil {
		return nil, err
	}
	if err := a.Speaker.SetOriginated(ctx, s.Originated()); err != nil {
		return nil, err
	}
	if err := a.Speaker.SetPeers(ctx, s.Peers()); err != nil {
		return nil, err
	}
	peers, err := a.Speaker.Peers(ctx)
	if err != nil {
		return nil, err
	}
	a.watchSessions(peers)
	learned, err := a.Speaker.Snapshot(ctx, s.Accept())
	a.Status.SetBGP(peers, learned)
	return learned, err
}

// watchSessions notes since when all sessions are established.
func (a *Agent) watchSessions(peers []bgp.PeerStatus) {
	down := slices.ContainsFunc(peers, func(p bgp.PeerStatus) bool { return p.State != bgp.Established })
	switch {
	case down:
		a.settled = time.Time{}
	case a.settled.IsZero():
		a.settled = time.Now()
	}
}

// settling reports that this agent started so recently that BGP may not have told it everything yet: what an earlier agent
// programmed has to stay. It ends when all sessions have been up for a while, or after the time of a graceful restart.
func (a *Agent) settling() bool {
	if a.begun.IsZero() {
		return false
	}
	if time.Since(a.begun) > holdTime || !a.settled.IsZero() && time.Since(a.settled) > settleTime {
		a.begun = time.Time{} // for good: later, a lost session is BGP's to judge
		return false
	}
	return true
}

// startBGP begins to listen, once.
func (a *Agent) startBGP(ctx context.Context, s *Snapshot) error {
	if a.started {
		return nil
	}
	own, err := a.Kernel.Routes(netlinkx.RouteFilter{Protocol: netlinkx.Protocol(a.Config.RouteProtocol)})
	if err != nil {
		return err
	}
	a.local = bgp.Local{
		ASN:      s.asn(s.Self.ASN),
		RouterID: s.Self.Addr.Addr(),
		Listen:   []netip.Addr{s.Self.Addr.Addr()},
		Port:     s.Port,
		// Routes of an earlier agent are still in the kernel: peers may keep theirs to us.
		Restarting: len(own) > 0,
	}
	ctx, cancel := context.WithTimeout(ctx, bgpStart)
	defer cancel()
	if err := a.Speaker.Start(ctx, a.local); err != nil {
		return err
	}
	a.started = true
	return nil
}

// syncRoutes programs the kernel. While BGP cannot be asked or has not learned yet what an earlier agent knew, nothing is
// removed.
func (a *Agent) syncRoutes(ctx context.Context, s *Snapshot, learned []bgp.Path) error {
	accepted, refused := s.Judge(learned)
	a.complain("path", refusals(refused))
	desired := s.Routes(accepted)
	sync := a.FIB.Sync
	if a.holding {
		sync = a.FIB.Merge
	}
	stats, err := sync(ctx, desired)
	a.Status.SetRoutes(routesSeen{accepted: accepted, refused: refused, desired: len(desired), stats: stats, starting: a.holding})
	return err
}

// openForPods writes what the plugins wait for and lets pods be scheduled here.
func (a *Agent) openForPods(ctx context.Context, s *Snapshot) error {
	if err := writeState(a.Config.StateDir, mtuFile, strconv.Itoa(s.PodMTU())); err != nil {
		return err
	}
	if err := writeState(a.Config.StateDir, nodenameFile, a.node.Name); err != nil {
		return err
	}
	if a.available {
		return nil
	}
	if err := duties.DeclareAvailable(ctx, a.Store, a.node.Name, time.Now()); err != nil {
		return fmt.Errorf("clear the condition %s of Node %s: %w", api.NetworkUnavailable, a.node.Name, err)
	}
	a.available = true
	return nil
}
