package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/bgp/tcpao"
)

// ttl is the TTL of BGP packets: it serves peers with TTL security (RFC 5082) and peers behind routers. tos is the
// class of network control (CS6), in which keepalives pass a congested link; BIRD and FRR use it, too.
const (
	ttl = 255
	tos = 0xc0
)

// listener is a TCP listener with keys.
type listener struct {
	*net.TCPListener
	at   netip.AddrPort            // as requested
	self netip.Addr                // the address, with the interface's name for a zone
	keys map[netip.Prefix]string   // of TCP MD5
	ao   map[netip.Addr]tcpao.Keys // of TCP-AO

	mismatches tcpao.Mismatches
}

// peersOf returns the peers that can connect to an address of ours: they share its family and link.
func peersOf[V any](self netip.Addr, peers map[netip.Addr]V) map[netip.Addr]V {
	left := maps.Clone(peers)
	maps.DeleteFunc(left, func(peer netip.Addr, _ V) bool {
		return peer.Is4() != self.Is4() || peer.Zone() != self.Zone() && !self.IsUnspecified()
	})
	return left
}

// listen opens a listener on one address, whose zone is the index of an interface, as names can be reassigned. It is
// not Multipath TCP, Go's default, which has no MD5 keys.
func listen(ctx context.Context, addr netip.AddrPort) (*listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { return setHeader(raw, addr.Addr()) }}
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, network(addr.Addr()), addr.String())
	if err != nil {
		return nil, err
	}
	opened := &listener{TCPListener: l.(*net.TCPListener), at: addr, self: addr.Addr(), keys: make(map[netip.Prefix]string)}
	if zone := addr.Addr().Zone(); zone != "" {
		index, _ := strconv.Atoi(zone)
		link, err := net.InterfaceByIndex(index)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		opened.self = addr.Addr().WithZone(link.Name)
	}
	return opened, nil
}

// errNoInterface: the interface of a link-local address does not exist.
var errNoInterface = errors.New("no such interface")

// connect dials a peer from our own address.
func connect(ctx context.Context, p Peer, ao tcpao.Keys) (*net.TCPConn, error) {
	to := p.Addr
	if p.linkLocal() {
		link, err := net.InterfaceByName(p.Addr.Zone())
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoInterface, err)
		}
		// Package net caches the indices of names, also of links that were made anew.
		to = to.WithZone(strconv.Itoa(link.Index))
	}
	dialer := net.Dialer{
		Control: func(_, _ string, raw syscall.RawConn) error {
			err := errors.Join(setHeader(raw, p.Addr), setHops(raw, p))
			if err == nil && p.Password != "" {
				err = SetKey(raw, netip.PrefixFrom(p.Addr, p.Addr.BitLen()), p.Password)
			}
			if err == nil && ao != "" {
				err = tcpao.Sign(raw, p.Addr, ao)
			}
			return err
		},
	}
	if p.From.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.From, 0))
	}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, network(p.Addr), netip.AddrPortFrom(to, p.Port).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

func network(addr netip.Addr) string {
	if addr.Is4() {
		return "tcp4"
	}
	return "tcp6"
}

func setHeader(raw syscall.RawConn, addr netip.Addr) error {
	return control(raw, "set TTL and traffic class", func(fd int) error {
		if addr.Is4() {
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, ttl), unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, tos))
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, tos))
	})
}

// setHops makes the kernel drop packets from further away than the peer may be: BGP sends all with TTL 255.
func setHops(raw syscall.RawConn, p Peer) error {
	if p.Hops == 0 {
		return nil
	}
	least := ttl + 1 - p.Hops
	return control(raw, "set least TTL", func(fd int) error {
		if p.Addr.Is4() {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MINTTL, least)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, least)
	})
}

// acknowledged returns how many bytes the other end's kernel has acknowledged, or an error if the connection has ended.
func acknowledged(conn *net.TCPConn) (bytes uint64, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	return bytes, control(raw, "ask for the state of a connection", func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.State != unix.BPF_TCP_ESTABLISHED {
			err = net.ErrClosed
		}
		if err == nil {
			bytes = info.Bytes_acked
		}
		return err
	})
}

func control(raw syscall.RawConn, what string, set func(fd int) error) error {
	var err error
	if failed := raw.Control(func(fd uintptr) { err = set(int(fd)) }); failed != nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// SetKey makes a socket sign segments to peers and refuse unsigned ones (RFC 2385). An empty password removes the key
// of exactly these peers. A longer prefix has precedence.
func SetKey(raw syscall.RawConn, peers netip.Prefix, password string) error {
	return control(raw, "set TCP MD5 key", func(fd int) error { return SetKeyOf(fd, peers, password) })
}

// SetKeyOf is SetKey for a file descriptor.
func SetKeyOf(fd int, peers netip.Prefix, password string) error {
	sig := unix.TCPMD5Sig{Flags: unix.TCP_MD5SIG_FLAG_PREFIX, Prefixlen: uint8(peers.Bits()),
		Keylen: uint16(min(len(password), unix.TCP_MD5SIG_MAXKEYLEN))}
	copy(sig.Key[:], password)
	// The address as in sockaddr_in and sockaddr_in6, behind the family.
	if peers.Addr().Is4() {
		sig.Addr.Family = unix.AF_INET
		copy(sig.Addr.Data[2:], peers.Addr().AsSlice())
	} else {
		sig.Addr.Family = unix.AF_INET6
		copy(sig.Addr.Data[6:], peers.Addr().AsSlice())
	}
	err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG_EXT, &sig)
	switch {
	case errors.Is(err, unix.ENOENT) && password == "":
		return nil
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w: too many keys for one socket, raise the sysctl net.core.optmem_max", err)
	case errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrNoMD5, err)
	}
	return err
}

// ErrNoMD5 means that this kernel cannot sign TCP segments.
var ErrNoMD5 = errors.New("the kernel has no TCP MD5 signatures (CONFIG_TCP_MD5SIG, or it runs in FIPS mode)")

// CheckMD5 reports whether the kernel can sign TCP segments: nil if it can.
func CheckMD5() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket to try TCP MD5 signatures: %w", err)
	}
	defer unix.Close(fd)
	return SetKeyOf(fd, netip.MustParsePrefix("127.0.0.1/32"), "x")
}

// keysOf returns a listener's keys for the peers that can connect to it: see peersOf. Peers that all have one password
// share one key: a socket has room for some hundred only (net.core.optmem_max), and strangers then get no answer at
// all.
func keysOf(listener netip.Addr, passwords map[netip.Addr]string) map[netip.Prefix]string {
	keys := make(map[netip.Prefix]string)
	distinct := make(map[string]bool)
	for addr, password := range passwords {
		distinct[password] = true
		if password != "" {
			keys[netip.PrefixFrom(addr, addr.BitLen())] = password
		}
	}
	if len(distinct) != 1 || len(keys) == 0 {
		return keys
	}
	for password := range distinct {
		return map[netip.Prefix]string{netip.PrefixFrom(anyOf(listener), 0): password}
	}
	return keys
}

func anyOf(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// setKeys makes secrets the listener's keys. unsigned lists peers whose secret the kernel cannot take: their
// connections are refused.
func (l *listener) setKeys(secrets Secrets) (unsigned map[netip.Addr]error, err error) {
	want, stay := make(map[netip.Addr]tcpao.Keys), make(map[netip.Addr]tcpao.Keys)
	for addr, keys := range peersOf(l.self, secrets.AO) {
		want[addr] = keys
		if _, ok := l.ao[addr]; ok {
			stay[addr] = keys
		}
	}
	passwords := peersOf(l.self, secrets.Passwords)
	_, ambiguous := tcpao.WithoutLinks(passwords, l.has)
	for addr := range ambiguous {
		delete(passwords, addr)
	}
	// The kernel refuses a key if the peer has one of the other kind.
	_, err = l.setAO(stay)
	err = errors.Join(err, l.setMD5(keysOf(l.self, passwords)))
	unsigned, aoErr := l.setAO(want)
	unsigned = because("the kernel refuses its TCP-AO keys", unsigned)
	maps.Copy(unsigned, because("the kernel cannot check its password, or that it has none", ambiguous))
	return unsigned, errors.Join(err, aoErr)
}

// has reports whether connections of a peer must be signed with a password; empty: must not be signed.
func (l *listener) has(peer netip.Addr, password string) bool {
	one, ok := l.keys[netip.PrefixFrom(peer, peer.BitLen())]
	if !ok {
		one = l.keys[netip.PrefixFrom(anyOf(peer), 0)]
	}
	return one == password
}

func because(what string, errs map[netip.Addr]error) map[netip.Addr]error {
	said := make(map[netip.Addr]error, len(errs))
	for addr, err := range errs {
		said[addr] = fmt.Errorf("%s: %w", what, err)
	}
	return said
}

// setAO makes want the listener's keys of TCP-AO. failed lists peers whose keys the kernel refuses.
func (l *listener) setAO(want map[netip.Addr]tcpao.Keys) (failed map[netip.Addr]error, err error) {
	if maps.Equal(want, l.ao) {
		return nil, nil
	}
	raw, err := l.SyscallConn()
	if err == nil {
		failed, err = tcpao.Expect(raw, want)
	}
	if err != nil {
		return nil, fmt.Errorf("set keys of TCP-AO on %s: %w", l.Addr(), err)
	}
	l.ao = maps.Clone(want)
	for peer := range failed {
		delete(l.ao, peer)
	}
	return failed, nil
}

// setMD5 makes want the listener's keys of TCP MD5. It adds before it removes, so that no peer connects unsigned.
func (l *listener) setMD5(want map[netip.Prefix]string) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var errs []error
	for prefix, password := range want {
		if l.keys[prefix] == password {
			continue
		}
		if err := SetKey(raw, prefix, password); err != nil {
			errs = append(errs, fmt.Errorf("peers %s on %s: %w", prefix, l.Addr(), err))
			continue
		}
		l.keys[prefix] = password
	}
	for _, prefix := range slices.Collect(maps.Keys(l.keys)) {
		if _, ok := want[prefix]; ok {
			continue
		}
		if err := SetKey(raw, prefix, ""); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(l.keys, prefix)
	}
	return errors.Join(errs...)
}
