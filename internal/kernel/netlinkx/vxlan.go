package netlinkx

import (
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// VXLAN holds the properties of a link of kind vxlan.
type VXLAN struct {
	ID   uint32
	Port uint16
	// Local is the address that outer packets are sent from.
	Local netip.Addr
	// Parent is the index of the link that outer packets leave by; 0: none in particular.
	Parent int
	// Learning: the source of a received packet becomes the destination of packets to its inner MAC.
	Learning bool
	// More marks a listed link with a remote or a group, with extensions, or with a limit of its entries: the fields do
	// not show these.
	More bool
}

// Differences returns how a device differs from want, such as "had VNI 7".
func (v VXLAN) Differences(want VXLAN) (was []string) {
	if v.ID != want.ID {
		was = append(was, fmt.Sprintf("had VNI %d", v.ID))
	}
	if v.Port != want.Port {
		was = append(was, fmt.Sprintf("had port %d", v.Port))
	}
	if v.Local != want.Local {
		was = append(was, fmt.Sprintf("had local address %s", v.Local))
	}
	if v.Parent != want.Parent {
		was = append(was, "had another parent link")
	}
	if v.Learning || v.More {
		was = append(was, "had other options of VXLAN")
	}
	return was
}

func vxlanFrom(v *netlink.Vxlan) VXLAN {
	return VXLAN{
		ID: uint32(v.VxlanId), Port: uint16(v.Port), Local: addrFromIP(v.SrcAddr), Parent: v.VtepDevIndex, Learning: v.Learning,
		More: addrFromIP(v.Group).IsValid() || v.GBP || v.FlowBased || v.Proxy || v.RSC || v.L2miss || v.L3miss || v.Limit > 0,
	}
}

// AddVXLAN makes a link of kind vxlan, down. IsExist holds for the error if the name is taken, or if another link has
// the same ID and port; IsUnsupported if the kernel has no VXLAN.
func (c *Conn) AddVXLAN(name string, mac [6]byte, mtu int, v VXLAN) error {
	if err := CheckLinkName(name); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac[:], mtu
	err := c.requests.LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: int(v.ID), Port: int(v.Port), SrcAddr: v.Local.AsSlice(), VtepDevIndex: v.Parent, Learning: v.Learning,
	})
	if err != nil {
		return fmt.Errorf("add vxlan link %s: %w", name, err)
	}
	return nil
}

// ChangeVXLAN changes Local, Parent and Learning of a link, which keeps everything else and continues to work. Its ID
// and port cannot be changed. IsUnsupported holds for the error on kernels before 5.3.
func (c *Conn) ChangeVXLAN(link Link, v VXLAN) error {
	local, learning := uint16(unix.IFLA_VXLAN_LOCAL), uint8(0)
	if v.Local.Is6() {
		local = unix.IFLA_VXLAN_LOCAL6
	}
	if v.Learning {
		learning = 1
	}
	data := nlmsg.AppendAttribute(nil, local, v.Local.AsSlice())
	data = nlmsg.AppendUint32(data, unix.IFLA_VXLAN_LINK, uint32(v.Parent))
	data = nlmsg.AppendAttribute(data, unix.IFLA_VXLAN_LEARNING, []byte{learning})
	info := nlmsg.AppendAttribute(nil, unix.IFLA_INFO_KIND, []byte("vxlan"))
	info = nlmsg.AppendAttribute(info, unix.IFLA_INFO_DATA, data)
	body := nlmsg.AppendAttribute(linkBody(link.Index), unix.IFLA_LINKINFO, info)
	if err := c.execute(nlmsg.Message{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_ACK, Body: body}); err != nil {
		return fmt.Errorf("change vxlan link %s: %w", link.Name, err)
	}
	return nil
}

// From linux/ethtool.h.
const (
	ethtoolGetTxChecksum = 0x16
	ethtoolSetTxChecksum = 0x17
)

type ethtoolValue struct{ command, value uint32 }

// TxChecksum reports whether a link offloads transmit checksums.
func (c *Conn) TxChecksum(name string) (bool, error) {
	v := ethtoolValue{command: ethtoolGetTxChecksum}
	err := c.ethtool(name, &v)
	return v.value != 0, err
}

// SetTxChecksum switches a link's offload of transmit checksums; without it the kernel computes them before.
func (c *Conn) SetTxChecksum(name string, on bool) error {
	v := ethtoolValue{command: ethtoolSetTxChecksum}
	if on {
		v.value = 1
	}
	return c.ethtool(name, &v)
}

func (c *Conn) ethtool(name string, v *ethtoolValue) error {
	req := ifreqData{data: unsafe.Pointer(v)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	return c.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket for ethtool: %w", err)
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("transmit checksums of link %s: %w", name, errno)
		}
		return nil
	})
}
