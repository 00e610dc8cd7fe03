package ipip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// PeerPrefix begins the names of devices for single nodes.
const PeerPrefix = Device + "-"

// PeerDevice returns the name of the device for a node.
func PeerDevice(node netip.Addr) string { return fmt.Sprintf("%s%x", PeerPrefix, node.As4()) }

// Owns reports whether a link, by its name, is this package's: packets in a tunnel come in by such links.
func Owns(link string) bool { return link == Device || strings.HasPrefix(link, PeerPrefix) }

// IsPeer reports whether a link is a device for a single node, and not another link of such a name or one that a pod
// has moved here.
func IsPeer(l netlinkx.Link) bool {
	return l.Here(kind) && l.Tunnel.Remote.Is4() && l.Name == PeerDevice(l.Tunnel.Remote)
}

// Peers are the desired devices for single nodes. Packets in a tunnel come in by the device for their sender, if it is
// up, and else by tunl0; all leave by tunl0.
type Peers struct {
	Local netip.Addr // this node's address, that others send to
	MTU   int
	Nodes []netip.Addr
	// Keep leaves devices for other nodes in place.
	Keep bool
}

// SyncPeers makes the devices as desired, among the links given. Correct devices are not written; foreign links stay
// unless they have a desired name. prepare is called with the devices' names before new ones receive. A failure for one
// device does not affect the others: its packets use tunl0.
func (s *Syncer) SyncPeers(ctx context.Context, links []netlinkx.Link, p Peers, prepare func(devices []string) error) error {
	want := make(map[string]netip.Addr, len(p.Nodes))
	for _, n := range p.Nodes {
		want[PeerDevice(n)] = n
	}
	var errs []error
	there := map[string]netlinkx.Link{}
	for _, l := range links {
		_, wanted := want[l.Name]
		switch {
		case !IsPeer(l) && wanted:
			errs = append(errs, s.conn.Evict(l, ""))
		case !IsPeer(l) || !wanted && p.Keep:
		case wanted && l.Tunnel == netlinkx.Tunnel{Local: p.Local, Remote: want[l.Name], PMTUDisc: true}:
			there[l.Name] = l
		default:
			errs = append(errs, s.retire(l))
		}
	}
	var devices []string
	for _, n := range p.Nodes {
		if name := PeerDevice(n); want[name].IsValid() {
			l, err := s.ensurePeer(ctx, there[name], n, p)
			if errs = append(errs, err); err == nil {
				there[name], devices = l, append(devices, name)
			}
		}
	}
	if len(devices) > 0 {
		if err := prepare(devices); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	for _, name := range devices {
		if l := there[name]; !l.Up {
			errs = append(errs, s.conn.SetUp(l.Index))
		}
	}
	return errors.Join(errs...)
}

// ensurePeer returns the device for a node, down if it is new.
func (s *Syncer) ensurePeer(ctx context.Context, l netlinkx.Link, node netip.Addr, p Peers) (netlinkx.Link, error) {
	name := PeerDevice(node)
	if err := ctx.Err(); err != nil {
		return l, err
	}
	if l.Index == 0 {
		if err := s.conn.AddIPIP(name, netlinkx.Tunnel{Local: p.Local, Remote: node}, p.MTU); err != nil {
			return l, err
		}
		return s.conn.LinkByName(name)
	}
	if l.MTU != p.MTU {
		if err := s.conn.SetMTU(l.Index, p.MTU); err != nil {
			return l, fmt.Errorf("%s: %w", name, err)
		}
	}
	return l, nil
}

// nowhere is an address that no packet from outside has as its destination.
var nowhere = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// retire removes a device for a node. It first changes the local address so that the kernel selects the device for no
// further packet: packets in a device that is being deleted would be lost.
func (s *Syncer) retire(l netlinkx.Link) error {
	err := s.conn.SetTunnelLocal(l, nowhere)
	if err == nil {
		err = s.conn.DeleteLink(l.Index)
	}
	if netlinkx.IsNotExist(err) {
		return nil
	}
	return err
}
