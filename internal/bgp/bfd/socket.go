package bfd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Port is where Control packets over one hop go; they come from a port of the range from firstSource to lastSource (RFC 5881 section 4).
// The RFC would like another source port for each session, which is a socket for each; one for all is what neighbours see as one
// system, and is allowed.
const (
	Port        = 3784
	firstSource = 49152
	lastSource  = 65535
	// ttl is that of each packet: one that has passed a router has less, and is not taken (RFC 5881 section 5).
	ttl = 255
	// internetControl is the class of packets that must not be late behind those of pods (CS6, RFC 4594).
	internetControl = 0xc0
	// bindTries is how many source ports are tried.
	bindTries = 16
)

// socket is the door to the neighbours of one family.
type socket struct{ in, out int }

// openSocket opens the sockets of a family in the network namespace of the caller's thread.
func openSocket(v4 bool) (*socket, error) {
	s := &socket{in: -1, out: -1}
	var err error
	if s.in, err = newUDP(v4); err == nil {
		err = errors.Join(onlyNear(s.in, v4), bind(s.in, v4, Port))
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: another program has it (BIRD, FRR's bfdd): stop its BFD, or ask for none here", err)
	}
	if err == nil {
		s.out, err = newSender(v4)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("open UDP port %d for BFD: %w", Port, err)
	}
	return s, nil
}

func (s *socket) close() {
	for _, fd := range []int{s.in, s.out} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func newUDP(v4 bool) (int, error) {
	family := unix.AF_INET6
	if v4 {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil && !v4 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	return fd, err
}

func bind(fd int, v4 bool, port int) error {
	if v4 {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: port})
	}
	return unix.Bind(fd, &unix.SockaddrInet6{Port: port})
}

// newSender opens the socket that packets are sent from.
func newSender(v4 bool) (fd int, err error) {
	if fd, err = newUDP(v4); err != nil {
		return fd, err
	}
	level, hops, class := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
	if v4 {
		level, hops, class = unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
	}
	if err = errors.Join(unix.SetsockoptInt(fd, level, hops, ttl), unix.SetsockoptInt(fd, level, class, internetControl)); err != nil {
		return fd, err
	}
	for range bindTries {
		if err = bind(fd, v4, firstSource+rand.IntN(lastSource-firstSource+1)); err == nil {
			break
		}
	}
	return fd, err
}

// onlyNear has the kernel drop what has passed a router, before it takes room in the socket.
func onlyNear(fd int, v4 bool) error {
	const network = 0xfff00000 // SKF_NET_OFF: offsets are those of the IP header
	at := uint32(network + 7)
	if v4 {
		at = network + 8
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_ABS | unix.BPF_B, K: at},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: ttl},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// read reads a packet that has come; ok is false if there is none.
func (s *socket) read(buf []byte) (b []byte, from netip.Addr, ok bool) {
	n, name, err := unix.Recvfrom(s.in, buf, 0)
	if err != nil {
		return nil, from, false // EAGAIN; what else there may be passes, or there is none to read again
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		from = netip.AddrFrom4(name.Addr)
	case *unix.SockaddrInet6:
		from = netip.AddrFrom16(name.Addr)
	}
	return buf[:n], from, true
}

// write sends a packet from an address, of which the kernel chooses one if it is invalid.
func (s *socket) write(b []byte, from, to netip.Addr) error {
	var source []byte
	if to.Is4() {
		if from.IsValid() {
			source = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
		}
		return unix.Sendmsg(s.out, b, source, &unix.SockaddrInet4{Port: Port, Addr: to.As4()}, 0)
	}
	if from.IsValid() {
		source = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
	}
	return unix.Sendmsg(s.out, b, source, &unix.SockaddrInet6{Port: Port, Addr: to.As16()}, 0)
}
