package tcpao

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TCP options and flags, from linux/tcp.h.
const (
	optAdd    = 38 // TCP_AO_ADD_KEY
	optDelete = 39 // TCP_AO_DEL_KEY
	optInfo   = 40 // TCP_AO_INFO
	optKeys   = 41 // TCP_AO_GET_KEYS

	setCurrent = 1
	setNext    = 2
	isCurrent  = 1
	isNext     = 2
	getAll     = 4
)

// sockaddr is a sockaddr_storage without a port.
type sockaddr [128]byte

// The structs of the options, in the kernel's order.
type (
	addRequest struct { // tcp_ao_add
		Addr          sockaddr
		Algorithm     [64]byte
		Interface     int32
		Flags         uint32
		_             uint16
		Prefix        uint8
		Send, Receive uint8
		MAC           uint8
		KeyFlags      uint8
		SecretLen     uint8
		Secret        [maxSecret]byte
	}
	deleteRequest struct { // tcp_ao_del
		Addr          sockaddr
		Interface     int32
		Flags         uint32
		_             uint16
		Prefix        uint8
		Send, Receive uint8
		Current, Next uint8
		KeyFlags      uint8
	}
	infoRequest struct { // tcp_ao_info_opt
		Flags         uint32
		_             uint16
		Current, Next uint8
		_             [5]uint64
	}
	keyInfo struct { // tcp_ao_getsockopt
		Addr          sockaddr
		Algorithm     [64]byte
		Secret        [maxSecret]byte
		Keys          uint32
		Flags         uint16
		Send, Receive uint8
		Prefix        uint8
		MAC           uint8
		KeyFlags      uint8
		SecretLen     uint8
		_             int32
		Verified, Bad uint64 // pkt_good, pkt_bad
	}
)

// Errors that a caller can act on.
var (
	// ErrNoKernel: this kernel has no TCP-AO.
	ErrNoKernel = errors.New("the kernel has no TCP-AO (Linux 6.7, CONFIG_TCP_AO)")
	// ErrUnsigned: a connection was made without TCP-AO, and cannot get it later.
	ErrUnsigned = errors.New("it is not signed by TCP-AO")
)

// Check reports whether the kernel has TCP-AO: nil if it does.
func Check() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket to try TCP-AO: %w", err)
	}
	defer unix.Close(fd)
	return addKey(fd, netip.AddrFrom4([4]byte{127, 0, 0, 1}), key{1, 1, "hmac-sha1-96", "x"})
}

// Sign makes an unconnected socket sign segments to a peer with the first of the keys, and refuse segments that none of
// them has signed.
func Sign(conn syscall.RawConn, peer netip.Addr, keys Keys) error {
	return control(conn, func(fd int) error {
		all := keys.all()
		for _, k := range all {
			if err := addKey(fd, peer, k); err != nil {
				return err
			}
		}
		return set(fd, optInfo, infoRequest{Flags: setCurrent | setNext, Current: all[0].send, Next: all[0].receive})
	})
}

// Roll changes the keys of a connection with a peer, and requests the first of them from the peer. A removed key stays
// while one end uses it, for a week at most: call Roll periodically. After an error the connection must be closed.
func (r *Rollover) Roll(conn syscall.RawConn, peer netip.Addr, keys Keys, now time.Time) error {
	return control(conn, func(fd int) error {
		have, err := keysOn(fd)
		if err == nil && len(have) == 0 {
			err = ErrUnsigned
		}
		if err != nil {
			return err
		}
		if have, err = r.keep(have, keys.all(), now); err != nil {
			return err
		}
		return apply(fd, peer, plan(have, keys.all(), true))
	})
}

// Expect makes want, by peer, the keys that connections to a listener must have. Other peers' connections are unsigned.
// failed lists peers whose keys the kernel refuses.
func Expect(listener syscall.RawConn, want map[netip.Addr]Keys) (failed map[netip.Addr]error, err error) {
	err = control(listener, func(fd int) error {
		have, err := keysOn(fd)
		if err != nil {
			return err
		}
		peers := make(map[netip.Addr][]installed, len(want))
		for peer := range want {
			peers[peer.WithZone("")] = nil
		}
		for _, h := range have {
			peers[h.peer] = append(peers[h.peer], h)
		}
		var named map[netip.Addr]netip.Addr
		named, failed = WithoutLinks(want, func(peer netip.Addr, k Keys) bool { return k.on(peers[peer.WithZone("")]) })
		for peer, on := range peers {
			if err := apply(fd, peer, plan(on, want[named[peer]].all(), false)); err != nil {
				failed[cmp.Or(named[peer], peer)] = err
			}
		}
		return nil
	})
	return failed, err
}

// WithoutLinks returns, by address without link, the peer whose keys the kernel gets. The kernel can bind a key, of
// TCP-AO or MD5, to a VRF (TCP_AO_KEYF_IFINDEX, TCP_MD5SIG_FLAG_IFINDEX; EINVAL for any other device), but to no link:
// of two peers with one address, one would lose its keys to the other. The first peer with installed keys has
// precedence, so that a new one takes nothing from it, else the first. failed lists peers with other keys than theirs.
func WithoutLinks[K comparable](want map[netip.Addr]K,
	installed func(netip.Addr, K) bool) (named map[netip.Addr]netip.Addr, failed map[netip.Addr]error) {
	named, failed = make(map[netip.Addr]netip.Addr, len(want)), map[netip.Addr]error{}
	for _, peer := range slices.SortedFunc(maps.Keys(want), netip.Addr.Compare) {
		at := peer.WithZone("")
		first, taken := named[at]
		if !taken || installed(peer, want[peer]) && !installed(first, want[first]) {
			named[at] = peer
		}
	}
	for peer, keys := range want {
		if one := named[peer.WithZone("")]; keys != want[one] {
			failed[peer] = fmt.Errorf(
				"%s has not the same, and a listener on all addresses tells no links apart: give both the same, or bindMode NodeIP", one)
		}
	}
	return named, failed
}

// on reports whether one of the keys is installed.
func (k Keys) on(have []installed) bool {
	return slices.ContainsFunc(have, func(i installed) bool { return slices.ContainsFunc(k.all(), i.matches) })
}

func apply(fd int, peer netip.Addr, steps []step) error {
	for _, s := range steps {
		var err error
		switch s.op {
		case add:
			err = addKey(fd, peer, s.key)
		case askFor:
			err = set(fd, optInfo, infoRequest{Flags: setNext, Next: s.key.receive})
		default:
			err = set(fd, optDelete, deleteRequest{Addr: address(peer), Prefix: uint8(peer.BitLen()), Send: s.key.send, Receive: s.key.receive})
		}
		if err != nil && (s.op != removeIdle || !errors.Is(err, unix.EBUSY)) {
			return fmt.Errorf("key %d/%d: %w", s.key.send, s.key.receive, err)
		}
	}
	return nil
}

func addKey(fd int, peer netip.Addr, k key) error {
	a := algorithms[k.algorithm]
	r := addRequest{Addr: address(peer), Prefix: uint8(peer.BitLen()), Send: k.send, Receive: k.receive, MAC: a.mac,
		SecretLen: uint8(len(k.secret))}
	copy(r.Algorithm[:], a.name)
	copy(r.Secret[:], k.secret)
	err := set(fd, optAdd, r)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrNoKernel, err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: the kernel has no %s for %s: use another algorithm", err, a.name, k.algorithm)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w: too many keys for one socket, raise the sysctl net.core.optmem_max", err)
	}
	return err
}

// keysOn returns all keys of a socket.
func keysOn(fd int) ([]installed, error) {
	size := binary.Size(keyInfo{})
	for room := 8; ; {
		buf, err := binary.Append(make([]byte, 0, room*size), binary.NativeEndian, keyInfo{Keys: uint32(room), Flags: getAll})
		if err != nil {
			return nil, err
		}
		buf = buf[:room*size]
		length := uint32(size) // of one key
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, optKeys,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&length)), 0)
		switch errno {
		case 0:
		case unix.ENOENT: // the socket has none
			return nil, nil
		default:
			return nil, fmt.Errorf("read keys of TCP-AO: %w", errno)
		}
		infos := make([]keyInfo, room)
		if _, err := binary.Decode(buf, binary.NativeEndian, infos); err != nil {
			return nil, err
		}
		if found := int(infos[0].Keys); found > room {
			room = found
		} else {
			return known(infos[:found]), nil
		}
	}
}

func known(infos []keyInfo) []installed {
	all := make([]installed, len(infos))
	for i, k := range infos {
		name, _, _ := strings.Cut(string(k.Algorithm[:]), "\x00")
		if name == "cmac(aes)" { // the kernel's name for cmac(aes128)
			name = cmac
		}
		all[i] = installed{k.Addr.addr(), k.Send, k.Receive, algorithm{name, k.MAC},
			string(k.Secret[:min(k.SecretLen, maxSecret)]), k.Flags&isNext != 0,
			k.Flags&isCurrent != 0, k.Verified, k.Bad}
	}
	return all
}

// address places an address as in sockaddr_in and sockaddr_in6.
func address(a netip.Addr) (s sockaddr) {
	if a.Is4() {
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET)
		copy(s[4:], a.AsSlice())
	} else {
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET6)
		copy(s[8:], a.AsSlice())
	}
	return s
}

func (s sockaddr) addr() netip.Addr {
	if binary.NativeEndian.Uint16(s[:]) == unix.AF_INET {
		return netip.AddrFrom4([4]byte(s[4:8]))
	}
	return netip.AddrFrom16([16]byte(s[8:24]))
}

// set sets a socket option to one of the structs.
func set(fd, option int, value any) error {
	text, err := binary.Append(nil, binary.NativeEndian, value)
	if err != nil {
		return err
	}
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, option, string(text))
}

func control(conn syscall.RawConn, f func(fd int) error) error {
	var err error
	if failed := conn.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
		return failed
	}
	return err
}
