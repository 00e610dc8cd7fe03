// Package wire connects the network namespaces of a lab: a bridge in the control plane's, a veth pair to each node. It
// is the only package of the lab that uses netlink, and it never changes the machine's own namespace.
package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/netns"
)

// BridgeName is the bridge in the control plane's namespace, the lab's underlay.
const BridgeName = "underlay"

// uplink is the node's interface on the underlay.
const uplink = "eth0"

// sysctls are the values of a freshly installed Debian. A new network namespace would inherit the machine's, and a
// lab's result would depend on them, such as on forwarding.
var sysctls = map[string]string{
	"net/ipv4/ip_forward":             "0",
	"net/ipv4/conf/all/rp_filter":     "0",
	"net/ipv4/conf/default/rp_filter": "2",
}

// hubSysctls are the sysctls of the control plane's namespace. A node that forwards to a pod of another node sends an
// ICMP redirect, which would be cached longer than the pod's address exists.
var hubSysctls = map[string]string{
	"net/ipv4/conf/all/accept_redirects":     "0",
	"net/ipv4/conf/default/accept_redirects": "0",
	"net/ipv6/conf/default/accept_redirects": "0",
}

// Bridge creates the underlay in a namespace, with addresses.
func Bridge(ns string, addrs []netip.Prefix) error {
	err := netns.Do(ns, func() error {
		if err := errors.Join(set(hubSysctls), loopbackUp()); err != nil {
			return err
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		bridge.Name = BridgeName
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("add bridge %s: %w", BridgeName, err)
		}
		return addresses(bridge, addrs)
	})
	if err != nil {
		return fmt.Errorf("make the underlay in %s: %w", ns, err)
	}
	return nil
}

// Routes adds a route to each range, through the gateway of its family.
func Routes(ns string, ranges []netip.Prefix, gateways []netip.Addr) error {
	return netns.Do(ns, func() error {
		for i, dst := range ranges {
			if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(dst), Gw: gateways[i].AsSlice()}); err != nil {
				return fmt.Errorf("add the route to %s via %s in %s: %w", dst, gateways[i], ns, err)
			}
		}
		return nil
	})
}

// Node is the configuration of a node's link.
type Node struct {
	// Hub and NetNS are the files of the namespaces of the bridge and of the node.
	Hub, NetNS string
	// Port is the name of the bridge's port.
	Port string
	// Addrs and Gateways have an entry per address family.
	Addrs    []netip.Prefix
	Gateways []netip.Addr
}

// Attach connects a node to the underlay.
func Attach(n Node) error {
	if err := n.attach(); err != nil {
		return fmt.Errorf("connect %s to the underlay: %w", n.NetNS, err)
	}
	return nil
}

// Detach removes the link. The kernel would do so asynchronously after the end of the node's namespace.
func Detach(hub, port string) error {
	err := netns.Do(hub, func() error {
		link, err := netlink.LinkByName(port)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("disconnect %s from the underlay: %w", port, err)
	}
	return nil
}

// hardwareAddr derives the MAC address from the IP address, so that it survives a restart of the node: others have
// cached it.
func (n Node) hardwareAddr() net.HardwareAddr {
	ip := n.Addrs[0].Addr().As4()
	return append(net.HardwareAddr{0x02, 0}, ip[:]...)
}

func (n Node) attach() error {
	target, err := os.Open(n.NetNS)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := netns.Do(n.Hub, func() error { return n.plug(target) }); err != nil {
		return err
	}
	return netns.Do(n.NetNS, n.configure)
}

// plug creates the pair in the bridge's namespace, with the far end in the node's.
func (n Node) plug(target *os.File) error {
	bridge, err := netlink.LinkByName(BridgeName)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", BridgeName, err)
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: uplink, PeerNamespace: netlink.NsFd(target.Fd()),
		PeerHardwareAddr: n.hardwareAddr()}
	veth.Name = n.Port
	veth.MasterIndex = bridge.Attrs().Index
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add pair %s: %w", n.Port, err)
	}
	return netlink.LinkSetUp(veth)
}

func (n Node) configure() error {
	if err := errors.Join(set(sysctls), loopbackUp()); err != nil {
		return err
	}
	link, err := netlink.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("find %s: %w", uplink, err)
	}
	if err := addresses(link, n.Addrs); err != nil {
		return err
	}
	for _, gateway := range n.Gateways {
		if err := netlink.RouteAdd(&netlink.Route{Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("add default route via %s: %w", gateway, err)
		}
	}
	return nil
}

func set(sysctls map[string]string) error {
	for name, value := range sysctls {
		err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, "net/ipv6/") {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

func addresses(link netlink.Link, prefixes []netip.Prefix) error {
	for _, p := range prefixes {
		a := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD // no duplicates here: usable at once
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return netlink.LinkSetUp(link)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
