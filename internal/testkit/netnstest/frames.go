package netnstest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Frame encodes an Ethernet frame.
func Frame(src, dst net.HardwareAddr, kind uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(slices.Concat(dst, src), kind), payload...)
}

// ARP encodes an ARP request (op 1) or reply (op 2). The addresses need not match the sender's own.
func ARP(op byte, src net.HardwareAddr, sender, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, op}
	b = slices.Concat(b, src, sender.AsSlice(), make([]byte, 6), target.AsSlice())
	return Frame(src, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, unix.ETH_P_ARP, b)
}

// Packet encodes an IPv4 or IPv6 packet. sumAt is the offset of the checksum in the payload; a negative offset leaves
// it out.
func Packet(src, dst netip.Addr, protocol, hops byte, payload []byte, sumAt int) (kind uint16, b []byte) {
	s, d := src.AsSlice(), dst.AsSlice()
	if sumAt >= 0 {
		pseudo := slices.Concat(s, d, binary.BigEndian.AppendUint32(nil, uint32(len(payload))), []byte{0, 0, 0, protocol})
		binary.BigEndian.PutUint16(payload[sumAt:], sum16(pseudo, payload))
	}
	if src.Is6() {
		header := []byte{0x60, 0, 0, 0, 0, 0, protocol, hops}
		binary.BigEndian.PutUint16(header[4:], uint16(len(payload)))
		return unix.ETH_P_IPV6, slices.Concat(header, s, d, payload)
	}
	header := make([]byte, 12)
	header[0], header[8], header[9] = 0x45, hops, protocol
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(payload)))
	header = slices.Concat(header, s, d)
	binary.BigEndian.PutUint16(header[10:], sum16(header))
	return unix.ETH_P_IP, append(header, payload...)
}

// PlainSum writes the checksum of b alone, as in ICMP of IPv4, to an offset of b.
func PlainSum(b []byte, at int) {
	binary.BigEndian.PutUint16(b[at:], 0)
	binary.BigEndian.PutUint16(b[at:], sum16(b))
}

// Datagram encodes a UDP packet.
func Datagram(src, dst netip.AddrPort, data []byte) (kind uint16, b []byte) {
	udp := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(data)))
	return Packet(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, 64, append(udp, data...), 6)
}

func sum16(parts ...[]byte) uint16 {
	total := uint32(0)
	for _, b := range parts {
		for i := 0; i < len(b); i += 2 {
			total += uint32(b[i]) << 8
			if i+1 < len(b) {
				total += uint32(b[i+1])
			}
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// Send sends frames on a link through a packet socket.
func (n *NS) Send(t testing.TB, link string, frames ...[]byte) {
	t.Helper()
	n.Within(t, func() error {
		at, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: at.Index}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Watch calls see with the IP packets that pass a link from now on, in both directions, until stop is called.
func (n *NS) Watch(t testing.TB, link string, see func(packet []byte)) (stop func()) {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network order; a listener for one protocol does not see what is sent
	var fd int
	n.Within(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // protocol 0: no packets before the bind
		return err
	})
	errtest.Must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: n.Link(t, link).Index}))
	errtest.Must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}))
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(fd)
		b := make([]byte, 64<<10)
		flags := 0
		for {
			size, _, err := unix.Recvfrom(fd, b, flags)
			if version := b[0] >> 4; err == nil && size >= 20 && (version == 4 || version == 6) {
				see(b[:size])
			}
			if err == unix.EAGAIN && flags != 0 {
				return
			}
			select {
			case <-ended:
				flags = unix.MSG_DONTWAIT // packets that have passed are seen
			default:
			}
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}
