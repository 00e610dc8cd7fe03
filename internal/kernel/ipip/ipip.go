package ipip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

const (
	// Device is the name of the kernel's own IPIP device, which Calico's components expect.
	Device = "tunl0"

	// Overhead is the size of the outer IPv4 header.
	Overhead = 20

	kind = "ipip"

	// minMTU is the kernel's minimum for an IPv4 link.
	minMTU = 68
)

// ErrNoIPIP means that the kernel has no IPIP. Its text names the remedy.
var ErrNoIPIP = errors.New("the kernel has no IP-in-IP tunnels: load module ipip (modprobe ipip, and a line \"ipip\" in " +
	"/etc/modules-load.d/ipip.conf), use a kernel built with CONFIG_NET_IPIP, or use pools without IPIP")

// Tunnel is the desired device.
type Tunnel struct {
	MTU int
	// Addr, IPv4, becomes the device's only address, as a /32. If it is invalid, the device has none, and carries pods'
	// packets all the same.
	Addr netip.Addr
}

// Syncer keeps the device in one network namespace. It has no state: it reads the kernel's each time.
type Syncer struct {
	conn *netlinkx.Conn
}

// New returns the syncer of the connection's namespace. It touches nothing yet.
func New(conn *netlinkx.Conn) *Syncer { return &Syncer{conn: conn} }

// MTU returns the largest MTU of a tunnel over a link with MTU host.
func MTU(host int) int { return host - Overhead }

// Is reports that a link is the device, and not another of the same name.
func Is(l netlinkx.Link) bool {
	return l.Name == Device && l.Here(kind) && !l.Tunnel.Local.IsValid() && !l.Tunnel.Remote.IsValid()
}

// Sync makes the device as desired: its MTU, path MTU discovery on, up, and with the one address, or none. Correct
// properties are not written, and the right address stays throughout. It returns the differences, such as "was missing"
// or "had MTU 1400". The error wraps ErrNoIPIP if the kernel has no IPIP.
func (s *Syncer) Sync(ctx context.Context, t Tunnel) (was []string, err error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	link, made, err := s.ensure()
	if err != nil {
		return nil, err
	}
	if link.MTU != t.MTU {
		was = append(was, fmt.Sprintf("had MTU %d", link.MTU))
		if err := s.conn.SetMTU(link.Index, t.MTU); err != nil {
			return was, fmt.Errorf("%s: %w", Device, err)
		}
	}
	// Without it, kernels before 5.11 check inner packets with DF against the device's MTU alone: if the path between two
	// nodes has a smaller one, they are lost and no sender learns of it (calico #7146). Later kernels turn inner packets
	// without DF into outer fragments, which clouds drop; with it the pod's own packets are fragmented.
	if !link.Tunnel.PMTUDisc {
		was = append(was, "had no path MTU discovery")
		if err := s.conn.SetTunnelPMTUDisc(link, true); err != nil {
			return was, err
		}
	}
	if err := ctx.Err(); err != nil {
		return was, err
	}
	var want netip.Prefix
	if t.Addr.IsValid() {
		want = netip.PrefixFrom(t.Addr, t.Addr.BitLen())
	}
	addrs, err := s.conn.SoleAddr(link.Index, netlinkx.IPv4, want)
	was = append(was, addrs...)
	if err != nil {
		return was, fmt.Errorf("%s: %w", Device, err)
	}
	if !link.Up {
		was = append(was, "was down")
		if err := s.conn.SetUp(link.Index); err != nil {
			return was, fmt.Errorf("%s: %w", Device, err)
		}
	}
	if made {
		was = []string{"was missing"}
	}
	return was, nil
}

func (t Tunnel) validate() error {
	if t.Addr.IsValid() && !t.Addr.Is4() {
		return fmt.Errorf("tunnel address %q is not an IPv4 address", t.Addr)
	}
	if t.MTU < minMTU || t.MTU > 65535-Overhead {
		return fmt.Errorf("tunnel mtu %d is not between %d and %d", t.MTU, minMTU, 65535-Overhead)
	}
	return nil
}

// ensure returns the device, made if it is missing. The kernel makes it itself unless
// net.core.fb_tunnels_only_for_init_net forbids it: the request loads the module, which makes tunl0, and fails with
// EEXIST.
func (s *Syncer) ensure() (link netlinkx.Link, made bool, err error) {
	link, err = s.conn.Own(Device, kind)
	if made = netlinkx.IsNotExist(err); made {
		err = s.conn.AddIPIP(Device, netlinkx.Tunnel{}, 0)
		if netlinkx.IsUnsupported(err) {
			return netlinkx.Link{}, false, fmt.Errorf("%w (%w)", ErrNoIPIP, err)
		}
		if err != nil && !netlinkx.IsExist(err) {
			return netlinkx.Link{}, false, err
		}
		link, err = s.conn.LinkByName(Device)
		if netlinkx.IsNotExist(err) {
			return netlinkx.Link{}, false, s.renamed()
		}
	}
	if err != nil {
		return netlinkx.Link{}, false, err
	}
	if !Is(link) {
		return netlinkx.Link{},
			false, fmt.Errorf("interface %s is not an any-to-any ipip tunnel but %s (local %s, remote %s): remove or rename it", Device, link.Kind,
				link.Tunnel.Local, link.Tunnel.Remote)
	}
	return link, made, nil
}

// renamed returns the error for a device that neither exists nor can be made: a namespace has at most one any-to-any
// tunnel.
func (s *Syncer) renamed() error {
	links, err := s.conn.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Here(kind) && !l.Tunnel.Local.IsValid() && !l.Tunnel.Remote.IsValid() {
			return fmt.Errorf("interface %s is missing and can't be made, as %s takes its place: rename that (ip link set %s down name %s)",
				Device, l.Name, l.Name, Device)
		}
	}
	return fmt.Errorf("interface %s was removed while it was being made", Device)
}

// Remove undoes Sync for a node without IPIP pools: the device loses its addresses and goes down. The device itself
// stays, as the kernel does not delete its own. It does nothing without a device, or with one of another kind.
func (s *Syncer) Remove(context.Context) error {
	link, err := s.conn.LinkByName(Device)
	if netlinkx.IsNotExist(err) || (err == nil && link.Kind != kind) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.conn.SoleAddr(link.Index, netlinkx.IPv4, netip.Prefix{})
	errs := []error{err}
	if link.Up {
		errs = append(errs, s.conn.SetDown(link.Index))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", Device, err)
	}
	return nil
}
