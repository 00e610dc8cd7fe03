package hairpin

import (
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

// Way is a way to another node and back. Only IPv4 has one.
type Way struct {
	// Link is the index of the link that probes come back by. They leave by it too, in frames to MAC, unless Outer is set.
	Link int
	MAC  [6]byte
	// Outer is the other node's address if probes leave in IPIP, and From the address of this node that they leave from.
	Outer, From netip.Addr
	// Back is the address of this node that the other one forwards probes to.
	Back netip.Addr
}

// Source is the IPv4 dummy address (RFC 7600), the source of probes: it is nobody's. With an address of this node the kernel would log each
// probe that comes back as a martian where log_martians is set, and with one that is in a subnet of the other node that node would send
// a redirect.
var Source = netip.AddrFrom4([4]byte{192, 0, 0, 8})

const (
	hops       = 8 // of a probe: it needs two
	ipHeader   = 20
	udpHeader  = 8
	nonceBytes = 16
)

// Probe is an open way. It belongs to one goroutine.
type Probe struct {
	way Way
	// tap sees packets as they come by the link: the host's firewall may drop what is for the host itself. port has the UDP port, so that
	// the kernel sends no ICMP error, and takes probes that come back by another link.
	tap  *os.File
	port *net.UDPConn
	// ipip sends by IPIP; nil without it.
	ipip   *net.IPConn
	packet []byte
	back   chan struct{} // has an element if the probe came back
}

// Open opens sockets in the network namespace of the thread. Close closes them: while they are open each packet that comes by the link is compared.
func Open(ctx context.Context, way Way) (p *Probe, err error) {
	p = &Probe{way: way, back: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			p.Close()
			p, err = nil, fmt.Errorf("open the way of probes by link %d: %w", way.Link, err)
		}
	}()
	if !way.Back.Is4() {
		return p, fmt.Errorf("address %s: only IPv4 is probed", way.Back)
	}
	conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp4", netip.AddrPortFrom(way.Back, 0).String())
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
	p.packet = datagram(way.Back, port, nonce)
	if p.tap, err = tap(way.Link, port); err != nil {
		return p, err
	}
	go p.listen(p.tap.Read, ipHeader+udpHeader, string(nonce))
	go p.listen(p.port.Read, 0, string(nonce))
	return p, nil
}

// tap opens a socket that gets the UDP packets to a port that come by a link.
func tap(link int, port uint16) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // else it would hear all links until it is bound
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "packet socket")
	const protocolAt, portAt = 9, ipHeader + 2 // a probe has no options
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: protocolAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: portAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethIP, Ifindex: link})
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ethIP is ETH_P_IP in network order.
var ethIP = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))

// listen notes that a probe came back. It returns when the socket is closed.
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

// Answered sends one probe and reports whether it came back within the time. The error is why it could not be sent.
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
	to := unix.SockaddrLinklayer{Protocol: ethIP, Ifindex: p.way.Link, Halen: uint8(len(p.way.MAC))}
	copy(to.Addr[:], p.way.MAC[:])
	var sent error
	err = control.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), p.packet, 0, &to) })
	return errors.Join(err, os.NewSyscallError("sendto", sent))
}

// datagram is an IPv4 packet with UDP from Source, without UDP's checksum.
func datagram(to netip.Addr, port uint16, data []byte) []byte {
	b := make([]byte, ipHeader+udpHeader, ipHeader+udpHeader+len(data))
	b[0], b[8], b[9] = 0x45, hops, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
	src, dst := Source.As4(), to.As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	binary.BigEndian.PutUint16(b[ipHeader:], port)
	binary.BigEndian.PutUint16(b[ipHeader+2:], port)
	binary.BigEndian.PutUint16(b[ipHeader+4:], uint16(udpHeader+len(data)))
	return append(b, data...)
}

// Echo asks a node itself for an ICMP echo, and reports whether it answers within the time.
func Echo(ctx context.Context, from, to netip.Addr, within time.Duration) bool {
	d := net.Dialer{LocalAddr: &net.IPAddr{IP: from.AsSlice()}}
	conn, err := d.DialContext(ctx, "ip4:1", to.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	const request, reply = 8, 0
	b := make([]byte, 8+nonceBytes)
	b[0] = request
	_, _ = rand.Read(b[4:]) // identifier, sequence and data
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	if _, err := conn.Write(b); err != nil {
		return false
	}
	_ = conn.SetReadDeadline(time.Now().Add(within))
	for got := make([]byte, 256); ; {
		n, err := conn.Read(got)
		if err != nil {
			return false
		}
		if m := got[:n]; n >= ipHeader+len(b) && m[n-len(b)] == reply && string(m[n-len(b)+4:]) == string(b[4:]) {
			return true
		}
	}
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
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
