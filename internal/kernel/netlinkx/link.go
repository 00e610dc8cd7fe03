package netlinkx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// maxLinkName is IFNAMSIZ without the closing zero byte.
const maxLinkName = unix.IFNAMSIZ - 1

// PeerPlace is the place of a link's other end.
type PeerPlace int

const (
	// PeerNone means that the link has no other end.
	PeerNone PeerPlace = iota
	// PeerHere means that the other end is in the same namespace.
	PeerHere
	// PeerElsewhere means that the other end is in another namespace, which a process, mount or open file kept when the
	// link was read; PeerAlive looks again.
	PeerElsewhere
	// PeerGone means that the other end's namespace is being taken down; the kernel will remove the link.
	PeerGone
)

// Tunnel holds the properties of a link of kind ipip. The zero value is a tunnel from any to any address.
type Tunnel struct {
	Local, Remote netip.Addr // invalid: any
	TTL           uint8      // 0: the inner packet's
	PMTUDisc      bool       // outer packets carry DF, and the path's MTU bounds the inner ones
}

// Link is a network interface as the kernel describes it.
type Link struct {
	Index        int
	Name         string
	Kind         string // as the kernel names it: veth, ipip, bridge; "device" for hardware and loopback
	MTU          int
	Up           bool // administratively
	Down         bool // the kernel knows that nothing passes: it is not up, or has no carrier
	Loopback     bool
	Master       int // index of the bond, bridge or VRF that it is part of; 0: none
	HardwareAddr net.HardwareAddr
	Alias        string
	TxQueues     int
	RxQueues     int

	PeerIndex int // in the peer's namespace; 0 without a peer
	Peer      PeerPlace
	peerNSID  int

	Tunnel Tunnel // of kind ipip only
	VXLAN  VXLAN  // of kind vxlan only
}

// Elsewhere reports whether packets of the link come from another namespace and go there (IFLA_LINK_NETNSID): a pair's
// peer, a VLAN's parent, or the socket of a tunnel that was moved here is in that namespace. The kernel does not report
// it for wireguard.
func (l *Link) Elsewhere() bool { return l.Peer == PeerElsewhere || l.Peer == PeerGone }

// Here reports whether l is of the kind given and sends and receives in its own namespace.
func (l *Link) Here(kind string) bool { return l.Kind == kind && !l.Elsewhere() }

// Links lists the namespace's links.
func (c *Conn) Links() ([]Link, error) {
	found, err := retryDump("links", c.requests.LinkList)
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(found))
	for _, l := range found {
		links = append(links, linkFrom(l))
	}
	return links, nil
}

// LinkByName finds a link by its name; IsNotExist holds for the error if there is none.
func (c *Conn) LinkByName(name string) (Link, error) {
	if err := CheckLinkName(name); err != nil {
		return Link{}, err
	}
	l, err := c.requests.LinkByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("find link %s: %w", name, err)
	}
	return linkFrom(l), nil
}

// LinkByIndex finds a link by its index; IsNotExist holds for the error if there is none.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	l, err := c.requests.LinkByIndex(index)
	if err != nil {
		return Link{}, fmt.Errorf("find link with index %d: %w", index, err)
	}
	return linkFrom(l), nil
}

// CheckLinkName rejects names that the kernel rejects, and names that would lead to other paths under /proc/sys.
func CheckLinkName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%q is %w", name, ErrLinkName)
	case len(name) > maxLinkName:
		return fmt.Errorf("link name %q is longer than %d characters: %w", name, maxLinkName, ErrLinkName)
	}
	for _, r := range name {
		if r == '/' || r == ':' || r <= ' ' {
			return fmt.Errorf("link name %q holds %q: %w", name, r, ErrLinkName)
		}
	}
	return nil
}

func linkFrom(l netlink.Link) Link {
	a := l.Attrs()
	link := Link{
		Index: a.Index, Name: a.Name, Kind: l.Type(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
		HardwareAddr: a.HardwareAddr, Alias: a.Alias, TxQueues: a.NumTxQueues, RxQueues: a.NumRxQueues,
		PeerIndex: a.ParentIndex, peerNSID: a.NetNsID,
	}
	link.Down = !link.Up || a.OperState == netlink.OperDown || a.OperState == netlink.OperLowerLayerDown ||
		a.OperState == netlink.OperNotPresent
	link.Loopback, link.Master = a.Flags&net.FlagLoopback != 0, a.MasterIndex
	link.Peer = peerPlace(a)
	switch t := l.(type) {
	case *netlink.Iptun:
		link.Tunnel = Tunnel{Local: unspecifiedToZero(t.Local), Remote: unspecifiedToZero(t.Remote), TTL: t.Ttl, PMTUDisc: t.PMtuDisc != 0}
	case *netlink.Vxlan:
		link.VXLAN = vxlanFrom(t)
	}
	return link
}

// peerPlace reads IFLA_LINK_NETNSID: absent (which the library shows as -1) for a peer in the same namespace, and the
// kernel's own -1 (which the library shows unsigned) once the peer's namespace has lost its id, the first step of its
// end.
func peerPlace(a *netlink.LinkAttrs) PeerPlace {
	const noNSID = int(^uint32(0))
	switch {
	case a.NetNsID == noNSID:
		return PeerGone
	case a.NetNsID >= 0:
		return PeerElsewhere
	case a.ParentIndex > 0:
		return PeerHere
	}
	return PeerNone
}

func unspecifiedToZero(ip net.IP) netip.Addr {
	if a := addrFromIP(ip); a.IsValid() && !a.IsUnspecified() {
		return a
	}
	return netip.Addr{}
}

// PeerAlive reports whether the namespace of the link's other end still lives. A namespace that lost its last user
// waits for the kernel's cleanup, on a busy node for seconds, and until then its links look intact; but the kernel
// refuses requests into it.
func (c *Conn) PeerAlive(link Link) (bool, error) {
	if link.Peer != PeerElsewhere {
		return link.Peer == PeerHere, nil
	}
	body := nlmsg.AppendUint32(linkBody(link.PeerIndex), unix.IFLA_TARGET_NETNSID, uint32(link.peerNSID))
	err := c.execute(nlmsg.Message{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_ACK, Body: body})
	switch {
	case err == nil:
		return true, nil
	case IsNotExist(err) || errors.Is(err, unix.EINVAL):
		return false, nil
	}
	return false, fmt.Errorf("look for the peer of link %s: %w", link.Name, err)
}

// linkBody returns a struct ifinfomsg for the link with an index.
func linkBody(index int) []byte {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	return body
}

// Veth describes a new pair of virtual Ethernet links: one end in the connection's namespace, the other, called the
// peer, in PeerNamespace.
type Veth struct {
	Name         string
	HardwareAddr net.HardwareAddr // nil: random
	TxQueueLen   int

	PeerName         string
	PeerNamespace    *Namespace
	PeerHardwareAddr net.HardwareAddr // nil: random
	PeerTxQueueLen   int

	MTU    int // of both ends; 0: the kernel's default
	Queues int // receive and transmit queues of both ends, each; 0: the kernel's default, one for each CPU
}

// attrs returns the attributes of the near end.
func (v *Veth) attrs() (netlink.LinkAttrs, error) {
	for _, name := range []string{v.Name, v.PeerName} {
		if err := CheckLinkName(name); err != nil {
			return netlink.LinkAttrs{}, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU, attrs.TxQLen = v.Name, v.HardwareAddr, v.MTU, v.TxQueueLen
	attrs.NumTxQueues, attrs.NumRxQueues = v.Queues, v.Queues
	return attrs, nil
}

// AddVeth makes both ends in one message: the peer never appears in this namespace, where its name could be taken and
// network managers would see it. IsExist holds for the error if either name is taken.
func (c *Conn) AddVeth(v Veth) error {
	attrs, err := v.attrs()
	if err == nil {
		err = c.requests.LinkAdd(&netlink.Veth{
			LinkAttrs:        attrs,
			PeerName:         v.PeerName,
			PeerHardwareAddr: v.PeerHardwareAddr,
			PeerNamespace:    netlink.NsFd(v.PeerNamespace.Fd()),
			PeerTxQLen:       v.PeerTxQueueLen,
		})
	}
	if err != nil {
		return fmt.Errorf("add veth %s with peer %s: %w", v.Name, v.PeerName, err)
	}
	return nil
}

// AddNetkit is AddVeth for links of kind netkit, which carry Ethernet like a veth and run BPF programs as part of
// sending. This end is the primary one. IsUnsupported holds for the error if the kernel is older than 6.7 or was built
// without netkit.
func (c *Conn) AddNetkit(v Veth) error {
	attrs, err := v.attrs()
	if err == nil {
		peer := netlink.LinkAttrs{
			Name: v.PeerName, HardwareAddr: v.PeerHardwareAddr, MTU: v.MTU, Namespace: netlink.NsFd(v.PeerNamespace.Fd()),
		}
		pair := &netlink.Netkit{
			LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L2, Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
			Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
		}
		pair.SetPeerAttrs(&peer)
		err = c.requests.LinkAdd(pair)
	}
	if err != nil {
		return fmt.Errorf("add netkit %s with peer %s: %w", v.Name, v.PeerName, err)
	}
	return nil
}

// AddIPIP makes an IP-in-IP tunnel, down, with path MTU discovery; MTU 0 is the kernel's default. IsExist holds for the
// error if the name is taken, or if the namespace has a tunnel between the same addresses, whatever its name;
// IsUnsupported if the kernel has no IPIP.
func (c *Conn) AddIPIP(name string, between Tunnel, mtu int) error {
	if err := CheckLinkName(name); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	if err := c.requests.LinkAdd(between.link(attrs)); err != nil {
		return fmt.Errorf("add ipip link %s: %w", name, err)
	}
	return nil
}

// SetTunnelLocal changes the local address of a link of kind ipip with a fixed peer and path MTU discovery. The request
// has no link name: old kernels treat even an unchanged name as a renaming, which they refuse while the link is up.
func (c *Conn) SetTunnelLocal(link Link, local netip.Addr) error {
	const localAddress, remoteAddress, ttl = 2, 3, 4 // IFLA_IPTUN_LOCAL, _REMOTE, _TTL
	var kind, ends nlmsg.Attributes
	ends.Add(localAddress, local.AsSlice())
	ends.Add(remoteAddress, link.Tunnel.Remote.AsSlice())
	ends.Add(ttl, []byte{link.Tunnel.TTL})
	kind.Text(unix.IFLA_INFO_KIND, link.Kind)
	kind.Nest(unix.IFLA_INFO_DATA, ends)
	attrs := nlmsg.Attributes(linkBody(link.Index))
	attrs.Nest(unix.IFLA_LINKINFO, kind)
	if err := c.execute(nlmsg.Message{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_ACK, Body: attrs}); err != nil {
		return fmt.Errorf("set local address %s of tunnel %s: %w", local, link.Name, err)
	}
	return nil
}

func (t Tunnel) link(attrs netlink.LinkAttrs) *netlink.Iptun {
	return &netlink.Iptun{LinkAttrs: attrs, Local: t.Local.AsSlice(), Remote: t.Remote.AsSlice(), Ttl: t.TTL, PMtuDisc: 1,
		Proto: unix.IPPROTO_IPIP}
}

// handle returns a link for the library if only its index is known.
func handle(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// SetUp brings a link up.
func (c *Conn) SetUp(index int) error { return c.set(index, "up", c.requests.LinkSetUp) }

// MaxAlias is the maximum length of an alias in bytes: IFALIASZ without the closing zero byte.
const MaxAlias = 255

// SetUpWithAlias sets a link's alias and brings it up, in one message. The kernel accepts no alias when a link is made.
func (c *Conn) SetUpWithAlias(link Link, alias string) error {
	attrs := netlink.LinkAttrs{Index: link.Index, Name: link.Name, Alias: alias, Flags: net.FlagUp, TxQLen: -1}
	if err := c.requests.LinkModify(&netlink.Device{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("set link %s up with alias %q: %w", link.Name, alias, err)
	}
	return nil
}

// SetDown takes a link down. The kernel drops the link's routes with it.
func (c *Conn) SetDown(index int) error { return c.set(index, "down", c.requests.LinkSetDown) }

// SetMTU changes a link's MTU.
func (c *Conn) SetMTU(index, mtu int) error {
	return c.set(index, fmt.Sprintf("mtu %d", mtu), func(l netlink.Link) error { return c.requests.LinkSetMTU(l, mtu) })
}

// SetHardwareAddr changes a link's MAC address.
func (c *Conn) SetHardwareAddr(index int, addr net.HardwareAddr) error {
	return c.set(index, "address "+addr.String(), func(l netlink.Link) error { return c.requests.LinkSetHardwareAddr(l, addr) })
}

func (c *Conn) set(index int, what string, fn func(netlink.Link) error) error {
	if err := fn(handle(index)); err != nil {
		return fmt.Errorf("set link with index %d %s: %w", index, what, err)
	}
	return nil
}

// Own is LinkByName for this program's own link of the kind given. A link of that name with another kind, or one that
// sends and receives in another namespace, is evicted, and IsNotExist holds for the error: a pod with CAP_NET_ADMIN can
// make such a link, which would prevent ours, or send and receive in its place.
func (c *Conn) Own(name, kind string) (Link, error) {
	link, err := c.LinkByName(name)
	if err != nil || link.Here(kind) {
		return link, err
	}
	if err := c.Evict(link, ""); err != nil {
		return link, err
	}
	return Link{}, fmt.Errorf("link %s was not this namespace's %s: %w", name, kind, unix.ENODEV)
}

// Evict deletes a link in the place of one of this program's own, and calls Replaced. more extends the description.
func (c *Conn) Evict(link Link, more string) error {
	was := "of kind " + link.Kind + more
	if link.Elsewhere() {
		was += " and of another network namespace"
	}
	if err := c.DeleteLink(link.Index); err != nil && !IsNotExist(err) {
		return fmt.Errorf("link %s is another program's, %s, and cannot be deleted: rename it: %w", link.Name, was, err)
	}
	if c.Replaced != nil {
		c.Replaced(link.Name, was)
	}
	return nil
}

// DeleteLink removes a link; of a veth pair, both ends.
func (c *Conn) DeleteLink(index int) error {
	if err := c.requests.LinkDel(handle(index)); err != nil {
		return fmt.Errorf("delete link with index %d: %w", index, err)
	}
	return nil
}
