package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// defaultPort is the port of BGP if the agent does not report one.
const defaultPort = 179

// Options are the parameters of a diagnosis.
type Options struct {
	// Address is host:port on which the agent serves /status.
	Address string
	// Root is the mount point of the host's file system.
	Root string
	// Only limits the peers to these addresses, which the agent need not know.
	Only []netip.Addr
	// Protocol marks the agent's routes.
	Protocol netlinkx.Protocol
	// Settings come from the environment.
	Settings config.Diagnose
	// Progress is called with the name of each step.
	Progress func(string)
}

// Run observes this host, probes the peers and checks the results. It stops when ctx ends: peers not probed by then
// have a finding.
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
	var none *nodestatus.NoAgentError
	if o.Foreign = errors.As(o.AgentErr, &none); o.Foreign && len(opts.Only) == 0 {
		return nil, o.AgentErr
	}
	o.Peers = peers(o.report(), opts.Only)
	for i := range o.Peers {
		o.wayTo(kernel, &o.Peers[i])
	}
	opts.Progress("looking at this host")
	host{opts.Root, kernel}.look(ctx, o)
	var group sync.WaitGroup
	if !o.Foreign { // in parallel with the probes of peers, as each waits for answers
		group.Go(func() { o.askCluster(ctx, &opts.Settings) })
		group.Go(func() { o.Claims = lookForDuplicates(ctx, o) })
		group.Go(func() { o.Service = lookAtService(ctx, kernel, opts.Settings) })
	}
	passwords, ao := netlinkx.WrongPasswords(), netlinkx.ReadAO().Refused()
	if len(o.Peers) > 0 {
		opts.Progress(fmt.Sprintf("probing peers: %d", len(o.Peers)))
		newProber(o.report()).probeAll(ctx, o.Peers)
	}
	group.Wait()
	o.WrongPasswords, o.WrongAO = netlinkx.WrongPasswords()-passwords, netlinkx.ReadAO().Refused()-ao
	r := &Result{Node: o.report().Node, Time: begun, Seconds: time.Since(begun).Seconds(), Findings: Check(o)}
	r.Order()
	return r, nil
}

// clusterTime bounds the requests to the API server.
const clusterTime = 5 * time.Second

// askCluster reads from the API server, if this process has a configuration for it.
func (o *Observations) askCluster(ctx context.Context, s *config.Diagnose) {
	store, err := openStore(s)
	if err != nil {
		return // outside of a pod and without KUBECONFIG: findings that need the API server are left out
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(ctx, clusterTime)
	defer cancel()
	o.Cluster = lookAtCluster(ctx, store, o.report())
	o.PodNames = podNames(ctx, store, o.report())
}

func openStore(s *config.Diagnose) (*kubernetes.Store, error) {
	cfg, err := cluster.Connect(s.Kubeconfig, "tortie-node-diagnose")
	if err != nil {
		return nil, err
	}
	return cluster.OpenStore(cluster.Finding(cfg, s.APIGroup))
}

func bgpPort(r *nodestatus.Report) uint16 { return cmp.Or(r.BGPPort, defaultPort) }

// wayTo looks up the link through which a peer is reached.
func (o *Observations) wayTo(kernel *netlinkx.Conn, p *Peer) {
	index, err := kernel.LinkTo(p.Addr)
	if err != nil {
		p.WayErr = err
		return
	}
	link, err := kernel.LinkByIndex(index)
	p.Way, p.WayErr = link.Name, err
}

// peers returns the agent's peers, limited to only, and the addresses of only that the agent does not know.
func peers(r *nodestatus.Report, only []netip.Addr) []Peer {
	var all []Peer
	for _, p := range r.Peers {
		addr, err := netip.ParseAddr(p.Address)
		if err != nil || len(only) > 0 && !slices.Contains(only, addr) {
			continue
		}
		peer := Peer{
			Addr: addr, Node: p.Node, Session: p.State, LastError: p.LastError, Port: cmp.Or(p.Port, bgpPort(r)), Password: p.Password,
			TCPAO: p.TCPAO, TTLHops: p.TTLHops,
			Tunnelled: tunnelled(r, p), VTEP: vtep(r, p),
		}
		peer.WantSize, peer.Overhead = packetSize(r, addr.Is4())
		all = append(all, peer)
	}
	for _, addr := range only {
		if !slices.ContainsFunc(all, func(p Peer) bool { return p.Addr == addr }) {
			_, ipip := tunnelOf(r, kindIPIP, true)
			peer := Peer{Addr: addr, Port: bgpPort(r), Tunnelled: ipip && addr.Is4()}
			peer.WantSize, peer.Overhead = packetSize(r, addr.Is4())
			all = append(all, peer)
		}
	}
	return all
}

// Kinds of tunnels.
const (
	kindIPIP  = "IPIP"
	kindVXLAN = "VXLAN"
)

// tunnelOf returns the agent's tunnel of a kind for a family of outer packets.
func tunnelOf(r *nodestatus.Report, kind string, is4 bool) (nodestatus.Tunnel, bool) {
	for _, t := range r.Tunnels {
		if v6 := strings.Contains(t.Device, "v6"); t.Kind == kind && v6 != is4 {
			return t, true
		}
	}
	return nodestatus.Tunnel{}, false
}

// tunnelled reports whether pods' packets to a peer travel in IPIP: by the routes through that peer, or without any by
// the pools.
func tunnelled(r *nodestatus.Report, p nodestatus.Peer) bool {
	t, ok := tunnelOf(r, kindIPIP, true)
	if !ok {
		return false
	}
	routed := false
	for _, route := range r.Routes.List {
		if route.Via == p.Address {
			routed = true
			if route.Device == t.Device {
				return true
			}
		}
	}
	return !routed && slices.ContainsFunc(r.Pools, func(p nodestatus.Pool) bool { return p.IPIPMode == "Always" })
}

// vtep returns the peer's VTEP if pods' packets to it travel in VXLAN: it is the next hop of their routes.
func vtep(r *nodestatus.Report, p nodestatus.Peer) netip.Addr {
	peer, err := netip.ParseAddr(p.Address)
	if err != nil || p.Node == "" {
		return netip.Addr{}
	}
	for _, route := range r.Routes.List {
		if route.Encap != kindVXLAN || route.Node != p.Node {
			continue
		}
		if via, err := netip.ParseAddr(route.Via); err == nil && via.Is4() == peer.Is4() {
			return via
		}
	}
	return netip.Addr{}
}

// packetSize returns the size of the largest packets between the nodes, and how much of it is tunnel headers: for the
// tunnel with the largest packets; without tunnels, the size of pods' packets.
func packetSize(r *nodestatus.Report, is4 bool) (size, overhead int) {
	if t, ok := tunnelOf(r, kindIPIP, true); ok && is4 {
		size, overhead = t.MTU+ipv4Header, ipv4Header
	}
	if t, ok := tunnelOf(r, kindVXLAN, is4); ok {
		header := ipv4Header + vxlanHeaders
		if !is4 {
			header = ipv6Header + vxlanHeaders
		}
		if t.MTU+header > size {
			size, overhead = t.MTU+header, header
		}
	}
	if size == 0 {
		return r.PodMTU, 0
	}
	return size, overhead
}

// newProber takes the source addresses from the agent's report.
func newProber(r *nodestatus.Report) *prober {
	p := &prober{from: map[bool]netip.Addr{}}
	for _, text := range []string{r.Address, r.Address6} {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			p.from[prefix.Addr().Is4()] = prefix.Addr()
		}
	}
	if t, ok := tunnelOf(r, kindIPIP, true); ok {
		p.tunnel, _ = netip.ParseAddr(t.Address)
	}
	p.ends = map[bool]vxlanEnd{}
	for _, is4 := range []bool{true, false} {
		if t, ok := tunnelOf(r, kindVXLAN, is4); ok {
			addr, _ := netip.ParseAddr(t.Address)
			p.ends[is4] = vxlanEnd{addr: addr, device: t.Device, port: uint16(t.Port)}
		}
	}
	return p
}
