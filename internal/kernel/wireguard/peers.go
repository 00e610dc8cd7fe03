package wireguard

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// SessionTime is how long a session may be used after its handshake (RejectAfterTime of WireGuard). Until then, another
// endpoint than the configured one is the address that the peer has really sent from.
const SessionTime = 180 * time.Second

// Peers adds missing peers, and missing properties of present ones. It removes nothing. lost is the number of peers
// that another program has removed, or deprived of allowed addresses.
func (s *Syncer) Peers(_ context.Context, d Device) (lost int, err error) {
	link, have, err := s.read(&d)
	if err == nil {
		lost, err = s.peers(link, have, d)
	}
	if err != nil {
		return lost, fmt.Errorf("%s: %w", d.Name(), err)
	}
	return lost, nil
}

func (s *Syncer) read(d *Device) (link netlinkx.Link, have netlinkx.WireGuard, err error) {
	if link, err = s.conn.LinkByName(d.Name()); err == nil {
		have, err = s.conn.WireGuard(link.Index)
	}
	return link, have, err
}

func (s *Syncer) peers(link netlinkx.Link, have netlinkx.WireGuard, d Device) (lost int, err error) {
	if err := d.validatePeers(); err != nil {
		return 0, err
	}
	told := s.told[d.Name()]
	there := make(map[Key]*netlinkx.WireGuardPeer, len(have.Peers))
	for i := range have.Peers {
		there[have.Peers[i].Public] = &have.Peers[i]
	}
	var changes []netlinkx.WireGuardChange
	now := time.Now()
	for _, p := range d.Peers {
		known := there[p.Key]
		earlier, before := told[p.Key]
		greet := greets(have.Public, p.Key, known, now.Sub(earlier.at))
		if c, needed := p.change(known, earlier.endpoint, greet, d.Keepalive, now); needed {
			changes = append(changes, c)
			if before && known == nil ||
				slices.ContainsFunc(c.AllowedIPs, func(a netip.Prefix) bool { return slices.Contains(earlier.allowed, a) }) {
				lost++
			}
		}
	}
	if err := s.conn.ChangeWireGuardPeers(link.Index, changes); err != nil {
		return lost, err
	}
	for _, p := range d.Peers {
		at := told[p.Key].at
		if there[p.Key] == nil {
			at = now
		}
		told[p.Key] = telling{p.Endpoint, at, p.Allowed}
	}
	return lost, nil
}

// greetTime is how long the node with the greater key waits for the other's first handshake before it begins one. Two
// handshakes that cross end each other, and the kernels repeat both after five seconds: nodes that learn of each
// other's keys at the same time would begin at the same time.
const greetTime = 500 * time.Millisecond

// greets reports whether the node with key own begins the first handshake with a peer. have is nil for a new peer; age
// is the time since the peer was added.
func greets(own, peer Key, have *netlinkx.WireGuardPeer, age time.Duration) bool {
	return bytes.Compare(own[:], peer[:]) < 0 || have != nil && have.Received == 0 && age >= greetTime
}

// helloSeconds is the keepalive that begins a first handshake: when it is set the kernel begins the handshake at once,
// and not only with the first packet, which would have to wait for it.
const helloSeconds = 25

// change returns the change of a peer, and whether it is needed. have is the kernel's peer, nil if it is missing. greet
// begins a handshake if there was none.
func (p Peer) change(have *netlinkx.WireGuardPeer, told netip.AddrPort, greet bool, keepalive uint16,
	now time.Time) (c netlinkx.WireGuardChange, needed bool) {
	c.Public = p.Key
	if have == nil {
		if c.Endpoint, c.AllowedIPs = p.Endpoint, p.Allowed; greet {
			c.Keepalive, c.SetKeepalive = helloSeconds, true
		}
		return c, true
	}
	// The endpoint of a peer behind NAT is the source of its packets, unless it is known to have moved.
	if have.Endpoint != p.Endpoint && (told.IsValid() && told != p.Endpoint || now.Sub(have.Handshake) > SessionTime) {
		c.Endpoint, needed = p.Endpoint, true
	}
	fresh := have.Handshake.IsZero()
	if fresh {
		keepalive = helloSeconds
	}
	if have.Keepalive != keepalive && (greet || !fresh) {
		c.Keepalive, c.SetKeepalive, needed = keepalive, true, true
	}
	has := make(map[netip.Prefix]bool, len(have.AllowedIPs))
	for _, a := range have.AllowedIPs {
		has[a] = true
	}
	for _, a := range p.Allowed {
		if !has[a] {
			c.AllowedIPs, needed = append(c.AllowedIPs, a), true
		}
	}
	return c, needed
}

// Prune removes undesired peers, and undesired allowed addresses of others.
func (s *Syncer) Prune(_ context.Context, d Device) error {
	link, have, err := s.read(&d)
	if err == nil {
		err = s.conn.ChangeWireGuardPeers(link.Index, d.removals(have))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.Name(), err)
	}
	told := s.told[d.Name()]
	for key := range told {
		if !slices.ContainsFunc(d.Peers, func(p Peer) bool { return p.Key == key }) {
			delete(told, key)
		}
	}
	return nil
}

// removals returns the changes that remove undesired peers and allowed addresses. The kernel can only add addresses to
// a peer or replace all of them, and drops packets meanwhile: addresses that a peer must lose are moved to a temporary
// peer.
func (d *Device) removals(have netlinkx.WireGuard) (changes []netlinkx.WireGuardChange) {
	wanted := make(map[Key]*Peer, len(d.Peers))
	for i := range d.Peers {
		wanted[d.Peers[i].Key] = &d.Peers[i]
	}
	var lost []netip.Prefix
	for _, h := range have.Peers {
		p := wanted[h.Public]
		if p == nil {
			changes = append(changes,
				netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Public: h.Public}, Remove: true, UpdateOnly: true})
			continue
		}
		has := make(map[netip.Prefix]bool, len(p.Allowed))
		for _, a := range p.Allowed {
			has[a] = true
		}
		for _, a := range h.AllowedIPs {
			if !has[a] {
				lost = append(lost, a)
			}
		}
	}
	if len(lost) == 0 {
		return changes
	}
	var nobody netlinkx.WireGuardPeer
	_, _ = rand.Read(nobody.Public[:]) // never fails
	nobody.AllowedIPs = lost
	gone := netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Public: nobody.Public}, Remove: true, UpdateOnly: true}
	return append(changes, netlinkx.WireGuardChange{WireGuardPeer: nobody}, gone)
}
