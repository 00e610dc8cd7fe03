package netlinkx

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// WireGuardKey is a public or private key of Curve25519; the zero value means no key.
type WireGuardKey [32]byte

// String returns the key in base64, as wg(8) and Calico write it.
func (k WireGuardKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// WireGuard holds the settings of a link of kind wireguard, without its private key.
type WireGuard struct {
	Public WireGuardKey // zero: the link has no private key
	Port   uint16
	Mark   uint32 // of the outer packets
	Peers  []WireGuardPeer
}

// WireGuardPeer is one peer of such a link.
type WireGuardPeer struct {
	Public     WireGuardKey
	Endpoint   netip.AddrPort // invalid: not known
	Keepalive  uint16         // seconds; 0: none
	AllowedIPs []netip.Prefix

	// Handshake is the time of the last completed handshake, zero without one. It is read-only.
	Handshake time.Time
	// Received is the number of bytes from the peer, including incomplete handshakes. It is read-only.
	Received uint64
}

// WireGuardChange is a change of a peer.
type WireGuardChange struct {
	WireGuardPeer // an invalid endpoint leaves the present one; allowed addresses are added
	// Remove: the peer is removed. SetKeepalive: Keepalive is set. UpdateOnly: a missing peer is not added.
	Remove, SetKeepalive, UpdateOnly bool
}

// From linux/wireguard.h.
const (
	wgFamily      = "wireguard"
	wgVersion     = 1
	wgGetDevice   = 0
	wgSetDevice   = 1
	wgIfIndex     = 1
	wgPrivateKey  = 3
	wgPublicKey   = 4
	wgListenPort  = 6
	wgFwmark      = 7
	wgPeers       = 8
	wgPeerKey     = 1
	wgPeerFlags   = 3
	wgEndpoint    = 4
	wgKeepalive   = 5
	wgHandshake   = 6
	wgReceived    = 7
	wgAllowedIPs  = 9
	wgIPFamily    = 1
	wgIPAddr      = 2
	wgIPMask      = 3
	wgRemovePeer  = 1
	wgUpdateOnly  = 4
	genlHeader    = 4
	genlGetFamily = 3
	genlFamilyID  = 1
	genlName      = 2
)

// AddWireGuard makes a link of kind wireguard, down. IsUnsupported holds for the error if the kernel has no WireGuard.
func (c *Conn) AddWireGuard(name string, mtu int) error {
	if err := CheckLinkName(name); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	if err := c.requests.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("add wireguard link %s: %w", name, err)
	}
	return nil
}

// WireGuard reads a link's settings and peers.
func (c *Conn) WireGuard(index int) (WireGuard, error) {
	got, err := retryDump("wireguard peers", func() ([]WireGuard, error) {
		var w WireGuard
		err := c.wireguard(func(s *nlmsg.Socket, family uint16) error {
			m := genlMessage(family, wgGetDevice, unix.NLM_F_DUMP, nlmsg.AppendUint32(nil, wgIfIndex, uint32(index)))
			return s.Execute(m, func(m nlmsg.Message) error { return w.read(m.Body) })
		})
		return []WireGuard{w}, err
	})
	if err != nil {
		return WireGuard{}, fmt.Errorf("read wireguard link with index %d: %w", index, err)
	}
	return got[0], nil
}

// SetWireGuardKey sets a link's private key.
func (c *Conn) SetWireGuardKey(index int, private WireGuardKey) error {
	return c.setWireGuard(index, "private key", nlmsg.AppendAttribute(nil, wgPrivateKey, private[:]))
}

// CopyWireGuardKey copies the private key of a link to another one.
func (c *Conn) CopyWireGuardKey(from, to int) error {
	var private WireGuardKey
	err := c.wireguard(func(s *nlmsg.Socket, family uint16) error {
		m := genlMessage(family, wgGetDevice, unix.NLM_F_DUMP, nlmsg.AppendUint32(nil, wgIfIndex, uint32(from)))
		return s.Execute(m, func(m nlmsg.Message) error {
			if len(m.Body) >= genlHeader {
				copy(private[:], nlmsg.Find(m.Body[genlHeader:], wgPrivateKey)) // the first message of several has it
			}
			return nil
		})
	})
	if err == nil && private == (WireGuardKey{}) {
		err = errors.New("it has none")
	}
	if err != nil {
		return fmt.Errorf("read the private key of the wireguard link with index %d: %w", from, err)
	}
	return c.SetWireGuardKey(to, private)
}

// SetWireGuardPort sets the UDP port that a link listens at; the error wraps unix.EADDRINUSE if another socket has it.
func (c *Conn) SetWireGuardPort(index int, port uint16) error {
	return c.setWireGuard(index, fmt.Sprint("port ", port),
		nlmsg.AppendAttribute(nil, wgListenPort, binary.NativeEndian.AppendUint16(nil, port)))
}

// SetWireGuardMark sets the mark of a link's outer packets.
func (c *Conn) SetWireGuardMark(index int, mark uint32) error {
	return c.setWireGuard(index, fmt.Sprintf("mark %#x", mark), nlmsg.AppendUint32(nil, wgFwmark, mark))
}

const (
	// wgMessageSize is the size from which a message is sent: an attribute has at most 64 KiB.
	wgMessageSize = 32 << 10
	// wgAddressesInPeer bounds the addresses of one peer in a message: each has 28 bytes at most.
	wgAddressesInPeer = 512
)

// ChangeWireGuardPeers makes the changes in their order. An allowed address of another peer moves from there, without a
// moment in which neither has it. The kernel applies one message under one lock.
func (c *Conn) ChangeWireGuardPeers(index int, changes []WireGuardChange) error {
	var peers []byte
	flush := func() error {
		if len(peers) == 0 {
			return nil
		}
		err := c.setWireGuard(index, "peers", nlmsg.AppendAttribute(nil, wgPeers|unix.NLA_F_NESTED, peers))
		peers = nil
		return err
	}
	for _, change := range changes {
		for first := true; first || len(change.AllowedIPs) > 0; first = false {
			part := change
			part.AllowedIPs = change.AllowedIPs[:min(len(change.AllowedIPs), wgAddressesInPeer)]
			change.AllowedIPs = change.AllowedIPs[len(part.AllowedIPs):]
			peers = nlmsg.AppendAttribute(peers, unix.NLA_F_NESTED, part.attributes())
			if len(peers) >= wgMessageSize {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

func (p *WireGuardChange) attributes() []byte {
	b := nlmsg.AppendAttribute(nil, wgPeerKey, p.Public[:])
	var flags uint32
	if p.Remove {
		flags |= wgRemovePeer
	}
	if p.UpdateOnly {
		flags |= wgUpdateOnly
	}
	if flags != 0 {
		b = nlmsg.AppendUint32(b, wgPeerFlags, flags)
	}
	if p.Endpoint.IsValid() {
		b = nlmsg.AppendAttribute(b, wgEndpoint, socketAddress(p.Endpoint))
	}
	if p.SetKeepalive {
		b = nlmsg.AppendAttribute(b, wgKeepalive, binary.NativeEndian.AppendUint16(nil, p.Keepalive))
	}
	var ips []byte
	for _, prefix := range p.AllowedIPs {
		ip := nlmsg.AppendAttribute(nil, wgIPFamily, binary.NativeEndian.AppendUint16(nil, uint16(FamilyOf(prefix.Addr()))))
		ip = nlmsg.AppendAttribute(ip, wgIPAddr, prefix.Addr().AsSlice())
		ip = nlmsg.AppendAttribute(ip, wgIPMask, []byte{uint8(prefix.Bits())})
		ips = nlmsg.AppendAttribute(ips, unix.NLA_F_NESTED, ip)
	}
	if len(ips) > 0 {
		b = nlmsg.AppendAttribute(b, wgAllowedIPs|unix.NLA_F_NESTED, ips)
	}
	return b
}

func (c *Conn) setWireGuard(index int, what string, attrs []byte) error {
	err := c.wireguard(func(s *nlmsg.Socket, family uint16) error {
		m := genlMessage(family, wgSetDevice, unix.NLM_F_ACK, append(nlmsg.AppendUint32(nil, wgIfIndex, uint32(index)), attrs...))
		return s.Execute(m, func(nlmsg.Message) error { return nil })
	})
	if err != nil {
		return fmt.Errorf("set wireguard link with index %d: %s: %w", index, what, err)
	}
	return nil
}

// wireguard runs fn with a generic netlink socket and the number of WireGuard's family.
func (c *Conn) wireguard(fn func(s *nlmsg.Socket, family uint16) error) error {
	return c.generic.with(c.ns, func(s *nlmsg.Socket) error {
		if c.wgFamily == 0 {
			id, err := genlFamily(s, wgFamily)
			if err != nil {
				return fmt.Errorf("find netlink family %s: %w", wgFamily, err)
			}
			c.wgFamily = id
		}
		return fn(s, c.wgFamily)
	})
}

// genlFamily returns the number of a generic netlink family.
func genlFamily(s *nlmsg.Socket, name string) (id uint16, err error) {
	m := genlMessage(unix.GENL_ID_CTRL, genlGetFamily, 0, nlmsg.AppendAttribute(nil, genlName, append([]byte(name), 0)))
	err = s.Execute(m, func(m nlmsg.Message) error {
		if len(m.Body) >= genlHeader {
			if b := nlmsg.Find(m.Body[genlHeader:], genlFamilyID); len(b) >= 2 {
				id = binary.NativeEndian.Uint16(b)
				return nil
			}
		}
		return fmt.Errorf("%w: netlink family %s", nlmsg.ErrMalformed, name)
	})
	return id, err
}

func genlMessage(family uint16, command uint8, flags uint16, attrs []byte) nlmsg.Message {
	return nlmsg.Message{Kind: family, Flags: flags, Body: append([]byte{command, wgVersion, 0, 0}, attrs...)}
}

// read adds one message of a dump. A peer with many addresses continues in the next one.
func (w *WireGuard) read(body []byte) error {
	if len(body) < genlHeader {
		return fmt.Errorf("%w: device of %d bytes", nlmsg.ErrMalformed, len(body))
	}
	var failed error
	err := nlmsg.Each(body[genlHeader:], func(kind uint16, value []byte) {
		switch {
		case kind == wgPublicKey && len(value) == len(w.Public):
			copy(w.Public[:], value)
		case kind == wgListenPort && len(value) == 2:
			w.Port = binary.NativeEndian.Uint16(value)
		case kind == wgFwmark && len(value) == 4:
			w.Mark = binary.NativeEndian.Uint32(value)
		case kind == wgPeers && failed == nil:
			failed = w.readPeers(value)
		}
	})
	if err == nil {
		err = failed
	}
	return err
}

func (w *WireGuard) readPeers(b []byte) error {
	for len(b) > 0 {
		_, value, rest, err := nlmsg.NextAttribute(b)
		if err != nil {
			return err
		}
		b = rest
		p, err := readPeer(value)
		if err != nil {
			return err
		}
		if last := len(w.Peers) - 1; last >= 0 && w.Peers[last].Public == p.Public {
			w.Peers[last].AllowedIPs = append(w.Peers[last].AllowedIPs, p.AllowedIPs...)
			continue
		}
		w.Peers = append(w.Peers, p)
	}
	return nil
}

func readPeer(b []byte) (p WireGuardPeer, err error) {
	var failed error
	err = nlmsg.Each(b, func(kind uint16, value []byte) {
		switch {
		case kind == wgPeerKey && len(value) == len(p.Public):
			copy(p.Public[:], value)
		case kind == wgEndpoint:
			p.Endpoint = readSocketAddress(value)
		case kind == wgKeepalive && len(value) == 2:
			p.Keepalive = binary.NativeEndian.Uint16(value)
		case kind == wgHandshake && len(value) == 16:
			if s, ns := int64(binary.NativeEndian.Uint64(value)), int64(binary.NativeEndian.Uint64(value[8:])); s != 0 || ns != 0 {
				p.Handshake = time.Unix(s, ns)
			}
		case kind == wgReceived && len(value) == 8:
			p.Received = binary.NativeEndian.Uint64(value)
		case kind == wgAllowedIPs && failed == nil:
			p.AllowedIPs, failed = readAllowedIPs(value)
		}
	})
	if err == nil {
		err = failed
	}
	return p, err
}

func readAllowedIPs(b []byte) (all []netip.Prefix, err error) {
	for len(b) > 0 {
		_, value, rest, err := nlmsg.NextAttribute(b)
		if err != nil {
			return nil, err
		}
		b = rest
		addr, ok := netip.AddrFromSlice(nlmsg.Find(value, wgIPAddr))
		mask := nlmsg.Find(value, wgIPMask)
		if !ok || len(mask) != 1 || int(mask[0]) > addr.BitLen() {
			return nil, fmt.Errorf("%w: allowed address", nlmsg.ErrMalformed)
		}
		all = append(all, netip.PrefixFrom(addr, int(mask[0])))
	}
	return all, nil
}

// socketAddress encodes a as struct sockaddr_in or sockaddr_in6.
func socketAddress(a netip.AddrPort) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(FamilyOf(a.Addr())))
	b = binary.BigEndian.AppendUint16(b, a.Port())
	if a.Addr().Is4() {
		return append(append(b, a.Addr().AsSlice()...), make([]byte, 8)...)
	}
	b = append(append(b, 0, 0, 0, 0), a.Addr().AsSlice()...)
	return append(b, 0, 0, 0, 0)
}

// readSocketAddress decodes a struct sockaddr_in or sockaddr_in6; it returns the zero AddrPort for other sizes.
func readSocketAddress(b []byte) netip.AddrPort {
	var addr netip.Addr
	switch len(b) {
	case unix.SizeofSockaddrInet4:
		addr, _ = netip.AddrFromSlice(b[4:8])
	case unix.SizeofSockaddrInet6:
		addr, _ = netip.AddrFromSlice(b[8:24])
	default:
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[2:]))
}
