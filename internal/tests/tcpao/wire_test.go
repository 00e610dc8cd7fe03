package tcpao

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// wire has the KeyID of the last TCP segment from each address.
type wire struct {
	mu sync.Mutex
	id map[netip.Addr]int
}

// listen reads what passes a host's eth0, both ways.
func listen(t *testing.T, h *bgptest.Host) *wire {
	t.Helper()
	w := &wire{id: make(map[netip.Addr]int)}
	fd := -1
	errtest.Must(t, h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0x0300) // ETH_P_ALL in network order
		return err
	}))
	t.Cleanup(func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR); _ = unix.Close(fd) })
	errtest.Must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}))
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			select {
			case <-done:
				return
			default:
			}
			if n, err := unix.Read(fd, buf); err == nil {
				w.note(buf[:n])
			}
		}
	}()
	return w
}

// note reads an IP packet.
func (w *wire) note(b []byte) {
	var from netip.Addr
	var tcp []byte
	switch {
	case len(b) >= 40 && b[0] == 0x45 && b[9] == unix.IPPROTO_TCP:
		from, tcp = netip.AddrFrom4([4]byte(b[12:16])), b[20:binary.BigEndian.Uint16(b[2:])]
	case len(b) >= 60 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		from, tcp = netip.AddrFrom16([16]byte(b[8:24])), b[40:]
	default:
		return
	}
	options := tcp[20 : 4*int(tcp[12]>>4)]
	for len(options) > 1 && options[0] != 0 {
		switch {
		case options[0] == 1:
			options = options[1:]
			continue
		case options[0] == 29: // TCP-AO: kind, length, KeyID, RNextKeyID
			w.mu.Lock()
			w.id[from] = int(options[2])
			w.mu.Unlock()
			return
		}
		options = options[options[1]:]
	}
}

// await waits until two hosts sign what they send to each other by keys with these IDs.
func (w *wire) await(t *testing.T, what string, self, peer netip.Addr, own, peers int) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.id[self] != own || w.id[peer] != peers {
			return fmt.Errorf("%s: %s signs by key %d, want %d, %s by %d, want %d", what, self, w.id[self], own, peer, w.id[peer], peers)
		}
		return nil
	})
}
