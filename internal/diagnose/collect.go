package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/netlinkx"
	"github.com/tortie-net/tortie/internal/nodestatus"
)

// defaultPort is BGP's, if the agent does not say.
const defaultPort = 179

// Options are what a diagnosis goes by.
type Options struct {
	// Address is host:port on which the agent serves /status.
	Address string
	// Root is where the host's file system is.
	Root string
	// Only limits the peers, and adds those that the agent does not know.
	Only []netip.Addr
	// Protocol marks the agent's routes.
	Protocol netlinkx.Protocol
	// Progress is told what is being done.
	Progress func(string)
}

// Run looks, probes and checks, until ctx ends at the latest: what there was no time for is said.
func Run(ctx context.Context, opts Options) (*Result, error) {
	begun := time.Now()
	kernel, err := netlinkx.Open()
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer kernel.Close()
	o := &Observations{Time: begun, Protocol: opts.Protocol}
	opts.Progress("asking the agent on " + opts.Address)
	o.Agent, o.AgentErr = nodestatus.Fetch(ctx, opts.Address)
	o.Peers = peers(o.report(), opts.Only)
	for i := range o.Peers {
		o.wayTo(kernel, &o.Peers[i])
	}
	opts.Progress("looking at this host")
	host{opts.Root, kernel}.look(o, bgpPort(o.report()))
	if len(o.Peers) > 0 {
		opts.Progress(fmt.Sprintf("probing peers: %d", len(o.Peers)))
		newProber(o.report()).probeAll(ctx, o.Peers)
	}
	r := &Result{Node: o.report().Node, Time: begun, Seconds: time.Since(begun).Seconds(), Findings: Check(o)}
	r.Order()
	return r, nil
}

func bgpPort(r *nodestatus.Report) uint16 { return cmp.Or(r.BGPPort, defaultPort) }

// wayTo notes by which link a peer is reached.
func (o *Observations) wayTo(kernel *netlinkx.Conn, p *Peer) {
	way, err := kernel.WayTo(p.Addr)
	if err != nil {
		p.WayErr = err
		return
	}
	link, err := kernel.LinkByIndex(way.Dev)
	p.Way, p.WayErr = link.Name, err
}

// peers are those that the agent has sessions with, or those that were asked for.
func peers(r *nodestatus.Report, only []netip.Addr) []Peer {
	var all []Peer
	for _, p := range r.Peers {
		addr, err := netip.ParseAddr(p.Address)
		if err != nil || len(only) > 0 && !slices.Contains(only, addr) {
			continue
		}
		all = append(all, Peer{
			Addr: addr, Node: p.Node, Session: p.State, Words: p.LastError, Port: cmp.Or(p.Port, bgpPort(r)), Tunnelled: tunnelled(r, p), WantSize: packetSize(r),
		})
	}
	for _, addr := range only {
		if !slices.ContainsFunc(all, func(p Peer) bool { return p.Addr == addr }) {
			all = append(all, Peer{Addr: addr, Port: bgpPort(r), Tunnelled: r.Tunnel != nil && addr.Is4(), WantSize: packetSize(r)})
		}
	}
	return all
}

// tunnelled reports whether pods' packets to a peer travel in IPIP: by a route's word, or by the pools' while there is none.
func tunnelled(r *nodestatus.Report, p nodestatus.Peer) bool {
	if r.Tunnel == nil {
		return false
	}
	routed := false
	for _, route := range r.Routes.List {
		if route.Via == p.Address {
			routed = true
			if route.Device == r.Tunnel.Device {
				return true
			}
		}
	}
	return !routed && slices.ContainsFunc(r.Pools, func(p nodestatus.Pool) bool { return p.IPIPMode == "Always" })
}

// packetSize is the size of the largest packets between the nodes: the pods' own, or the tunnel's with its header.
func packetSize(r *nodestatus.Report) int {
	if r.Tunnel != nil {
		return r.Tunnel.MTU + ipv4Header
	}
	return r.PodMTU
}

// newProber takes the addresses from what the agent says.
func newProber(r *nodestatus.Report) *prober {
	p := &prober{from: map[bool]netip.Addr{}}
	for _, text := range []string{r.Address, r.Address6} {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			p.from[prefix.Addr().Is4()] = prefix.Addr()
		}
	}
	if r.Tunnel != nil {
		p.tunnel, _ = netip.ParseAddr(r.Tunnel.Address)
	}
	return p
}
