package desired

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// WireGuard has the fields of a FelixConfiguration about WireGuard, for IPv4 and IPv6. The zero value is Calico's
// default: off.
type WireGuard struct {
	On        [2]bool
	Port      [2]uint16 // 0: the default
	MTU       [2]int    // 0 derives it from the link
	Priority  int       // of the ip rule; 0: the default
	Keepalive uint16    // seconds
	Threaded  string    // see wireguard.Device
}

// place returns the index of an address family in arrays for both.
func place(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// cryptKind returns the tunnel at an index.
func cryptKind(i int) TunnelKind { return WireGuardTunnel + TunnelKind(i) }

// parse reads the fields from a spec.
func (w *WireGuard) parse(spec api.FelixConfigurationSpec, note noter) {
	on := func(b *bool) bool { return b != nil && *b }
	w.On = [2]bool{on(spec.WireguardEnabled), on(spec.WireguardEnabledV6)}
	note.number("wireguardListeningPort", spec.WireguardListeningPort, 1, 1<<16-1, udpPort, func(n int) { w.Port[0] = uint16(n) })
	note.number("wireguardListeningPortV6", spec.WireguardListeningPortV6, 1, 1<<16-1, udpPort, func(n int) { w.Port[1] = uint16(n) })
	for i, field := range []string{"wireguardMTU", "wireguardMTUV6"} {
		least, most := wireguard.MTULimits(i == 1)
		note.mtu(field, []*int{spec.WireguardMTU, spec.WireguardMTUV6}[i], least, most, func(n int) { w.MTU[i] = n })
	}
	const lastRule = 32765 // before the main table's
	note.number("wireguardRoutingRulePriority", spec.WireguardRoutingRulePriority, 1, lastRule, "a number from 1 to 32765",
		func(n int) { w.Priority = n })
	if d, err := optional(spec.WireguardKeepAlive, time.ParseDuration); err == nil && d >= 0 && d <= math.MaxUint16*time.Second {
		w.Keepalive = uint16(d / time.Second)
	} else {
		note("wireguardKeepAlive", cut(spec.WireguardKeepAlive), "a duration from 0s to 65535s, such as 25s")
	}
	w.Threaded = ""
	if threads := spec.WireguardThreadingEnabled; threads != nil {
		w.Threaded = map[bool]string{false: wireguard.Unthreaded, true: wireguard.Threaded}[*threads]
	}
	if on(spec.WireguardHostEncryptionEnabled) {
		note("wireguardHostEncryptionEnabled", "true", "false: what is sent to addresses of nodes is not encrypted here")
	}
}

// port returns the port on which nodes receive.
func (w *WireGuard) port(i int) uint16 {
	return cmp.Or(w.Port[i], [...]uint16{wireguard.DefaultPort4, wireguard.DefaultPort6}[i])
}

// secondPort returns the port of the second device: after the greater of both ports; without two ports there, before
// the lesser one; without two there either, between both.
func (w *WireGuard) secondPort(i int) uint16 {
	lesser, greater := min(w.port(0), w.port(1)), max(w.port(0), w.port(1))
	first := greater + 1
	switch {
	case greater <= math.MaxUint16-2:
	case lesser > 2:
		first = lesser - 2
	default:
		first = lesser + 1
	}
	return first + uint16(i)
}

// wireGuardPorts returns the ports of this node's devices, and of the second devices that it may have.
func (s *Snapshot) wireGuardPorts() (ports []uint16) {
	for i := range s.crypt {
		if s.Needs(cryptKind(i)) {
			ports = append(ports, s.Felix.WireGuard.port(i), s.Felix.WireGuard.secondPort(i))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// encrypts reports whether a tunnel is WireGuard's and on.
func (s *Snapshot) encrypts(k TunnelKind) bool {
	return k >= WireGuardTunnel && s.Needs(k) && s.Felix.WireGuard.On[place(k.is6())]
}

// Encrypts reports whether packets may be encrypted, in one family at least.
func (s *Snapshot) Encrypts() bool { return s.Needs(WireGuardTunnel) || s.Needs(WireGuardTunnel6) }

// mustEncrypt reports whether nothing may be sent in the clear to pods of other nodes. With WireGuard off the
// requirement has no effect: an operator can turn off encryption in one place.
func (s *Snapshot) mustEncrypt() bool {
	return s.Self.RequireEncryption && slices.Contains(s.Felix.WireGuard.On[:], true)
}

// KeyAnnotations are the annotations with nodes' keys for IPv4 and IPv6.
var KeyAnnotations = [2]string{api.AnnotationWireGuardKey, api.AnnotationWireGuardKeyV6}

// NextKeyAnnotations are the annotations with their next keys.
var NextKeyAnnotations = [2]string{api.AnnotationWireGuardNextKey, api.AnnotationWireGuardNextKeyV6}

// keysOf reads the public keys of a Node.
func keysOf(n api.Node, annotations [2]string, note func(error)) (keys [2]wireguard.Key) {
	for i, annotation := range annotations {
		text := n.Annotations[annotation]
		if text == "" {
			continue
		}
		var err error
		if keys[i], err = wireguard.ParseKey(text); err != nil {
			note(inNode(n.Name, fmt.Errorf("annotation %s %q %w: what is sent to its pods is not encrypted until its agent has corrected that",
				annotation, cut(text), err)))
		}
	}
	return keys
}

// checkKeys assigns each key to one node, the first in precedence of those that announce it. A node with another node's
// key cannot decrypt, but would receive all packets for that node. A node owns the key that it announced as its next
// one, before others could know it.
func (s *Snapshot) checkKeys(nodes []api.Node, ev *Evidence, note func(error)) {
	for i := range KeyAnnotations {
		first := map[wireguard.Key]claimant{}
		for n := range nodes {
			at, member := s.index.byName[nodes[n].Name]
			if !member {
				continue
			}
			m := &s.Others[at]
			for _, key := range m.distinctKeys(i) {
				c := claimant{Node: &nodes[n], since: ev.Known.since(m.Name, keyNext+i)}
				if main := ev.Known.since(m.Name, keyCrypt+i); m.Keys[i] == key && (m.Next[i] != key || main.Before(c.since)) {
					c.since = main
				}
				before, taken := first[key]
				switch {
				case !taken:
					first[key] = c
				case c.before(before):
					first[key] = c
					s.disown(before.Name, key, i, c.Name, note)
				default:
					s.disown(c.Name, key, i, before.Name, note)
				}
			}
		}
	}
}

// distinctKeys returns the keys that a node announces in an address family.
func (m *Member) distinctKeys(i int) []wireguard.Key {
	keys := []wireguard.Key{m.Keys[i], m.Next[i]}
	if m.Keys[i] == m.Next[i] {
		keys = keys[:1]
	}
	return slices.DeleteFunc(keys, func(k wireguard.Key) bool { return k == wireguard.Key{} })
}

// disown removes a key from a node that does not own it.
func (s *Snapshot) disown(node string, key wireguard.Key, i int, owner string, note func(error)) {
	m := &s.Others[s.index.byName[node]]
	if s.disowned == nil {
		s.disowned = map[string][]string{}
	}
	annotations := [...]string{KeyAnnotations[i], NextKeyAnnotations[i]}
	for j, own := range []*wireguard.Key{&m.Keys[i], &m.Next[i]} {
		if annotation := annotations[j]; *own == key {
			*own = wireguard.Key{}
			s.disowned[node] = append(s.disowned[node], annotation)
			note(inNode(node, fmt.Errorf(
				"its key for WireGuard is that of node %s: what is sent to its pods is not encrypted: remove annotation %s of the wrong one",
				owner, annotation)))
		}
	}
}

// ToKeep returns the nodes with which this node's next agent must begin: without the keys that other nodes announced
// first. So those keys are the younger ones there too.
func (s *Snapshot) ToKeep(nodes []api.Node) []api.Node {
	if len(s.disowned) == 0 {
		return nodes
	}
	nodes = slices.Clone(nodes)
	for i := range nodes {
		if keys := s.disowned[nodes[i].Name]; len(keys) > 0 {
			nodes[i].Annotations = maps.Clone(nodes[i].Annotations)
			for _, key := range keys {
				delete(nodes[i].Annotations, key)
			}
		}
	}
	return nodes
}

// crypt is the state of WireGuard over one address family.
type crypt struct {
	// leaving: WireGuard was turned off a moment ago. Other nodes may still send encrypted packets.
	leaving bool
	// peers are the nodes with keys, by name; packets are received from all of them.
	peers map[string]cryptPeer
	turn
}

type cryptPeer struct {
	key wireguard.Key
	// ready: packets to the node are encrypted.
	ready bool
	// gone: the node no longer announces this key.
	gone bool
	// next is the node's key on the second device; zero: that device does not have the node.
	next wireguard.Key
	// second: packets to the node leave by the second device.
	second bool
}

// Crypts holds, for both address families, which nodes can decrypt. Nodes learn each other's keys at different times. A
// node is sent encrypted packets once a handshake has shown that it has this node's key. Its encrypted packets are
// received for some time after it, or this node, has turned WireGuard off. So no packet is lost.
type Crypts [2]struct {
	on    bool
	ended time.Time // when WireGuard was turned off
	peers map[string]knownPeer
	rotation
}

type knownPeer struct {
	cryptPeer
	since     time.Time     // when its key appeared or went
	announced wireguard.Key // its next key
	changes   bool          // it changes its key, and is believed to do so
	// spent is how long it has been changing its key since counted, as of judged.
	spent           time.Duration
	counted, judged time.Time
}

// patience is how long packets go in the clear while a handshake is waited for. After that they are encrypted even if
// the node stays silent.
const patience = followTime

// Follow takes up the nodes and puts into the snapshot which of them are sent encrypted packets, given the state of the
// devices. again is when to look again, 0 for never.
func (c *Crypts) Follow(s *Snapshot, states [2]wireguard.State, now time.Time) (again time.Duration) {
	for i := range c {
		m, k := &c[i], cryptKind(i)
		local, _ := s.Self.of(k)
		switch on := local.IsValid() && s.Felix.WireGuard.On[i]; {
		case m.on && !on:
			m.ended = now
		case on:
			m.ended = time.Time{}
		}
		m.on = local.IsValid() && s.Felix.WireGuard.On[i]
		leaving := !m.ended.IsZero() && now.Sub(m.ended) < followTime
		if !m.on && !leaving {
			m.peers, m.rotation = nil, rotation{}
			continue
		}
		if m.peers == nil {
			m.peers = map[string]knownPeer{}
		}
		again = Sooner(again, c.follow(i, s, states[i], now))
		if leaving {
			again = Sooner(again, followTime-now.Sub(m.ended))
		}
		turn, pause := m.rotation.follow(s, m.peers, &states[i], now, i)
		again = Sooner(again, pause)
		s.crypt[i] = crypt{leaving: leaving, peers: make(map[string]cryptPeer, len(m.peers)), turn: turn}
		for name, p := range m.peers {
			p.ready = p.ready && m.on
			s.crypt[i].peers[name] = p.cryptPeer
		}
	}
	return again
}

// follow takes up the keys of one address family.
func (c *Crypts) follow(i int, s *Snapshot, state wireguard.State, now time.Time) (again time.Duration) {
	peers := c[i].peers
	announced := map[string]bool{}
	for _, m := range s.Others {
		key := m.Keys[i]
		if key == (wireguard.Key{}) || key == state.Public || !m.of(i).IsValid() {
			continue
		}
		announced[m.Name] = true
		p := peers[m.Name]
		if p.key != key {
			p.cryptPeer, p.since = cryptPeer{key: key}, now
		}
		p.turn(m.Next[i], &state, now)
		if p.gone {
			p.gone, p.since = false, now
		}
		_, answered := state.Handshakes[key]
		silent := !answered && now.Sub(p.since) < patience
		if p.ready = p.ready || p.second || s.mustEncrypt() || !silent; silent {
			again = Sooner(again, min(time.Second, patience-now.Sub(p.since)))
		}
		peers[m.Name] = p
	}
	for name, p := range peers {
		if announced[name] {
			continue
		}
		if !p.gone {
			p.gone, p.ready, p.since = true, false, now
		}
		if now.Sub(p.since) >= followTime {
			delete(peers, name)
			continue
		}
		peers[name] = p
		again = Sooner(again, followTime-now.Sub(p.since))
	}
	return again
}

// Sooner returns the lesser of two pauses; 0 means none.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// of returns the member's address in the family at an index.
func (m *Member) of(i int) netip.Addr {
	if i == 1 {
		return m.Addr6
	}
	return m.Addr
}

// WireGuard returns a family's device without peers; nil if this node should not have it.
func (s *Snapshot) WireGuard(v6 bool) *wireguard.Device {
	k := cryptKind(place(v6))
	if !s.Needs(k) {
		return nil
	}
	w := &s.Felix.WireGuard
	d := &wireguard.Device{
		V6: v6, Port: w.port(place(v6)), MTU: s.tunnelMTU(k), Addr: *s.Self.AddrOf(k), Keepalive: w.Keepalive, Threaded: w.Threaded,
	}
	if d.Keepalive == 0 && s.crypt[place(v6)].own { // shows which nodes can be reached
		d.Keepalive = turnKeepalive
	}
	return d
}

// Rules reports whether a family's table must be looked up: it has a device, or packets must not be sent in the clear.
func (s *Snapshot) Rules(v6 bool) bool {
	return s.Needs(cryptKind(place(v6))) ||
		s.mustEncrypt() && slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.CIDR.Addr().Is6() == v6 })
}

// RulePriority returns the priority of the ip rules.
func (s *Snapshot) RulePriority() int {
	return cmp.Or(s.Felix.WireGuard.Priority, wireguard.DefaultPriority)
}

// Announces reports whether the node must announce a family's key: not if WireGuard is off or being turned off.
func (s *Snapshot) Announces(v6 bool) bool { return s.encrypts(cryptKind(place(v6))) }

// Encrypted returns the peers of a family's first and second device, and the routes of its table, by the accepted
// paths. All paths in pools to a node with a key lead to a device. More specific destinations inside such a path are
// left to the main table, or prohibited if encryption is required.
func (j *Judge) Encrypted(v6 bool, accepted []bgp.Path) (peers, second []wireguard.Peer, ways []routes.Route) {
	e := encryption{Judge: j, v6: v6, crypt: &j.crypt[place(v6)], allowed: map[string][]netip.Prefix{}}
	if j.Needs(cryptKind(place(v6))) {
		e.follow(accepted)
		peers, second = e.peers()
	}
	return peers, second, distinct(e.ways())
}

// distinct drops routes to the destination of an earlier one.
func distinct(ways []routes.Route) []routes.Route {
	seen := make(map[netip.Prefix]bool, len(ways))
	return slices.DeleteFunc(ways, func(r routes.Route) bool {
		before := seen[r.Dst]
		seen[r.Dst] = true
		return before
	})
}

// encryption is one call of Encrypted.
type encryption struct {
	*Judge
	v6        bool
	crypt     *crypt
	allowed   map[string][]netip.Prefix // by node
	encrypted []routes.Route
	clear     []netip.Prefix // prefixes of other paths
}

// follow sorts the accepted paths into encrypted and clear.
func (e *encryption) follow(accepted []bgp.Path) {
	for paths := range byPrefix(accepted) {
		prefix := paths[0].Prefix
		if _, in := e.poolOf(prefix); !in || prefix.Addr().Is6() != e.v6 {
			continue
		}
		node, p, has := e.cryptPeer(paths)
		if has {
			e.allowed[node] = append(e.allowed[node], prefix)
		}
		if has && p.ready {
			dev := wireguard.Name(e.v6)
			if p.second {
				dev = wireguard.SecondName(e.v6)
			}
			e.encrypted = append(e.encrypted, routes.To(prefix, routes.Hop{Dev: dev}))
		} else {
			e.clear = append(e.clear, prefix)
		}
	}
}

// cryptPeer returns the node with a key to which all paths of a prefix lead.
func (s *Snapshot) cryptPeer(paths []bgp.Path) (node string, p cryptPeer, has bool) {
	hop := paths[0].NextHop
	m, known := s.MemberAt(hop)
	if !known || slices.ContainsFunc(paths, func(p bgp.Path) bool { return p.NextHop != hop }) {
		return "", p, false
	}
	p, has = s.crypt[place(hop.Is6())].peers[m.Name]
	return m.Name, p, has
}

// encryptedTo reports whether packets by the paths of a prefix are encrypted.
func (s *Snapshot) encryptedTo(paths []bgp.Path) bool {
	_, p, has := s.cryptPeer(paths)
	if !has || !p.ready {
		return false
	}
	_, in := s.poolOf(paths[0].Prefix)
	return in
}

// peers returns the nodes with keys, for both devices. A node may also send from its own address, the source of its
// answers to pods, unless that may be a pod's address: a node can announce any. A key that a node has given up is left
// to the node that has it now.
func (e *encryption) peers() (peers, second []wireguard.Peer) {
	i := place(e.v6)
	live, taken := map[wireguard.Key]bool{}, map[netip.Prefix]bool{}
	for _, p := range e.crypt.peers {
		live[p.key] = live[p.key] || !p.gone
	}
	for _, name := range slices.Sorted(maps.Keys(e.crypt.peers)) {
		p := e.crypt.peers[name]
		m, ok := e.Member(name)
		if !ok || !m.of(i).IsValid() || p.gone && live[p.key] {
			continue
		}
		live[p.key] = true
		addr := m.of(i)
		peer := wireguard.Peer{Key: p.key, Endpoint: netip.AddrPortFrom(addr, e.Felix.WireGuard.port(i))}
		allowed := e.allowed[name]
		if !e.inOthersBlock(m, addr) {
			allowed = append([]netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}, allowed...)
		}
		for _, a := range allowed {
			if !taken[a] {
				taken[a] = true
				peer.Allowed = append(peer.Allowed, a)
			}
		}
		if peers = append(peers, peer); p.next != (wireguard.Key{}) {
			peer.Key, peer.Endpoint = p.next, netip.AddrPortFrom(addr, e.Felix.WireGuard.secondPort(i))
			second = append(second, peer)
		}
	}
	return peers, second
}

// ways returns the routes of the table; of several with one destination the first counts.
func (e *encryption) ways() []routes.Route {
	ways, inside, must := e.encrypted, e.insider(), e.mustEncrypt()
	for _, p := range e.own() {
		if must || inside(p) {
			ways = append(ways, routes.Route{Dst: p, Type: netlinkx.Throw})
		}
	}
	other := netlinkx.Throw
	if must {
		ways, other = append(ways, e.refused()...), netlinkx.Prohibit
	}
	for _, p := range e.clear {
		if must || inside(p) {
			ways = append(ways, routes.Route{Dst: p, Type: other})
		}
	}
	return ways
}

// insider returns a function that reports whether a prefix lies in a destination that leads to the device.
func (e *encryption) insider() func(netip.Prefix) bool {
	routed := map[netip.Prefix]bool{}
	lengths := map[int]bool{}
	for _, r := range e.encrypted {
		routed[r.Dst], lengths[r.Dst.Bits()] = true, true
	}
	return func(p netip.Prefix) bool {
		for bits := range lengths {
			if bits <= p.Bits() && routed[netip.PrefixFrom(p.Addr(), bits).Masked()] {
				return true
			}
		}
		return false
	}
}

// own returns this node's blocks, and its pods' addresses in other nodes' blocks.
func (e *encryption) own() (own []netip.Prefix) {
	for _, b := range e.Blocks {
		if b.Addr().Is6() == e.v6 {
			own = append(own, b)
		}
	}
	for _, a := range e.Self.Pods {
		single := netip.PrefixFrom(a, a.BitLen())
		if _, owner, owned := e.blockOf(single); a.Is6() == e.v6 && (!owned || owner.Node != e.Self.Name) {
			own = append(own, single)
		}
	}
	return own
}

// inOthersBlock reports whether an address of a node lies in another node's block: it may be a pod's.
func (s *Snapshot) inOthersBlock(m *Member, a netip.Addr) bool {
	_, owner, owned := s.blockOf(netip.PrefixFrom(a, a.BitLen()))
	return owned && owner.Node != m.Name
}

// refused returns the routes that prohibit unencrypted packets to pools. Nodes' addresses, this node's networks, the
// API server and gateways are exempt.
func (e *encryption) refused() (ways []routes.Route) {
	leave := slices.Concat(e.Self.addrs(), e.Self.Internal, e.Self.APIServer, e.Self.Gateways)
	for i := range e.Others {
		m := &e.Others[i]
		if a := m.of(place(e.v6)); a.IsValid() && !e.inOthersBlock(m, a) {
			leave = append(leave, a)
		}
	}
	for _, pool := range e.Pools {
		if pool.CIDR.Addr().Is6() != e.v6 || pool.servicesOnly() {
			continue
		}
		ways = append(ways, routes.Route{Dst: pool.CIDR, Type: netlinkx.Prohibit})
		for _, a := range leave {
			if pool.CIDR.Contains(a) {
				ways = append(ways, routes.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Type: netlinkx.Throw})
			}
		}
		for _, at := range e.Subnets() {
			if inside(at.prefix, pool.CIDR) && at.prefix != pool.CIDR {
				ways = append(ways, routes.Route{Dst: at.prefix, Type: netlinkx.Throw})
			}
		}
	}
	return ways
}

// CryptReport describes WireGuard over one address family for people.
type CryptReport struct {
	wireguard.Device
	// Encrypted counts the nodes that are sent encrypted packets. Clear are the others: they are reached in the clear, or
	// not at all if encryption is required.
	Encrypted int
	Clear     []string
	// Since is when the device got its key. Changing: the key is being changed; Waiting are the nodes waited for.
	Since    time.Time
	Changing bool
	Waiting  []string
}

// CryptReports returns a report for each device that this node should have, if its kernel has WireGuard.
func (s *Snapshot) CryptReports() (all []CryptReport) {
	for i := range s.crypt {
		d := s.WireGuard(i == 1)
		if d == nil || s.Self.NoWireGuard {
			continue
		}
		t := &s.crypt[i].turn
		r := CryptReport{Device: *d, Since: s.Self.KeySince[i], Changing: t.own, Waiting: t.waiting}
		for _, m := range s.Others {
			switch p, has := s.crypt[i].peers[m.Name]; {
			case !m.of(i).IsValid():
			case has && p.ready:
				r.Encrypted++
			default:
				r.Clear = append(r.Clear, m.Name)
			}
		}
		all = append(all, r)
	}
	return all
}
