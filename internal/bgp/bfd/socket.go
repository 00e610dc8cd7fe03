package bfd

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// Port is the destination port of Control packets over one hop (RFC 5881 section 4).
	Port = 3784
	// ttl is the TTL of packets sent, and required of received ones: a router would have lowered it (RFC 5881 section 5).
	ttl = 255
)

// listen opens the socket for the packets of all neighbours of a family, in the network namespace of the caller's
// thread.
func listen(v4 bool) (int, error) {
	fd, err := newUDP(v4)
	if err == nil {
		if err = errors.Join(onlyNear(fd, v4), unix.Bind(fd, sockaddr(unspecified(v4), 0, Port))); err != nil {
			_ = unix.Close(fd)
		}
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: another program has it (BIRD, FRR's bfdd): stop its BFD, or ask for none here", err)
	}
	if err != nil {
		return -1, fmt.Errorf("open UDP port %d for BFD: %w", Port, err)
	}
	return fd, nil
}

func newUDP(v4 bool) (int, error) {
	family := unix.AF_INET6
	if v4 {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil || v4 {
		return fd, err
	}
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

func unspecified(v4 bool) netip.Addr {
	if v4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// sockaddr returns an address for the kernel. zone is the index of its link.
func sockaddr(addr netip.Addr, zone uint32, port int) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: addr.As16(), ZoneId: zone}
}

// onlyNear makes the kernel drop packets that have passed a router, before they take room in the socket.
func onlyNear(fd int, v4 bool) error {
	const network = 0xfff00000 // SKF_NET_OFF: offsets begin at the IP header
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
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// linkName returns the present name of a link, empty if it is gone.
func linkName(fd int, index uint32) string {
	request, _ := unix.NewIfreq("") // no name is too long
	request.SetUint32(index)
	if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, request) != nil {
		return ""
	}
	return request.Name()
}

// linkIndex returns the present index of a link in the socket's namespace, 0 for no name.
func linkIndex(fd int, name string) (uint32, error) {
	if name == "" {
		return 0, nil
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return 0, fmt.Errorf("look up link %q: %w", name, err)
	}
	return request.Uint32(), nil
}
