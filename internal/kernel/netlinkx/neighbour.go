package netlinkx

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Neighbour is the MAC or remote address of an address on a link: an entry of the kernel's neighbour table, or of a
// VXLAN link's forwarding database.
type Neighbour struct {
	Link int // index
	// Forward: an entry of the forwarding database. Frames to MAC go to the host Addr.
	Forward bool
	Addr    netip.Addr // otherwise the address that has the MAC
	MAC     [6]byte
	// Permanent entries are made by programs and users; the kernel learns others by itself and drops them.
	Permanent bool
	// More marks a listed entry with attributes that the fields do not show: a port, a network or a link of its own, or a
	// group of next hops. It can be deleted by its fields.
	More bool
}

// String returns the entry in iproute2's syntax; the link appears by index.
func (n Neighbour) String() string {
	mac := fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", n.MAC[0], n.MAC[1], n.MAC[2], n.MAC[3], n.MAC[4], n.MAC[5])
	if n.Forward {
		return fmt.Sprintf("fdb %s dst %s dev %d", mac, n.Addr, n.Link)
	}
	return fmt.Sprintf("neigh %s lladdr %s dev %d", n.Addr, mac, n.Link)
}

// From linux/neighbour.h: struct ndmsg, and its attributes.
const (
	sizeofNdmsg  = 12
	ndFlagSelf   = 0x02 // NTF_SELF: the link's own table
	ndStatePerm  = 0x80 // NUD_PERMANENT
	offsetNDLink = unix.SizeofNlMsghdr + 4
	ndaDst       = 1
	ndaMAC       = 2
	ndaPort      = 6
	ndaVNI       = 7
	ndaLink      = 8 // NDA_IFINDEX
	ndaSourceVNI = 11
	ndaNextHop   = 13
)

// Neighbours lists the entries of one link in the neighbour table of one family.
func (c *Conn) Neighbours(link int, family Family) ([]Neighbour, error) {
	return c.listNeighbours(link, uint8(family))
}

// Forwarding lists the forwarding database of a VXLAN link.
func (c *Conn) Forwarding(link int) ([]Neighbour, error) {
	return c.listNeighbours(link, unix.AF_BRIDGE)
}

// listNeighbours lists a link's entries. Kernels with strict checking select them; others send all.
func (c *Conn) listNeighbours(link int, family uint8) (all []Neighbour, err error) {
	request := nlmsg.Message{Kind: unix.RTM_GETNEIGH, Flags: unix.NLM_F_DUMP, Body: append([]byte{family}, make([]byte, sizeofNdmsg-1)...)}
	request.Body = nlmsg.AppendUint32(request.Body, ndaLink, uint32(link))
	err = c.direct.with(c.ns, func(s *nlmsg.Socket) error {
		all, err = retryDump("neighbours", func() (found []Neighbour, err error) {
			err = s.Execute(request, func(m nlmsg.Message) error {
				n, ok, err := parseNeighbour(m.Body)
				if ok && n.Link == link && n.Forward == (family == unix.AF_BRIDGE) {
					found = append(found, n)
				}
				return err
			})
			return found, err
		})
		return err
	})
	return all, err
}

// parseNeighbour reads the body of an RTM_NEWNEIGH; ok is false for a bridge's entry, which lists it under its ports.
func parseNeighbour(body []byte) (n Neighbour, ok bool, err error) {
	if len(body) < sizeofNdmsg {
		return n, false, fmt.Errorf("%w: neighbour of %d bytes", nlmsg.ErrMalformed, len(body))
	}
	n.Forward = body[0] == unix.AF_BRIDGE
	n.Link = int(int32(binary.NativeEndian.Uint32(body[4:])))
	n.Permanent = binary.NativeEndian.Uint16(body[8:])&ndStatePerm != 0
	for rest := body[sizeofNdmsg:]; len(rest) > 0; {
		var kind uint16
		var value []byte
		if kind, value, rest, err = nlmsg.NextAttribute(rest); err != nil {
			return Neighbour{}, false, err
		}
		switch kind {
		case ndaDst:
			n.Addr, _ = netip.AddrFromSlice(value)
		case ndaMAC:
			if len(value) == len(n.MAC) { // else it is of another length, or not known yet
				n.MAC = [6]byte(value)
			}
		case ndaPort, ndaVNI, ndaLink, ndaNextHop, ndaSourceVNI:
			n.More = true
		}
	}
	return n, !n.Forward || body[10]&ndFlagSelf != 0, nil
}

// AddNeighbours makes permanent entries. It returns one error for each entry, in their order, nil if it was made;
// IsExist holds for the error of an entry that exists already.
func (c *Conn) AddNeighbours(entries []Neighbour) []error {
	return change(c, "add", unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_EXCL, entries)
}

// ReplaceNeighbours is AddNeighbours that replaces entries with the same address, or MAC in the forwarding database.
func (c *Conn) ReplaceNeighbours(entries []Neighbour) []error {
	return change(c, "replace", unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, entries)
}

// DeleteNeighbours removes entries, and returns errors like AddNeighbours.
func (c *Conn) DeleteNeighbours(entries []Neighbour) []error {
	return change(c, "delete", unix.RTM_DELNEIGH, 0, entries)
}

// appendRequest encodes a request to make or delete the entry.
func (n Neighbour) appendRequest(b []byte, kind, flags uint16, seq uint32) []byte {
	from := len(b)
	b = nlmsg.Begin(b, kind, flags, seq)
	family, self := uint8(FamilyOf(n.Addr)), uint8(0)
	if n.Forward {
		family, self = unix.AF_BRIDGE, ndFlagSelf
	}
	b = append(b, family, 0, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(n.Link))
	b = binary.NativeEndian.AppendUint16(b, ndStatePerm)
	b = append(b, self, 0)
	if n.Addr.IsValid() {
		b = appendAddr(b, ndaDst, n.Addr)
	}
	if kind == unix.RTM_NEWNEIGH || n.Forward {
		b = nlmsg.AppendAttribute(b, ndaMAC, n.MAC[:])
	}
	return nlmsg.Finish(b, from)
}

// SubscribeToNeighbours is Subscribe for neighbour entries of some links, changed by other programs; for a forwarding
// database also by this one, as the kernel does not report the author of a change. Address resolution on the host's
// other links does not wake. Endless changes wake five times a second.
func (c *Conn) SubscribeToNeighbours(ctx context.Context, links []int) (<-chan struct{}, error) {
	var filter []unix.SockFilter
	err := c.direct.with(c.ns, func(s *nlmsg.Socket) error {
		filter = neighbourFilter(s.Port, links)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	return c.subscribe(ctx, neighbourEvents, filter, &pace{interval: wakeInterval, burst: promptWakes})
}

// neighbourFilter accepts events about the links that our own requests did not cause.
func neighbourFilter(own uint32, links []int) []unix.SockFilter {
	n := uint8(len(links))
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetPort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: onWire32(own), Jt: 1 + n},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNDLink},
	}
	for i, link := range links {
		f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: onWire32(uint32(link)), Jt: n - uint8(i)})
	}
	return append(f, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1})
}
