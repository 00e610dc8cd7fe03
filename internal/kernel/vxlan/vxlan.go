package vxlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// The defaults of Calico's FelixConfiguration.
const (
	DefaultVNI  uint32 = 4096
	DefaultPort uint16 = 4789
	// MaxVNI is the greatest possible VNI.
	MaxVNI = 1<<24 - 1
)

// The devices' names are Calico's.
const (
	Device4 = "vxlan.calico"
	Device6 = "vxlan-v6.calico"
)

// The size of the headers before an inner packet: Ethernet (14), VXLAN (8), UDP (8) and IP (20, or 40).
const (
	Overhead4 = 50
	Overhead6 = 70
)

const kind = "vxlan"

// ErrNoVXLAN means that the kernel has no VXLAN. Its text names the remedy.
var ErrNoVXLAN = errors.New("the kernel has no VXLAN: load module vxlan (modprobe vxlan, and a line \"vxlan\" in " +
	"/etc/modules-load.d/vxlan.conf), use a kernel built with CONFIG_VXLAN, or use pools without VXLAN")

// Tunnel is the desired device of one family, the family of Local, and all its entries.
type Tunnel struct {
	VNI  uint32 // 0: DefaultVNI
	Port uint16 // 0: DefaultPort
	// Local is this node's address, the source of outer packets, and Parent the name of the link that has it.
	Local  netip.Addr
	Parent string
	MAC    MAC
	MTU    int
	// Addr becomes the device's only address, as a /32 or /128. Invalid: the device has none, and carries pods' packets
	// all the same.
	Addr netip.Addr
	// SoftChecksums: the kernel computes the checksums of inner packets, not the device or one below it.
	SoftChecksums bool
	// Peers are the other nodes' ends.
	Peers []Peer
}

// Peer is another node's end of the tunnels.
type Peer struct {
	Addr netip.Addr // inside
	MAC  MAC
	Node netip.Addr // outside: the node's address
}

// Device returns the name of a family's device.
func Device(v6 bool) string {
	if v6 {
		return Device6
	}
	return Device4
}

// Is reports whether a link is a family's device, and not another of the same name or one that a pod has moved here.
func Is(l netlinkx.Link, v6 bool) bool { return l.Name == Device(v6) && l.Here(kind) }

// MTU returns the largest MTU of a tunnel over a link with MTU host.
func MTU(host int, v6 bool) int {
	if v6 {
		return host - Overhead6
	}
	return host - Overhead4
}

// Syncer keeps the devices in one network namespace. It has no state: it reads the kernel's each time.
type Syncer struct {
	conn *netlinkx.Conn
}

// New returns the syncer of the connection's namespace. It touches nothing yet.
func New(conn *netlinkx.Conn) *Syncer { return &Syncer{conn: conn} }

// Merged is the result of a Merge.
type Merged struct {
	// Link is the device's index.
	Link int
	// Anew: the device was made, or made anew, and former routes through it are gone.
	Anew bool
	// Was holds the device's differences, such as "was missing" or "had MTU 1400".
	Was []string
	// Written are the peers with new or changed entries.
	Written []Peer

	conn  *netlinkx.Conn
	stale []netlinkx.Neighbour
}

// Merge makes the device as desired, with these peers. Correct properties are not written, and the right address stays
// throughout. An existing device, such as Felix's, is kept, but one with another VNI or port is made anew. Undesired
// entries stay until Prune is called, so that routes that still lead to them can be changed before. The error wraps
// ErrNoVXLAN if the kernel has no VXLAN.
func (s *Syncer) Merge(ctx context.Context, t Tunnel) (Merged, error) {
	t.VNI, t.Port = cmp.Or(t.VNI, DefaultVNI), cmp.Or(t.Port, DefaultPort)
	if err := t.validate(); err != nil {
		return Merged{}, err
	}
	link, was, anew, err := s.ensure(t)
	if err != nil {
		return Merged{Was: was}, fmt.Errorf("%s: %w", t.device(), err)
	}
	m := Merged{Link: link.Index, Anew: anew, conn: s.conn}
	if err := ctx.Err(); err != nil {
		return m, err
	}
	err = errors.Join(s.settings(&m, link, t), s.address(&m, link, t), s.entries(&m, t))
	if err == nil && !link.Up {
		m.Was = append(m.Was, "was down")
		err = s.conn.SetUp(link.Index)
	}
	if m.Was = append(was, m.Was...); anew { // a new device has nothing yet
		m.Was = was
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", t.device(), err)
	}
	return m, nil
}

func (t Tunnel) device() string { return Device(t.Local.Is6()) }

// MTULimits returns the kernel's minimum for a link of a family, and the most that an outer packet can carry.
func MTULimits(v6 bool) (least, most int) {
	if v6 {
		return 1280, 65535 - Overhead6
	}
	return 68, 65535 - Overhead4
}

func (t Tunnel) validate() error {
	least, most := MTULimits(t.Local.Is6())
	switch {
	case !t.Local.IsValid() || t.Local.Is4In6() || t.Local.IsUnspecified():
		return fmt.Errorf("local address %q of VXLAN tunnels is no address of this node", t.Local)
	case t.Addr.IsValid() && t.Addr.Is4() != t.Local.Is4():
		return fmt.Errorf("%s: address %s is of the other family than %s", t.device(), t.Addr, t.Local)
	case t.MTU < least || t.MTU > most:
		return fmt.Errorf("%s: mtu %d is not between %d and %d", t.device(), t.MTU, least, most)
	case t.VNI > MaxVNI:
		return fmt.Errorf("%s: vni %d is greater than %d", t.device(), t.VNI, MaxVNI)
	case t.MAC == (MAC{}):
		return fmt.Errorf("%s: no MAC", t.device())
	}
	return t.validatePeers()
}

// validatePeers rejects peers that the kernel would misunderstand.
func (t Tunnel) validatePeers() error {
	addrs, macs := make(map[netip.Addr]bool, len(t.Peers)), make(map[MAC]bool, len(t.Peers))
	for _, p := range t.Peers {
		v4 := t.Local.Is4()
		if !p.Addr.IsValid() || p.Addr.Is4() != v4 || !p.Node.IsValid() || p.Node.Is4() != v4 || p.MAC == (MAC{}) {
			return fmt.Errorf("%s: peer %s (%s) at %s is no end of a tunnel of this family", t.device(), p.Addr, p.MAC, p.Node)
		}
		if addrs[p.Addr] || macs[p.MAC] || p.MAC == t.MAC {
			return fmt.Errorf("%s: peer %s (%s) at %s is there twice", t.device(), p.Addr, p.MAC, p.Node)
		}
		addrs[p.Addr], macs[p.MAC] = true, true
	}
	return nil
}

// Remove removes the device of a family with its entries. It does nothing without a device, or with one of another
// kind.
func (s *Syncer) Remove(_ context.Context, v6 bool) error {
	link, err := s.conn.LinkByName(Device(v6))
	if netlinkx.IsNotExist(err) || err == nil && link.Kind != kind {
		return nil
	}
	if err == nil {
		err = s.conn.DeleteLink(link.Index)
	}
	if err != nil && !netlinkx.IsNotExist(err) {
		return fmt.Errorf("remove %s: %w", Device(v6), err)
	}
	return nil
}
