package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// tunnels is the state of the agent's tunnels.
type tunnels struct {
	ends    [desired.TunnelKinds]tunnelEnd
	changes desired.Changes
	crypts  desired.Crypts
	devices [desired.TunnelKinds]device
	aliens  map[string]bool    // names of devices that were another program's in this pass
	states  [2]wireguard.State // of WireGuard's devices over IPv4 and IPv6, as of the last pass
	// unencrypted is why some packets are not encrypted in this pass, unthreaded why they are not received as desired.
	unencrypted, unthreaded []error
	// unrotated is why keys are not changed; keys has since when the devices have their keys.
	unrotated []error
	keys      keyAges
	again     time.Duration // until changes look different; 0: never by themselves
	// rest has the devices to remove once no route needs them.
	rest []vxlan.Merged
	// checksumsBroken: see Self.
	checksumsBroken bool
	// noWireGuard: see Self.
	noWireGuard bool

	// known is the UID of the Node for which an agent of this machine has last assigned the addresses.
	known string

	links  []int           // links of which neighbour events are subscribed
	events <-chan struct{} // nil: not subscribed
	deaf   context.CancelFunc
}

// tunnelEnd is this node's end of one kind of tunnel.
type tunnelEnd struct {
	keeper     *duties.Tunnel
	annotation string
	addr       netip.Addr // as far as known
	stands     bool       // the device exists and receives
}

// newTunnels returns the tunnels in the order in which Calico assigns their addresses.
func newTunnels(client *ipam.Client, node, stateDir string) tunnels {
	t := tunnels{checksumsBroken: vxlan.ChecksumsBroken(), keys: readKeyAges(stateDir)}
	if text, err := os.ReadFile(filepath.Join(stateDir, nodeFile)); err == nil { // without the file there is one more write
		t.known = strings.TrimSpace(string(text))
	}
	for k, of := range [desired.TunnelKinds]struct {
		kind       duties.TunnelKind
		annotation string
	}{
		desired.IPIPTunnel:   {duties.IPIP, api.AnnotationIPv4TunnelAddr},
		desired.VXLANTunnel:  {duties.VXLAN, api.AnnotationIPv4VXLANAddr},
		desired.VXLANTunnel6: {duties.VXLANv6, api.AnnotationIPv6VXLANAddr},

		desired.WireGuardTunnel:  {duties.WireGuard, api.AnnotationIPv4WireGuard},
		desired.WireGuardTunnel6: {duties.WireGuardV6, api.AnnotationIPv6WireGuard},
	} {
		t.ends[k] = tunnelEnd{keeper: duties.NewTunnel(client, of.kind, node, time.Now), annotation: of.annotation}
	}
	return t
}

// tunnelAddresses finds the addresses of the tunnels' devices. While the datastore does not answer, the last addresses
// stay, or the addresses in the Node's annotations.
func (a *Agent) tunnelAddresses(ctx context.Context, s *desired.Snapshot) error {
	unread := len(s.Pools) < len(a.view.Cluster.Pools) || slices.ContainsFunc(a.view.Cluster.Problems, func(p state.Problem) bool {
		return p.Kind == (*api.IPPool)(nil).ResourceType()
	})
	var errs []error
	for k := range desired.TunnelKinds {
		end := &a.tunnels.ends[k]
		noted := a.node.Annotations[end.annotation]
		if !end.addr.IsValid() {
			end.addr, _ = netip.ParseAddr(noted)
		}
		if !a.gone && a.offline == nil { // an address for no Node is a leak
			assign, keep := s.TunnelRanges(k)
			if noted == "" && !end.addr.IsValid() && keep == nil && (k == desired.WireGuardTunnel || k == desired.WireGuardTunnel6) {
				continue // nearly all clusters have it off: saves a request at each agent's start
			}
			in := duties.TunnelInput{Ranges: duties.Ranges{Assign: assign, Keep: keep}, UID: a.node.UID, Known: a.tunnels.known == a.node.UID,
				Noted: noted, Blocks: s.Blocks, Unsure: unread}
			addr, err := end.keeper.Address(ctx, in)
			if err == nil {
				end.addr = addr
			}
			errs = append(errs, err)
		}
		*s.Self.AddrOf(k) = end.addr
	}
	if err := errors.Join(errs...); err != nil || a.gone || a.offline != nil {
		return err
	}
	return a.knowNode()
}

// knowNode stores for later agents that the tunnels' addresses belong to this Node.
func (a *Agent) knowNode() error {
	if a.tunnels.known == a.node.UID {
		return nil
	}
	if err := writeState(a.Config.StateDir, nodeFile, a.node.UID); err != nil {
		return err
	}
	a.tunnels.known = a.node.UID
	return nil
}

// occupied returns the addresses of pods and tunnels in the kernel, in ascending order.
func occupied(pods []netip.Addr, tunnels []netip.Addr) []netip.Addr {
	if len(tunnels) == 0 {
		return pods
	}
	all := slices.Concat(pods, tunnels)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// announceSelf announces to other nodes, Calico's among them, how to reach this one.
func (a *Agent) announceSelf(ctx context.Context, s *desired.Snapshot) error {
	want := map[string]string{
		api.AnnotationIPv4Address: prefixText(s.Self.Addr),
		api.AnnotationIPv6Address: prefixText(s.Self.Addr6),
	}
	want[api.AnnotationReflection] = "" // left by an agent of an earlier release
	if asn := a.Config.Addresses.ASN; asn != 0 {
		want[api.AnnotationASNumber] = strconv.FormatUint(uint64(asn), 10)
	}
	for _, end := range a.tunnels.ends {
		if end.stands || !end.addr.IsValid() { // else others would send what this node cannot receive yet
			want[end.annotation] = addrText(end.addr)
		}
	}
	for i, key := range desired.KeyAnnotations {
		next := desired.NextKeyAnnotations[i]
		want[key], want[next] = "", ""
		if state := a.tunnels.states[i]; s.Announces(i == 1) && state.Public != (wireguard.Key{}) {
			want[key], want[next] = state.Public.String(), state.Public.String()
			if state.Second != nil {
				want[next] = state.Second.Public.String()
			}
		}
	}
	a.repairs.add(time.Now(), a.annotations.look(a.node.Annotations, want)...)
	if err := duties.Announce(ctx, a.Store, a.node.Annotations, a.node.Name, want); err != nil {
		if errors.Is(err, datastore.ErrNotFound) { // the Node is gone
			for _, end := range a.tunnels.ends {
				err = errors.Join(err, end.keeper.Abandon(ctx))
			}
		}
		return fmt.Errorf("announce this node's address: %w", err)
	}
	a.repairs.add(time.Now(), a.annotations.written()...)
	return nil
}

// syncTunnels makes the desired devices, with the entries of other nodes. Superfluous ones stay until no route needs
// them: see pruneTunnels.
func (a *Agent) syncTunnels(ctx context.Context, s *desired.Snapshot) error {
	want := s.Tunnels()
	t := &a.tunnels
	t.aliens = map[string]bool{}
	t.rest = t.rest[:0]
	var errs []error
	done := func(k desired.TunnelKind, err error) {
		t.ends[k].stands = err == nil
		errs = append(errs, err)
	}
	if want.IPIP != nil {
		was, err := a.Encap.Sync(ctx, *want.IPIP)
		a.made(desired.IPIPTunnel, *want.IPIP, was, err)
		done(desired.IPIPTunnel, s.NameRemedy(err))
	}
	var links []int
	for i, v := range []*vxlan.Tunnel{want.VXLAN, want.VXLANv6} {
		if v == nil {
			continue
		}
		m, err := a.VXLAN.Merge(ctx, *v)
		k := desired.VXLANTunnel + desired.TunnelKind(i)
		m.Was = t.unlessAlien(k, m.Was)
		a.repairs.add(time.Now(), t.devices[k].madeVXLAN(*v, m, err)...)
		done(k, err)
		t.rest = append(t.rest, m)
		if m.Link != 0 {
			links = append(links, m.Link)
		}
	}
	a.syncWireGuard(ctx, s)
	slices.Sort(links)
	return errors.Join(append(errs, t.listen(ctx, a, links))...)
}

// syncWireGuard makes WireGuard's devices, without their peers.
func (a *Agent) syncWireGuard(ctx context.Context, s *desired.Snapshot) {
	t := &a.tunnels
	t.unencrypted, t.unrotated = nil, s.Unrotated(time.Now())
	for i := range t.states {
		d := s.WireGuard(i == 1)
		if d == nil {
			continue
		}
		state, err := a.WireGuard.Merge(ctx, *d)
		k := desired.WireGuardTunnel + desired.TunnelKind(i)
		a.made(k, *d, state.Was, err)
		t.ends[k].stands = err == nil
		t.noWireGuard = errors.Is(err, wireguard.ErrNoWireGuard)
		s.Self.NoWireGuard = t.noWireGuard // at once: pods that start meanwhile need no smaller MTU
		if err != nil {
			t.unencrypted = append(t.unencrypted, err)
			continue
		}
		state.Second = t.states[i].Second
		t.states[i] = state
		if err := a.rotate(ctx, s, i); err != nil {
			t.unrotated = append(t.unrotated, err)
		}
	}
	if err := a.noteKeys(s); err != nil {
		t.unrotated = append(t.unrotated, err)
	}
}

// encrypt makes the peers of WireGuard's devices, and the routes and rules that lead packets there: first for
// receiving, then for sending. It removes nothing while routes are held. Failures are problems to show; only if
// encryption is required do they keep pods off the node.
func (a *Agent) encrypt(ctx context.Context, judge *desired.Judge, accepted []bgp.Path, before routes.Predecessors) error {
	errs := a.tunnels.unencrypted
	a.tunnels.unthreaded = nil
	for _, v6 := range []bool{false, true} {
		if err := a.encryptFamily(ctx, judge, v6, accepted, before); err != nil {
			errs = append(errs, err)
		}
	}
	a.setProblems("wireguard", slices.Concat(errs, a.tunnels.unthreaded, a.tunnels.unrotated))
	if a.Config.RequireEncryption {
		return errors.Join(errs...)
	}
	return nil
}

func (a *Agent) encryptFamily(ctx context.Context, judge *desired.Judge, v6 bool, accepted []bgp.Path, before routes.Predecessors) error {
	state := &a.tunnels.states[0]
	if v6 {
		state = &a.tunnels.states[1]
	}
	d, held := judge.WireGuard(v6), a.bgp.holding
	if !judge.Rules(v6) {
		if held {
			return nil
		}
		*state = wireguard.State{}
		return a.WireGuard.Remove(ctx, v6, before)
	}
	peers, nexts, ways := judge.Encrypted(v6, accepted)
	var errs []error
	var devices []*wireguard.Device
	if stands := d != nil && state.Public != (wireguard.Key{}); stands {
		d.Peers, devices = peers, append(devices, d)
	}
	second := judge.SecondWireGuard(v6)
	if stands := second != nil && state.Second != nil; stands {
		second.Peers, devices = nexts, append(devices, second)
	}
	for _, d := range devices {
		lost, err := a.WireGuard.Peers(ctx, *d)
		if errs = append(errs, err); err == nil {
			a.repairs.add(time.Now(), lostPeers(d.Name(), lost, len(d.Peers))...)
		}
		if err := d.Thread(sysctl.Root(a.Config.NetSysfs)); err != nil {
			a.tunnels.unthreaded = append(a.tunnels.unthreaded, err)
		}
	}
	errs = append(errs, a.WireGuard.Routes(ctx, v6, ways, !held, before), a.WireGuard.Lead(ctx, v6, judge.RulePriority()))
	switch {
	case held:
	case d == nil:
		*state = wireguard.State{}
		errs = append(errs, a.WireGuard.RemoveDevices(ctx, v6))
	default:
		errs = append(errs, a.pruneEncryption(ctx, v6, devices, state.Peers > 0, second != nil))
	}
	return errors.Join(errs...)
}

// pruneEncryption removes superfluous peers, and the second device unless it stays. first is whether the first device
// has any peers.
func (a *Agent) pruneEncryption(ctx context.Context, v6 bool, devices []*wireguard.Device, first, secondStays bool) error {
	var errs []error
	for _, d := range devices {
		if d.Second || len(d.Peers) > 0 || first {
			errs = append(errs, a.WireGuard.Prune(ctx, *d))
		}
	}
	if !secondStays {
		errs = append(errs, a.WireGuard.RemoveSecond(ctx, v6))
	}
	return errors.Join(errs...)
}

// listen wakes the agent when entries of the devices change.
func (t *tunnels) listen(ctx context.Context, a *Agent, links []int) (err error) {
	if slices.Equal(links, t.links) && (t.events != nil || len(links) == 0) {
		return nil
	}
	t.ignore()
	if len(links) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // not the pass's context
	if t.events, err = a.Kernel.SubscribeToNeighbours(ctx, links); err != nil {
		cancel()
		return err
	}
	t.links, t.deaf = links, cancel
	return nil
}

// ignore ends the subscription of listen.
func (t *tunnels) ignore() {
	if t.deaf != nil {
		t.deaf()
	}
	t.links, t.events, t.deaf = nil, nil, nil
}

func (t *tunnels) heard(ok bool) {
	if !ok {
		t.events = nil
	}
}

// pruneTunnels removes entries of nodes that have gone, and devices that no pool uses, after the routes no longer need
// them. It removes nothing while routes are held.
func (a *Agent) pruneTunnels(ctx context.Context, s *desired.Snapshot) error {
	if a.bgp.holding {
		return nil
	}
	var errs []error
	for _, m := range a.tunnels.rest {
		errs = append(errs, m.Prune())
	}
	for k := range desired.TunnelKinds {
		if s.Needs(k) {
			continue
		}
		a.tunnels.ends[k].stands, a.tunnels.devices[k] = false, device{}
		switch k {
		case desired.IPIPTunnel:
			errs = append(errs, a.Encap.Remove(ctx))
		case desired.VXLANTunnel, desired.VXLANTunnel6:
			errs = append(errs, a.VXLAN.Remove(ctx, k == desired.VXLANTunnel6))
		}
	}
	return errors.Join(errs...)
}
