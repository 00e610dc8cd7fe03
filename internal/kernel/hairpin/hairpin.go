package hairpin

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Way is a way to another node and back.
type Way struct {
	// Link is the index of the link that probes come back by. They leave by it too, in frames to MAC, unless Outer is set.
	Link int
	MAC  [6]byte
	// Outer is the other node's address if probes leave in IPIP, and From their outer source, an address of this node.
	Outer, From netip.Addr
	// Back is the destination of probes, an address of this node, and Source their source.
	Back, Source netip.Addr
}

// Dummy is the IPv4 dummy address (RFC 7600), the source of IPv4 probes: no host has it. With an address of this node
// the kernel would log each returning probe as a martian where log_martians is set, and with an address in a subnet of
// the other node that node would send a redirect.
var Dummy = netip.AddrFrom4([4]byte{192, 0, 0, 8})

const (
	hops       = 8 // of a probe: it needs two
	udpHeader  = 8
	nonceBytes = 16
)

// family has the differences between IPv4 and IPv6.
type family struct {
	udp            string // Go's name of the network
	etherType      uint16
	header         int    // bytes of the IP header without options or extensions
	protocolAt     uint32 // offset in it of the protocol (next header)
	echo           string // Go's name of the network
	request, reply byte
}

var (
	v4 = family{"udp4", unix.ETH_P_IP, 20, 9, "ip4:1", 8, 0}
	v6 = family{"udp6", unix.ETH_P_IPV6, 40, 6, "ip6:58", 128, 129}
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return v4
	}
	return v6
}

// protocol returns the EtherType in network order.
func (f family) protocol() uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, f.etherType))
}

// Probe holds the open sockets of a Way. It belongs to one goroutine.
type Probe struct {
	way    Way
	family family
	// tap receives packets as they come by the link, before the host's firewall, which may drop them. port holds the UDP
	// port, so that the kernel sends no ICMP error, and receives probes that come back by another link.
	tap  *os.File
	port *net.UDPConn
	// ipip sends probes in IPIP; nil without it.
	ipip   *net.IPConn
	packet []byte
	back   chan struct{} // has an element if the probe came back
}

// Open opens sockets in the network namespace of the thread. Close closes them: while they are open, a filter runs for
// each packet that comes by the link.
func Open(ctx context.Context, way Way) (p *Probe, err error) {
	p = &Probe{way: way, family: familyOf(way.Back), back: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			p.Close()
			p, err = nil, fmt.Errorf("open the way of probes by link %d: %w", way.Link, err)
		}
	}()
	conn, err := new(net.ListenConfig).ListenPacket(ctx, p.family.udp, netip.AddrPortFrom(way.Back, 0).String())
	if err != nil {
		return p, err
	}
	p.port = conn.(*net.UDPConn)
	port := uint16(p.port.LocalAddr().(*net.UDPAddr).Port)
	if way.Outer.IsValid() {
		d := net.Dialer{LocalAddr: &net.IPAddr{IP: way.From.AsSlice()}}
		outer, err := d.DialContext(ctx, "ip4:4", way.Outer.String())
		if err != nil {
			return p, err
		}
		p.ipip = outer.(*net.IPConn)
	}
	nonce := make([]byte, nonceBytes)
	_, _ = rand.Read(nonce) // never fails
	p.packet = datagram(way.Source, way.Back, port, nonce)
	if p.tap, err = p.family.tap(way.Link, port); err != nil {
		return p, err
	}
	go p.listen(p.tap.Read, p.family.header+udpHeader, string(nonce))
	go p.listen(p.port.Read, 0, string(nonce))
	return p, nil
}

// tap opens a socket that receives the UDP packets to a port that come by a link.
func (f family) tap(link int, port uint16) (*os.File, error) {
	// Protocol 0: else the socket would receive packets of all links until it is bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "packet socket")
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: f.protocolAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: uint32(f.header + 2)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: f.protocol(), Ifindex: link})
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// listen signals p.back for each probe that comes back. It returns when the socket is closed.
func (p *Probe) listen(read func([]byte) (int, error), header int, nonce string) {
	b := make([]byte, 256)
	for {
		n, err := read(b)
		if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil && !errors.Is(err, syscall.ENETDOWN) && !errors.Is(err, syscall.EINTR) {
			return
		}
		if n >= header+len(nonce) && string(b[header:header+len(nonce)]) == nonce {
			select {
			case p.back <- struct{}{}:
			default:
			}
		}
	}
}

// Close closes the sockets.
func (p *Probe) Close() {
	if p.tap != nil {
		p.tap.Close()
	}
	if p.port != nil {
		p.port.Close()
	}
	if p.ipip != nil {
		p.ipip.Close()
	}
}

// Answered sends one probe and reports whether it came back within the time. The error is from sending, or ctx's.
func (p *Probe) Answered(ctx context.Context, within time.Duration) (bool, error) {
	if err := p.send(); err != nil {
		return false, err
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.back:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (p *Probe) send() error {
	if p.ipip != nil {
		_, err := p.ipip.Write(p.packet)
		return err
	}
	control, err := p.tap.SyscallConn()
	if err != nil {
		return err
	}
	to := unix.SockaddrLinklayer{Protocol: p.family.protocol(), Ifindex: p.way.Link, Halen: uint8(len(p.way.MAC))}
	copy(to.Addr[:], p.way.MAC[:])
	var sent error
	err = control.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), p.packet, 0, &to) })
	return errors.Join(err, os.NewSyscallError("sendto", sent))
}

// datagram returns an IP packet with UDP.
func datagram(from, to netip.Addr, port uint16, data []byte) []byte {
	f, size := familyOf(to), uint16(udpHeader+len(data))
	udp := binary.BigEndian.AppendUint16(nil, port)
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, size)
	udp = append(append(udp, 0, 0), data...)
	addrs := append(from.AsSlice(), to.AsSlice()...)
	pseudo := append(append(addrs[:len(addrs):len(addrs)], byte(size>>8), byte(size), 0, unix.IPPROTO_UDP), udp...)
	binary.BigEndian.PutUint16(udp[6:], cmp.Or(checksum(pseudo), 0xffff)) // 0 is none
	b := make([]byte, f.header, f.header+len(udp))
	copy(b[f.header-len(addrs):], addrs)
	if to.Is4() {
		b[0], b[8], b[9] = 0x45, hops, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
		binary.BigEndian.PutUint16(b[10:], checksum(b))
	} else {
		b[0], b[6], b[7] = 0x60, unix.IPPROTO_UDP, hops
		binary.BigEndian.PutUint16(b[4:], size)
	}
	return append(b, udp...)
}

// Echo sends a node an ICMP echo request, and reports whether it answers within the time.
func Echo(ctx context.Context, from, to netip.Addr, within time.Duration) bool {
	d := net.Dialer{LocalAddr: &net.IPAddr{IP: from.AsSlice()}}
	f := familyOf(to)
	conn, err := d.DialContext(ctx, f.echo, to.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	b := make([]byte, 8+nonceBytes)
	b[0] = f.request
	_, _ = rand.Read(b[4:])                        // identifier, sequence and data
	binary.BigEndian.PutUint16(b[2:], checksum(b)) // of ICMPv6 the kernel computes it
	if _, err := conn.Write(b); err != nil {
		return false
	}
	_ = conn.SetReadDeadline(time.Now().Add(within))
	for got := make([]byte, 256); ; {
		n, err := conn.Read(got)
		if err != nil {
			return false
		}
		if m := got[:n]; n >= len(b) && m[n-len(b)] == f.reply && string(m[n-len(b)+4:]) == string(b[4:]) {
			return true
		}
	}
}

// checksum returns the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
