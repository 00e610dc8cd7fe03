package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// A listener cannot have a minimum TTL for each peer, and an accepted connection gets its own too late: data from afar
// may have arrived before. So each listener has a socket filter, which the kernel runs on each packet from the first.

// maxTTLPeers is how many peers fit into a listener's filter (BPF_MAXINSNS). The rest have the minimum TTL of their
// connections alone.
const maxTTLPeers = 300

// ttlFilter returns a filter program that drops packets of the peers in least with a TTL below theirs.
func ttlFilter(family netip.Addr, least map[netip.Addr]uint8) []unix.SockFilter {
	const (
		network = 0xfff00000 // SKF_NET_OFF: offsets begin at the IP header
		load    = unix.BPF_LD | unix.BPF_ABS
		all     = 0xffffffff
	)
	// Offsets of source address and TTL.
	source, ttlAt := uint32(network+12), uint32(network+8)
	if family.Is6() {
		source, ttlAt = network+8, network+7
	}
	var program []unix.SockFilter
	for _, addr := range ordered(family, least) {
		words := addr.AsSlice()
		for at := 0; at < len(words); at += 4 {
			after := uint8(2*(len(words)-at)/4 - 2 + 4) // instructions to skip for another source
			program = append(program,
				unix.SockFilter{Code: load | unix.BPF_W, K: source + uint32(at)},
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: after, K: binary.BigEndian.Uint32(words[at:])})
		}
		program = append(program,
			unix.SockFilter{Code: load | unix.BPF_B, K: ttlAt},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jf: 1, K: uint32(least[addr])},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: all},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
	}
	return append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: all})
}

// ordered returns the sorted addresses of a family that fit into a filter.
func ordered(family netip.Addr, least map[netip.Addr]uint8) []netip.Addr {
	var addrs []netip.Addr
	for addr := range least {
		if addr.Is4() == family.Is4() {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs[:min(len(addrs), maxTTLPeers)]
}

// setTTLFilter makes the listener drop packets from too far away.
func (l *listener) setTTLFilter(least map[netip.Addr]uint8) error {
	least = peersOf(l.self, least)
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, "set filter of distant packets", func(fd int) error {
		if len(ordered(l.self, least)) == 0 {
			err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
			if errors.Is(err, unix.ENOENT) {
				return nil // there was none
			}
			return err
		}
		program := ttlFilter(l.self, least)
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
}

// minTTL returns the minimum TTL per peer with TTL security (GTSM, RFC 5082). The relay's lock is held.
func (r *Relay) minTTL() map[netip.Addr]uint8 {
	least := make(map[netip.Addr]uint8)
	for addr, l := range r.links {
		if l.peer.Hops > 0 {
			least[addr] = uint8(ttl + 1 - l.peer.Hops)
		}
	}
	return least
}

// guard sets the filters of all listeners. The lock is held.
func (r *Relay) guard() {
	least := r.minTTL()
	for _, l := range r.listeners {
		if err := l.setTTLFilter(least); err != nil {
			r.log.Warn("the first packets of peers with TTL security are accepted from any distance", "error", fmt.Errorf("%s: %w", l.Addr(), err))
		}
	}
}
