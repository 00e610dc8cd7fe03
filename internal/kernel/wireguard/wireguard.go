package wireguard

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
)

// The defaults of Calico's FelixConfiguration.
const (
	DefaultPort4    uint16 = 51820
	DefaultPort6    uint16 = 51821
	DefaultPriority        = 99
)

// The devices' names are Calico's.
const (
	Device4 = "wireguard.cali"
	Device6 = "wg-v6.cali"
)

// The second devices' names. They exist while a node changes its key.
const (
	Second4 = "wireguard.next"
	Second6 = "wg-v6.next"
)

// Mark is the mark of outer packets, which the rule leaves to the main table. Its value and the tables are Calico's.
const Mark uint32 = 0x200000

// The tables of IPv4 and IPv6.
const (
	Table4 = 1
	Table6 = 2
)

// The bytes added to an inner packet: IP (20 or 40), UDP (8), WireGuard's header and tag (32).
const (
	Overhead4 = 60
	Overhead6 = 80
)

const kind = "wireguard"

// ErrNoWireGuard means that the kernel has no WireGuard. Its text names the remedy.
var ErrNoWireGuard = errors.New("the kernel has no WireGuard: load module wireguard (modprobe wireguard, and a line " +
	"\"wireguard\" in /etc/modules-load.d/wireguard.conf), use a kernel from 5.6 built with CONFIG_WIREGUARD, or set FelixConfiguration " +
	"spec.wireguardEnabled and spec.wireguardEnabledV6 to false")

// Key is a public key; the zero value means none.
type Key = netlinkx.WireGuardKey

// ParseKey reads a key in the form of Calico's annotation.
func ParseKey(text string) (k Key, err error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(k) || len(text) != base64.StdEncoding.EncodedLen(len(k)) { // Decode skips line ends
		return Key{}, errors.New("is no key of 32 bytes in base64")
	}
	return Key(b), nil
}

// Device is the desired device of one family, and its peers.
type Device struct {
	V6 bool
	// Second: it is the family's second device. SameKey: if the device has to be made, it gets the first device's key,
	// else a new one.
	Second, SameKey bool

	Port uint16
	MTU  int
	// Addr becomes the device's only address, as a /32 or /128; invalid: it has none.
	Addr netip.Addr
	// Keepalive is the interval of keepalives in seconds; 0: none.
	Keepalive uint16
	// Threaded is the value for Thread; empty leaves the kernel's default.
	Threaded string
	// Peers are the other nodes. No two may share a key or an allowed address.
	Peers []Peer
}

// Peer is another node.
type Peer struct {
	Key      Key
	Endpoint netip.AddrPort
	// Allowed are the prefixes that the peer may send from, and that packets to it have as destinations.
	Allowed []netip.Prefix
}

// State is the state of a device after a Merge.
type State struct {
	// Public is the key that other nodes need.
	Public Key
	// Handshakes holds the time of the last completed handshake of each peer. A peer without one is missing.
	Handshakes map[Key]time.Time
	Peers      int
	// Was holds the device's differences, such as "was missing" or "had MTU 1400".
	Was []string
	// Second is the state of the second device, nil without one that has a key.
	Second *State
}

// Changes reports whether the second device has another key, which the first one should get.
func (s *State) Changes() bool {
	return s.Second != nil && s.Public != (Key{}) && s.Second.Public != s.Public
}

// Name returns the name of a family's device.
func Name(v6 bool) string {
	if v6 {
		return Device6
	}
	return Device4
}

// SecondName returns the name of a family's second device.
func SecondName(v6 bool) string {
	if v6 {
		return Second6
	}
	return Second4
}

// Name returns the name of its link.
func (d *Device) Name() string {
	if d.Second {
		return SecondName(d.V6)
	}
	return Name(d.V6)
}

// Is reports whether a link is a family's device, and not another of the same name.
func Is(l netlinkx.Link, v6 bool) bool { return l.Name == Name(v6) && l.Here(kind) }

// IsSecond is Is for a family's second device.
func IsSecond(l netlinkx.Link, v6 bool) bool { return l.Name == SecondName(v6) && l.Here(kind) }

// Table returns the routing table of a family.
func Table(v6 bool) int {
	if v6 {
		return Table6
	}
	return Table4
}

// MTU returns the largest MTU of a device over a link with MTU host.
func MTU(host int, v6 bool) int {
	if v6 {
		return host - Overhead6
	}
	return host - Overhead4
}

// MTULimits returns the kernel's minimum for a link of a family, and the most that an outer packet can carry.
func MTULimits(v6 bool) (least, most int) {
	if v6 {
		return 1280, 65535 - Overhead6
	}
	return 68, 65535 - Overhead4
}

// Syncer keeps the devices in one network namespace. It reads their state from the kernel each time. It is for one
// goroutine.
type Syncer struct {
	conn     *netlinkx.Conn
	protocol netlinkx.Protocol
	told     map[string]map[Key]telling // the last written state of peers, by device
	believed map[Key]bool               // the public keys of the node's own devices
	tables   [2]*routes.Table
}

// telling is the last written state of a peer.
type telling struct {
	endpoint netip.AddrPort
	at       time.Time // when the peer was added; zero: by an earlier agent
	allowed  []netip.Prefix
}

// New returns the syncer of the connection's namespace. Its routes have the protocol given; takeOver are the protocols
// of predecessors. It touches nothing yet.
func New(conn *netlinkx.Conn, protocol netlinkx.Protocol, takeOver []netlinkx.Protocol) *Syncer {
	s := &Syncer{conn: conn, protocol: protocol, told: map[string]map[Key]telling{}, believed: map[Key]bool{}}
	for i := range s.tables {
		devices := []string{Name(i == 1), SecondName(i == 1)}
		s.tables[i] = routes.New(conn, routes.Options{Protocol: protocol, Table: Table(i == 1), TakeOver: takeOver, Devices: devices})
		for _, name := range devices {
			s.told[name] = map[Key]telling{}
		}
	}
	return s
}

// Believe accepts devices with these public keys as the node's own, besides those with keys that this Syncer has made.
// The maker of any other device knows its private key and may hold its socket: a pod with CAP_NET_ADMIN can move one
// here, which the kernel does not report.
func (s *Syncer) Believe(keys ...Key) {
	for _, k := range keys {
		if k != (Key{}) {
			s.believed[k] = true
		}
	}
}

func place(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// Merge makes the device as desired, but for its peers. Correct properties are not written. An existing device, such as
// Felix's, keeps a believed key, and is made anew otherwise. The error wraps ErrNoWireGuard if the kernel has no
// WireGuard.
func (s *Syncer) Merge(ctx context.Context, d Device) (State, error) {
	state, err := s.merge(ctx, d)
	if err != nil {
		err = fmt.Errorf("%s: %w", d.Name(), err)
	}
	return state, err
}

func (s *Syncer) merge(ctx context.Context, d Device) (State, error) {
	if err := d.validate(); err != nil {
		return State{}, err
	}
	link, have, made, err := s.ensure(d)
	if err != nil {
		return State{}, err
	}
	if err := s.settings(link, have, d); err != nil {
		return State{}, err
	}
	state := stateOf(have)
	state.Was = d.differences(link, have)
	if err := ctx.Err(); err != nil {
		return state, err
	}
	var addr netip.Prefix
	if d.Addr.IsValid() {
		addr = netip.PrefixFrom(d.Addr, d.Addr.BitLen())
	}
	addrs, err := s.conn.SoleAddr(link.Index, netlinkx.FamilyAll, addr)
	state.Was = append(state.Was, addrs...)
	errs := []error{err}
	if !link.Up {
		state.Was = append(state.Was, "was down")
		errs = append(errs, explainPort(s.conn.SetUp(link.Index), d.Port)) // SetUp opens the socket
	}
	if made {
		state.Was = []string{"was missing"}
	}
	return state, errors.Join(errs...)
}

// differences returns how a device differed from d before it was set.
func (d *Device) differences(link netlinkx.Link, have netlinkx.WireGuard) (was []string) {
	if link.MTU != d.MTU {
		was = append(was, fmt.Sprintf("had MTU %d", link.MTU))
	}
	if have.Port != d.Port {
		was = append(was, fmt.Sprintf("had port %d", have.Port))
	}
	if have.Mark != Mark {
		was = append(was, fmt.Sprintf("had firewall mark %#x", have.Mark))
	}
	return was
}

func stateOf(w netlinkx.WireGuard) State {
	state := State{Public: w.Public, Handshakes: map[Key]time.Time{}, Peers: len(w.Peers)}
	for _, p := range w.Peers {
		if !p.Handshake.IsZero() {
			state.Handshakes[p.Public] = p.Handshake
		}
	}
	return state
}

func (d *Device) validate() error {
	least, most := MTULimits(d.V6)
	switch {
	case d.Port == 0:
		return errors.New("no port")
	case d.MTU < least || d.MTU > most:
		return fmt.Errorf("mtu %d is not between %d and %d", d.MTU, least, most)
	case d.Addr.IsValid() && d.Addr.Is6() != d.V6:
		return fmt.Errorf("address %s is of the other family", d.Addr)
	}
	return nil
}

// validatePeers rejects peers that the kernel would misunderstand.
func (d *Device) validatePeers() error {
	keys, allowed := map[Key]bool{}, map[netip.Prefix]bool{}
	for _, p := range d.Peers {
		if p.Key == (Key{}) || !p.Endpoint.IsValid() || p.Endpoint.Addr().Is6() != d.V6 || keys[p.Key] {
			return fmt.Errorf("peer %s at %s has no key of its own, or no address of this family", p.Key, p.Endpoint)
		}
		keys[p.Key] = true
		for _, a := range p.Allowed {
			if a.Addr().Is6() != d.V6 || a != a.Masked() || allowed[a] {
				return fmt.Errorf("peer at %s: %s is of the other family, or of two peers", p.Endpoint, a)
			}
			allowed[a] = true
		}
	}
	return nil
}

// ensure returns the device, which has a key, its settings before the call, and whether it was made.
func (s *Syncer) ensure(d Device) (link netlinkx.Link, have netlinkx.WireGuard, made bool, err error) {
	name := d.Name()
	link, err = s.conn.Own(name, kind)
	if err == nil {
		if have, err = s.conn.WireGuard(link.Index); err == nil && !s.believed[have.Public] {
			if err = s.conn.Evict(link, " and with no key of this node's"); err == nil {
				err = unix.ENODEV
			}
		}
	}
	if made = netlinkx.IsNotExist(err); made {
		link, have, err = s.add(d)
	}
	if err == nil && link.MTU != d.MTU {
		err = s.conn.SetMTU(link.Index, d.MTU)
	}
	return link, have, made, err
}

// add makes the device, with a key.
func (s *Syncer) add(d Device) (link netlinkx.Link, have netlinkx.WireGuard, err error) {
	name := d.Name()
	clear(s.told[name])
	if err := s.conn.AddWireGuard(name, d.MTU); netlinkx.IsUnsupported(err) {
		return link, have, fmt.Errorf("%w (%w)", ErrNoWireGuard, err)
	} else if err != nil {
		return link, have, err
	}
	if link, err = s.conn.LinkByName(name); err != nil {
		return link, have, err
	}
	if err = s.key(link, d); err != nil {
		return link, have, errors.Join(err, s.conn.DeleteLink(link.Index))
	}
	have, err = s.conn.WireGuard(link.Index)
	switch {
	case err != nil:
	case d.SameKey && !s.believed[have.Public]:
		err = fmt.Errorf("%s was replaced meanwhile by one with another key", Name(d.V6))
	default:
		s.Believe(have.Public)
	}
	return link, have, err
}

// settings sets the device's port and mark.
func (s *Syncer) settings(link netlinkx.Link, have netlinkx.WireGuard, d Device) error {
	if have.Mark != Mark {
		if err := s.conn.SetWireGuardMark(link.Index, Mark); err != nil {
			return err
		}
	}
	if have.Port == d.Port {
		return nil
	}
	return explainPort(s.conn.SetWireGuardPort(link.Index, d.Port), d.Port)
}

// key sets a device's private key.
func (s *Syncer) key(link netlinkx.Link, d Device) error {
	if d.SameKey {
		first, err := s.conn.LinkByName(Name(d.V6))
		if err != nil {
			return err
		}
		return s.conn.CopyWireGuardKey(first.Index, link.Index)
	}
	var private Key
	if _, err := rand.Read(private[:]); err != nil {
		return err
	}
	return s.conn.SetWireGuardKey(link.Index, private)
}

// States returns the states of a family's devices that exist and have believed keys.
func (s *Syncer) States(v6 bool) (first State, err error) {
	for _, second := range []bool{false, true} {
		_, have, err := s.read(&Device{V6: v6, Second: second})
		switch {
		case netlinkx.IsNotExist(err):
		case err != nil:
			return first, err
		case !s.believed[have.Public]:
		case !second:
			first = stateOf(have)
		default:
			state := stateOf(have)
			first.Second = &state
		}
	}
	return first, nil
}

// TakeKey copies the key of a family's second device to the first. It removes the peers in leave from the first device
// before, as their handshakes with it were by the old key: Peers adds them again. Packets in sessions of other peers
// are still received.
func (s *Syncer) TakeKey(_ context.Context, v6 bool, leave []Key) error {
	d := Device{V6: v6}
	first, err := s.conn.LinkByName(d.Name())
	if err != nil {
		return err
	}
	second, err := s.conn.LinkByName(SecondName(v6))
	if err != nil {
		return err
	}
	var changes []netlinkx.WireGuardChange
	for _, k := range leave {
		changes = append(changes, netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Public: k}, Remove: true, UpdateOnly: true})
		delete(s.told[d.Name()], k)
	}
	if err := s.conn.ChangeWireGuardPeers(first.Index, changes); err != nil {
		return err
	}
	return s.conn.CopyWireGuardKey(second.Index, first.Index)
}

func explainPort(err error, port uint16) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("%w: another program has UDP port %d: end it, or set FelixConfiguration spec.wireguardListeningPort and "+
		"spec.wireguardListeningPortV6 for all nodes", err, port)
}

// Lead makes the rule that leads packets without the mark to a family's table, and removes our other such rules.
func (s *Syncer) Lead(_ context.Context, v6 bool, priority int) error {
	rules, err := s.conn.Rules()
	if err != nil {
		return err
	}
	there := false
	var others []netlinkx.Rule
	for _, r := range rules {
		switch {
		case !ours(r, v6):
		case r.Priority == priority && r.Table == Table(v6) && !there:
			there = true
		default:
			others = append(others, r)
		}
	}
	var errs []error
	if !there {
		r := netlinkx.Rule{Family: family(v6), Priority: priority, Table: Table(v6), Mark: Mark, Mask: Mark, Not: true, Protocol: s.protocol}
		if err := s.conn.AddRule(r); err != nil && !netlinkx.IsExist(err) {
			return err
		}
	}
	for _, r := range others {
		errs = append(errs, s.deleteRule(r))
	}
	return errors.Join(errs...)
}

// ours reports whether a rule is for packets without WireGuard's mark, as made by this agent or Felix.
func ours(r netlinkx.Rule, v6 bool) bool {
	return r.Family == family(v6) && r.Not && r.Mark == Mark && r.Mask == Mark && !r.More
}

func (s *Syncer) deleteRule(r netlinkx.Rule) error {
	if err := s.conn.DeleteRule(r); err != nil && !netlinkx.IsNotExist(err) {
		return err
	}
	return nil
}

func family(v6 bool) netlinkx.Family {
	if v6 {
		return netlinkx.IPv6
	}
	return netlinkx.IPv4
}

// Routes makes the routes of a family's table as desired: see routes.Table. Without prune it removes none of ours.
func (s *Syncer) Routes(ctx context.Context, v6 bool, desired []routes.Route, prune bool, before routes.Predecessors) error {
	table := s.tables[place(v6)]
	table.SetPredecessors(before)
	sync := table.Merge
	if prune {
		sync = table.Sync
	}
	if _, err := sync(ctx, desired); err != nil {
		return fmt.Errorf("%s: routing table %d: %w", Name(v6), Table(v6), err)
	}
	return nil
}

// Remove removes the rule that leads to a family's table, this agent's routes there, and the devices. Without a device
// it removes only a rule of this agent.
func (s *Syncer) Remove(ctx context.Context, v6 bool, before routes.Predecessors) error {
	rules, err := s.conn.Rules()
	if err != nil {
		return err
	}
	_, has, err := s.find(Name(v6))
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range rules {
		if s.removes(r, v6, has) {
			errs = append(errs, s.deleteRule(r))
		}
	}
	return errors.Join(append(errs, s.Routes(ctx, v6, nil, true, before), s.RemoveDevices(ctx, v6))...)
}

// Removes reports whether Remove would remove a rule, as the host is now.
func (s *Syncer) Removes(r netlinkx.Rule) (bool, error) {
	v6 := r.Family == netlinkx.IPv6
	_, has, err := s.find(Name(v6))
	return s.removes(r, v6, has), err
}

// removes is Removes; has is whether the host has the family's device.
func (s *Syncer) removes(r netlinkx.Rule, v6, has bool) bool {
	return ours(r, v6) && (has || r.Protocol == s.protocol)
}

// RemoveDevices removes a family's devices only.
func (s *Syncer) RemoveDevices(ctx context.Context, v6 bool) error {
	return errors.Join(s.removeDevice(Name(v6)), s.RemoveSecond(ctx, v6))
}

// RemoveSecond removes a family's second device.
func (s *Syncer) RemoveSecond(_ context.Context, v6 bool) error {
	return s.removeDevice(SecondName(v6))
}

func (s *Syncer) removeDevice(name string) error {
	link, has, err := s.find(name)
	if err != nil || !has {
		return err
	}
	clear(s.told[name])
	if err := s.conn.DeleteLink(link.Index); err != nil && !netlinkx.IsNotExist(err) {
		return fmt.Errorf("remove %s: %w", link.Name, err)
	}
	return nil
}

// find looks up a device; has is false if there is none of that name and kind.
func (s *Syncer) find(name string) (link netlinkx.Link, has bool, err error) {
	link, err = s.conn.LinkByName(name)
	if netlinkx.IsNotExist(err) {
		return link, false, nil
	}
	return link, err == nil && link.Kind == kind, err
}
