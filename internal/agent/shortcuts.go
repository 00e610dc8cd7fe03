package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// shortcuts decides which connections pass the flowtable, by links, pools and routes.
func (a *Agent) shortcuts(s *desired.Snapshot, ways []desired.DesiredRoute) (c flowtable.Config) {
	if a.Config.Flowtable != config.FlowtableAuto || s.Encrypts() {
		return c
	}
	fabric := s.Fabric()
	fabric = fabric.Without(a.byIPv6(append(fabric.Uplinks, fabric.Underlay), ways))
	if fabric.ByPeers(a.links) {
		fabric.Peers = ipip.ChoosePeers(s.Self.Addr.Addr(), s.IPIPWays(ways), ipip.MaxPeers)
	}
	c = flowtable.Choose(fabric, podnet.DefaultVethPrefix, a.links)
	c.Guard = mayDo(s.Guard())
	return c
}

// byIPv6 returns the links by which present or desired routes lead IPv4 packets to IPv6 next hops. The kernel's
// flowtable lacks such next hops: it sends ARP requests for the packets' destinations on the link, and loses packets
// without an answer.
func (a *Agent) byIPv6(links []string, ways []desired.DesiredRoute) (found []string) {
	for _, l := range a.links {
		if !slices.Contains(links, l.Name) {
			continue
		}
		present, err := a.Kernel.Routes(netlinkx.RouteFilter{Family: netlinkx.IPv4, Dev: l.Index})
		leads := func(r netlinkx.Route) bool {
			return r.Via.Is6() || slices.ContainsFunc(r.Hops, func(h netlinkx.Hop) bool { return h.Dev == l.Index && h.Via.Is6() })
		}
		if err != nil || slices.ContainsFunc(present, leads) ||
			slices.ContainsFunc(ways, func(w desired.DesiredRoute) bool { return w.ByIPv6(l.Name) }) {
			found = append(found, l.Name)
		}
	}
	return found
}

// syncShortcuts makes the flowtable, and the devices that it needs. Without them packets only take longer: failures are
// problems to show, and no reason to keep pods off.
func (a *Agent) syncShortcuts(ctx context.Context, s *desired.Snapshot) (problems []error) {
	peers := ipip.Peers{Local: s.Self.Addr.Addr(), Keep: a.bgp.holding && a.fast.Tunnels}
	note := func(err error) {
		if err != nil && ctx.Err() == nil && !netlinkx.IsNotExist(err) { // a link that has gone meanwhile causes an event
			problems = append(problems, err)
		}
	}
	err := a.Flowtable.Sync(ctx, a.fast)
	note(err)
	if t, ok := s.Tunnel(); ok && !errors.Is(err, flowtable.ErrUnsupported) {
		peers.MTU = t.MTU
		for _, p := range a.fast.Peers {
			peers.Nodes = append(peers.Nodes, p.Node)
		}
	}
	note(a.Encap.SyncPeers(ctx, a.links, peers, func(devices []string) error {
		return errors.Join(a.guardNew(ctx, s), hostsysctl.Sync(a.sysctls, hostsysctl.Config{Tunnels: devices}))
	}))
	return problems
}

// mayDo returns a digest of what pods may send by a configuration of the packet guard.
func mayDo(c guard.Config) string {
	sources := make([]string, len(c.Sources))
	for i, s := range c.Sources {
		sources[i] = s.Link + " " + s.Prefix.String()
	}
	slices.Sort(sources)
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendln(nil, c.AllowIPIPFromPods, c.AllowVXLANFromPods, c.VXLANPort, sources)))
}
