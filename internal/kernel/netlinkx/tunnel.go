package netlinkx

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	siocChangeTunnel = 0x89f3 // SIOCCHGTUNNEL, linux/if_tunnel.h
	ipDontFragment   = 0x4000
)

// ipTunnelParm is struct ip_tunnel_parm of linux/if_tunnel.h: its IPv4 header is the template of outer headers.
type ipTunnelParm struct {
	name           [unix.IFNAMSIZ]byte
	link           int32
	iflags, oflags [2]byte
	ikey, okey     [4]byte
	header         [20]byte
}

// ifreqData is struct ifreq with a pointer for its union.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// SetTunnelPMTUDisc switches DF in the outer packets of an any-to-any ipip link on or off. It uses the tunnel ioctl:
// the kernel refuses every netlink change of a namespace's fallback device, tunl0. The outer TTL remains copied from
// the inner packet: with a fixed one path MTU discovery could not be switched off.
func (c *Conn) SetTunnelPMTUDisc(link Link, on bool) error {
	var p ipTunnelParm
	copy(p.name[:unix.IFNAMSIZ-1], link.Name)
	p.header[0] = 4<<4 | 5
	p.header[9] = unix.IPPROTO_IPIP
	if on {
		binary.BigEndian.PutUint16(p.header[6:], ipDontFragment)
	}
	req := ifreqData{data: unsafe.Pointer(&p)}
	copy(req.name[:unix.IFNAMSIZ-1], link.Name)
	return c.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket for tunnel ioctl: %w", err)
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), siocChangeTunnel, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("set path MTU discovery of tunnel %s: %w", link.Name, errno)
		}
		return nil
	})
}
