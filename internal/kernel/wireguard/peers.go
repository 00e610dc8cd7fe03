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

// SessionTime is how long a session may be used after its handshake (RejectAfterTime of WireGuard). Before, an endpoint
// that differs is where the peer has really sent from.
const SessionTime = 180 * time.Second

// Peers makes what is missing of a device's peers. Nothing is removed. lost is how many of them were made before, and
// have lost what they are to have.
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

// greetTime is how long the node with the greater key leaves the first handshake to the other one, if nothing of that
// arrives. Two handshakes that cross end each other, and the kernels repeat both after five seconds: nodes that hear of
// each other's keys at one time would begin at one time.
const greetTime = 500 * time.Millisecond

// greets reports whether a node begins the first handshake with a peer, which it may have for some time.
func greets(own, peer Key, have *netlinkx.WireGuardPeer, age time.Duration) bool {
	return bytes.Compare(own[:], peer[:]) < 0 || have != nil && have.Received == 0 && age >= greetTime
}

// helloSeconds is the keepalive of a peer that is greeted: the kernel begins the handshake at once when it is set, and
// not only with the first packet, which would have to wait for it.
const helloSeconds = 25

// change returns what must be written of a peer that is there, or nil if it is not. greet begins a handshake if there
// was none.
func (p Peer) change(have *netlinkx.WireGuardPeer, told netip.AddrPort, greet bool, keepalive uint16,
	now time.Time) (c netlinkx.WireGuardChange, needed bool) {
	c.Public = p.Key
	if have == nil {
		if c.Endpoint, c.AllowedIPs = p.Endpoint, p.Allowed; greet {
			c.Keepalive, c.SetKeepalive = helloSeconds, true
		}
		return c, true
	}
	// A peer behind a translation of addresses is where its packets come from, unless it is known to have moved.
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

// Prune removes the peers that a device has and is not to have, and their addresses.
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

// removals are the changes that take away what is not desired. The kernel replaces all addresses of a peer or adds
// some, and drops packets while they are replaced: what a peer must lose is moved to a peer that exists for this
// message only.
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
	_, _ = rand.Read(nobody.Public[:]) // it never fails
	nobody.AllowedIPs = lost
	gone := netlinkx.WireGuardChange{WireGuardPeer: netlinkx.WireGuardPeer{Public: nobody.Public}, Remove: true, UpdateOnly: true}
	return append(changes, netlinkx.WireGuardChange{WireGuardPeer: nobody}, gone)
}
