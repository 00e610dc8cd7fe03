package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// Files that the CNI plugins read and write: in the state directory, and facts.json in the run directory. The plugins
// use them as facts.DefaultFile and journal.DefaultDir.
const (
	nodenameFile = "nodename"
	mtuFile      = "mtu"
	journalDir   = "tortie/journal"
	factsFile    = "tortie/facts.json"
)

// nodeFile is the agent's own, in the state directory: see tunnels.known.
const nodeFile = "tortie/node-uid"

// bgpStart bounds how long one pass waits for BGP's port; the next pass tries again.
const bgpStart = 3 * time.Second

// pass brings this node to the desired state. Each part is tried even if another failed; the error joins all failures.
func (a *Agent) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	if a.changed.all {
		a.full = time.Now()
	}
	s, trouble, err := a.look(ctx)
	if err != nil {
		return a.cannotServe(ctx, err) // without an address nothing can be programmed
	}
	shown := s
	a.Status.SetNode(&shown)
	if a.offline == nil {
		a.Policies.SetHostRules(s.HostRules())
		a.Policies.SetHandling(s.Felix.Handling, s.Felix.LogPrefix)
	}
	// The ends of tunnels are announced after the devices exist and the guard accepts packets.
	broken := errors.Join(a.NAT.Sync(ctx, s.NAT()), a.syncGuard(ctx, &s, ownLinks(&s, a.links, a.addrs)), a.syncTunnels(ctx, &s),
		a.guardNew(ctx, &s), a.prepareHost(&s))
	published := errors.Join(trouble, a.publish(ctx, &s))
	learned, err := a.syncBGP(ctx, &s)
	a.bgp.holding = err != nil || a.bgp.settling(time.Now()) || a.offline != nil
	broken = errors.Join(broken, a.syncRoutes(ctx, &s, learned), a.pruneTunnels(ctx, &s))
	a.setProblems("encryption", a.clear.follow(s.CryptReports(), a.Config.RequireEncryption, time.Now()))
	a.setProblems("flowtable", a.syncShortcuts(ctx, &s))
	a.calico.SetEncrypts(s.Encrypts())
	a.lookForCalico(ctx, broken == nil && (a.Policies == nil || a.Policies.InPlace()))
	switch {
	case broken != nil:
		return a.cannotServe(ctx, errors.Join(published, broken, err))
	case published != nil || err != nil:
		return errors.Join(published, err)
	}
	return a.openForPods(ctx, &s)
}

// syncGuard leaves the guard unchanged before the first answer of the API server: the state file of an earlier agent
// may lack the newest nodes, and their packets would be dropped.
func (a *Agent) syncGuard(ctx context.Context, s *desired.Snapshot, own []int) error {
	if a.offline != nil {
		return nil
	}
	c := s.Guard()
	a.guarded, c.OwnLinks = own, own
	c.AllowBGPFromPods = a.Config.AllowBGPFromPods
	err := a.Guard.Sync(ctx, c)
	if errors.Is(err, guard.ErrNoSourceCheck) {
		a.setProblems("guard", []error{err})
		return nil
	}
	a.setProblems("guard", nil)
	return err
}

// look reads the cluster and the node into a snapshot. trouble is an error after which the pass goes on.
func (a *Agent) look(ctx context.Context) (s desired.Snapshot, trouble, err error) {
	gone, err := a.readCluster()
	if err != nil {
		return s, nil, err
	}
	links, err := a.Kernel.Links()
	if err != nil {
		return s, nil, err
	}
	a.links = links
	self, trouble, err := a.readNode(ctx, links)
	if err != nil {
		return s, nil, err
	}
	s = a.view.Base.As(self)
	if s.Meets() {
		if s.Self.Gateways, err = a.gateways(); err != nil {
			return s, nil, err
		}
	}
	said, refusal := a.checkDuplicate(&s)
	if refusal != nil {
		return s, nil, refusal
	}
	a.peering.Decide(&s)
	if err := a.findRouters(&s); err != nil {
		return s, nil, err
	}
	_, unfit := s.By(a.bgp.table.grounds).Aggregate(a.bgp.table.learned)
	a.setProblems("object",
		slices.Concat(a.view.Problems, s.CheckPools(), desired.ProblemsOf(said), a.readServices(&s), a.peering.Problems, unfit))
	_, unused := s.Floats()
	a.setProblems("floating", unused)
	a.setProblems("annotation", a.unread(&s))
	now := time.Now()
	unread := a.readKeys(&s, links)
	a.tunnels.again = desired.Sooner(a.tunnels.changes.Follow(&s, desired.StandingOf(links), now),
		a.tunnels.crypts.Follow(&s, a.tunnels.states, now))
	none := a.tunnelAddresses(ctx, &s)
	a.pods = occupied(self.Pods, s.Self.TunnelAddrs())
	return s, errors.Join(gone, trouble, unread, none), nil
}

// gateways returns the next hops of the host's own routes.
func (a *Agent) gateways() (all []netip.Addr, err error) {
	for _, protocol := range netlinkx.HostProtocols {
		routes, err := a.Kernel.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			for _, h := range append(r.Hops, netlinkx.Hop{Via: r.Via}) {
				if h.Via.IsValid() && !h.Via.IsLinkLocalUnicast() {
					all = append(all, h.Via)
				}
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// readCluster takes the state of the watches if it has changed, or if a part that was held back is due. Without its
// Node an agent that has a state goes on: the Node may be created again, and its pods run on until then.
func (a *Agent) readCluster() (gone, err error) {
	if a.offline != nil {
		return a.offline, nil
	}
	if a.view.Built && !a.gone && a.view.Cluster.Revision == a.Watch.Revision() && a.unconfirmed == 0 &&
		!a.view.Shrunk() && !a.changed.evidence {
		return nil, nil
	}
	world := a.Watch.Cluster()
	if a.gone = world.Self == nil; a.gone {
		err := fmt.Errorf("node %s does not exist in the API: keeping everything as it is until it comes back", a.Config.Nodename)
		if !a.view.Built {
			return nil, err
		}
		return err, nil
	}
	a.node = world.Self
	world.Nodes, a.unconfirmed = a.known.Believe(world.Nodes, a.node.Name, time.Now())
	world.Felix = a.Config.Felix.Over(world.Felix)
	a.legacyServices(&world)
	a.view.Evidence = a.evidence.known(a.known)
	if !a.view.Built {
		if a.view.Evidence.Inherited, err = a.inherited(); err != nil {
			return nil, err
		}
	}
	a.view.Update(time.Now(), desired.Self{Name: a.node.Name}, world)
	a.Status.SetUnacted(a.view.Cluster.Unacted)
	ground := a.view.Base // also for a node without an address of its own
	a.Policies.SetGround(&ground)
	a.evidence.want(time.Now(), a.view.Base.Unsure)
	a.changed.bgp = true
	return nil, nil
}

// inherited returns the destinations and next hops of the routes of an earlier agent.
func (a *Agent) inherited() (map[netip.Prefix]netip.Addr, error) {
	routes, err := a.Kernel.Routes(netlinkx.RouteFilter{Protocol: netlinkx.Protocol(a.Config.RouteProtocol)})
	all := make(map[netip.Prefix]netip.Addr, len(routes))
	for _, r := range routes {
		all[r.Dst] = r.Via
	}
	return all, err
}

// readNode reads this node's addresses and pods.
func (a *Agent) readNode(ctx context.Context, links []netlinkx.Link) (self desired.Self, trouble, err error) {
	found, failed := a.find(ctx, links)
	at, trouble := a.anchor.hold(time.Now(), found, failed)
	self = desired.Self{
		Name: a.node.Name, ASN: a.Config.Addresses.ASN, TunnelMTU: a.Config.TunnelMTU, ChecksumsBroken: a.tunnels.checksumsBroken,
		RequireEncryption: a.Config.RequireEncryption, NoWireGuard: a.tunnels.noWireGuard,
		RouterID: a.Config.Addresses.RouterID, MaxPrefixes: a.Config.Addresses.MaxPrefixes, APIServer: a.APIServer,
		Found: slices.Concat(found.v4.Candidates, found.v6.Candidates),
	}
	a.logCandidates(self.Found)
	if errors.Is(trouble, errRestart) || trouble != nil && at.same(place{}) {
		return self, nil, trouble
	}
	a.setProblems("address", at.notes())
	describe(&self, at)
	pods, err := a.localPods(links)
	if err != nil {
		return self, trouble, err
	}
	for _, p := range pods {
		self.Pods = append(self.Pods, p.Addr)
	}
	slices.SortFunc(self.Pods, netip.Addr.Compare)
	self.Pods = slices.Compact(self.Pods)
	if self.Sources, err = a.noted(links, podnet.SourcesTable); err == nil {
		self.Floating, err = a.floating(links, pods)
	}
	return self, trouble, err
}

// floating returns the floating addresses of pods, as stored by the plugin.
func (a *Agent) floating(links []netlinkx.Link, pods []localPod) (all []desired.Floating, err error) {
	noted, err := a.noted(links, podnet.FloatingTable)
	for _, n := range noted {
		f := desired.Floating{Addr: n.Prefix.Addr(), Link: n.Link}
		for _, p := range pods {
			if p.Link == f.Link && p.Addr.Is4() == f.Addr.Is4() {
				f.Pod = p.Addr
			}
		}
		all = append(all, f)
	}
	desired.SortFloating(all)
	return all, err
}

// noted returns the prefixes of pods that the plugin has stored, as routes in a table of its own.
func (a *Agent) noted(links []netlinkx.Link, table int) (sources []guard.Source, err error) {
	routes, err := a.Kernel.Routes(netlinkx.RouteFilter{Table: table})
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	for _, r := range routes {
		if name := names[r.Dev]; strings.HasPrefix(name, podnet.DefaultVethPrefix) {
			sources = append(sources, guard.Source{Link: name, Prefix: r.Dst})
		}
	}
	return sources, nil
}

func texts(errs []error) []string {
	out := make([]string, len(errs))
	for i, err := range errs {
		out[i] = err.Error()
	}
	return out
}

// podProtocols are the protocols of routes to pods: the plugins', and Felix's if it is configured to use its own.
var podProtocols = []netlinkx.Protocol{netlinkx.ProtocolBoot, netlinkx.ProtocolFelix}

// localPod is an address of a pod of this node, and the pod's link.
type localPod struct {
	Addr netip.Addr
	Link string
}

// localPods returns the addresses for which the plugins have made routes. The routes are the only record of them that
// needs no API server.
func (a *Agent) localPods(links []netlinkx.Link) (pods []localPod, err error) {
	ours := map[int]string{}
	for _, l := range links {
		if strings.HasPrefix(l.Name, podnet.DefaultVethPrefix) {
			ours[l.Index] = l.Name
		}
	}
	for _, protocol := range podProtocols {
		routes, err := a.Kernel.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if link := ours[r.Dev]; link != "" && r.Dst.IsSingleIP() {
				pods = append(pods, localPod{r.Dst.Addr(), link})
			}
		}
	}
	return pods, nil
}

// publish updates this node's annotations and labels in the API where they differ.
func (a *Agent) publish(ctx context.Context, s *desired.Snapshot) error {
	if a.gone || a.offline != nil {
		return nil
	}
	return errors.Join(a.announceSelf(ctx, s), duties.LabelAffinities(ctx, a.Store, a.Watch.OwnAffinities()))
}

// prefixText returns the empty string for the invalid prefix.
func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// syncRoutes programs the kernel's routes. It removes none while the speaker fails or the tables of peers are
// incomplete after a start.
func (a *Agent) syncRoutes(ctx context.Context, s *desired.Snapshot, h judgedTable) error {
	judge := s.By(h.grounds)
	accepted, refused := judge.Accept(h.learned, h.refused)
	a.setProblems("path", desired.Refusals(refused))
	ways, left := judge.DesiredRoutes(accepted)
	ways, err := a.keepRouters(s, ways)
	if err != nil {
		return err
	}
	routes := desired.RoutesOf(ways)
	a.fast = a.shortcuts(s, ways)
	narrowed := a.Flowtable.Narrow(ctx, a.fast)
	before := a.calico.Predecessors(time.Now(), s.PoolRanges())
	a.FIB.SetPredecessors(before)
	var unencrypted error
	if a.Config.RequireEncryption { // first: by routes of the main table packets would leave in the clear for a moment
		unencrypted = a.encrypt(ctx, judge, accepted, before)
	}
	sync := a.FIB.Sync
	if a.bgp.holding {
		sync = a.FIB.Merge
	}
	stats, err := sync(ctx, routes)
	earlier := a.Status.now().routes
	if !a.bgp.holding && !earlier.starting && earlier.programmed() == earlier.desired {
		a.repairs.add(time.Now(), repairedRoutes(earlier.ways, ways, stats.Added+stats.Replaced)...)
	}
	a.calico.Took(time.Now(), a.FIB.Taken())
	a.Status.SetRoutes(routesSeen{ways: ways, left: left, refused: refused, desired: len(routes), stats: stats, starting: a.bgp.holding})
	if err != nil || narrowed != nil { // a route may lead elsewhere
		for i := range a.fast.Peers {
			a.fast.Peers[i].Ranges = nil
		}
	}
	if !a.Config.RequireEncryption {
		unencrypted = a.encrypt(ctx, judge, accepted, before)
	}
	return errors.Join(err, unencrypted)
}

// openForPods writes the files that the plugins wait for, and clears the condition NetworkUnavailable.
func (a *Agent) openForPods(ctx context.Context, s *desired.Snapshot) error {
	if err := writeState(a.Config.StateDir, mtuFile, strconv.Itoa(s.PodMTU())); err != nil {
		return err
	}
	if err := writeState(a.Config.StateDir, nodenameFile, a.node.Name); err != nil {
		return err
	}
	if !a.view.Shrunk() {
		w := a.view.Cluster
		w.Nodes = s.ToKeep(w.Nodes)
		a.setProblems("memory", desired.ProblemsOf(a.memory.save(time.Now(), w, s.Services, a.peering.State.Past())))
	}
	return a.availability.Sync(ctx, a.node.Status.Conditions, nil)
}

// cannotServe sets the condition NetworkUnavailable after a long failure. It returns the failure.
func (a *Agent) cannotServe(ctx context.Context, broken error) error {
	if a.node == nil || a.offline != nil {
		return broken
	}
	return errors.Join(broken, a.availability.Sync(ctx, a.node.Status.Conditions, broken))
}

// prepareHost sets the kernel parameters for forwarding between pods and nodes.
func (a *Agent) prepareHost(s *desired.Snapshot) error {
	host := s.Host()
	before := host.Differing(a.sysctls.Get)
	err := hostsysctl.Sync(a.sysctls, host)
	a.repairs.add(time.Now(), repairedSysctls(a.parameters, before, a.sysctls.Get)...)
	a.parameters.hold(host)
	var notes []error
	for _, text := range host.Notes(a.sysctls.Get) {
		notes = append(notes, errors.New(text))
	}
	a.setProblems("host", notes)
	return err
}

// lookForCalico looks for rules and devices of Calico. Its rules may be removed once the agent's own are in place,
// rules of policies too.
func (a *Agent) lookForCalico(ctx context.Context, inPlace bool) {
	a.calico.Look(ctx, time.Now(), inPlace)
	a.setProblems("calico", a.calico.Problems(time.Now()))
}
