package perf

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// How much is measured at once, and how often; the mean without the largest and the smallest counts.
const (
	rounds        = 5
	streamBytes   = 4 << 20
	roundTrips    = 1000
	datagrams     = 400
	connections   = 150
	conversations = 10 // of the round trips
)

// wire is a way for packets between two namespaces. One thread has both ends: the kernel delivers a packet before it returns to its sender, so that
// nothing is measured but the packet's way, neither a scheduler's work nor that of Go's.
type wire struct {
	from, to *netlinkx.Namespace
	addr     netip.Addr // of to
	listener int
	buf      []byte
}

// newWire listens at one end until the test ends.
func newWire(t *testing.T, from, to *netlinkx.Namespace, addr netip.Addr) *wire {
	t.Helper()
	w := &wire{from: from, to: to, addr: addr, buf: make([]byte, 128<<10)}
	errtest.Must(t, to.Do(func() (err error) {
		if w.listener, err = w.open(unix.SOCK_STREAM); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(w.listener) })
		return errors.Join(unix.Bind(w.listener, w.server()), unix.Listen(w.listener, 16))
	}))
	return w
}

func (w *wire) server() unix.Sockaddr {
	if w.addr.Is6() {
		return &unix.SockaddrInet6{Addr: w.addr.As16(), Port: port}
	}
	return &unix.SockaddrInet4{Addr: w.addr.As4(), Port: port}
}

// open opens a socket in the thread's namespace. What does not come within a minute is lost.
func (w *wire) open(kind int) (int, error) {
	family := unix.AF_INET
	if w.addr.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	patience := unix.Timeval{Sec: 60}
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience))
}

// connect returns both ends of a connection.
func (w *wire) connect() (ends [2]int, err error) {
	if ends[0], err = w.open(unix.SOCK_STREAM); err != nil {
		return ends, err
	}
	if err := unix.Connect(ends[0], w.server()); err != nil {
		return ends, fmt.Errorf("connect to %s: %w", w.addr, err)
	}
	ends[1], _, err = unix.Accept(w.listener)
	for _, fd := range ends {
		// Acknowledgements go with answers from the first byte on: when the kernel would begin with that is a matter of time.
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0))
	}
	return ends, err
}

func hangUp(ends [2]int) {
	unix.Close(ends[0])
	unix.Close(ends[1])
}

// backAndForth passes a byte from one end to the other and back.
func backAndForth(ends [2]int, b []byte) error {
	for i, from := range ends {
		if _, err := unix.Write(from, b[:1]); err != nil {
			return err
		}
		if n, err := unix.Read(ends[1-i], b[:1]); n != 1 {
			return errors.Join(errors.New("the byte has not come"), err)
		}
	}
	return nil
}

// kinds are those of traffic, and what a unit of each is.
var kinds = []struct {
	unit  string
	units int
	run   func(*wire) (time.Duration, error)
}{
	{"KiB of a stream", streamBytes >> 10, (*wire).stream},
	{"round trip", roundTrips, (*wire).roundTrips},
	{"connection", connections, (*wire).connections},
	{"datagram", datagrams, (*wire).datagrams},
}

// stream sends as much as the window takes, and then receives it, in turns.
func (w *wire) stream() (time.Duration, error) {
	ends, err := w.connect()
	if err != nil {
		return 0, err
	}
	defer hangUp(ends)
	if err := errors.Join(backAndForth(ends, w.buf), unix.SetNonblock(ends[0], true), unix.SetNonblock(ends[1], true)); err != nil {
		return 0, err
	}
	start := time.Now()
	for sent, received := 0, 0; received < streamBytes; {
		n, m := 0, 0
		if sent < streamBytes {
			if n, err = unix.Write(ends[0], w.buf[:min(len(w.buf), streamBytes-sent)]); err != nil && err != unix.EAGAIN {
				return 0, err
			}
		}
		if m, err = unix.Read(ends[1], w.buf); err != nil && err != unix.EAGAIN {
			return 0, err
		}
		sent, received = sent+max(n, 0), received+max(m, 0)
		if n <= 0 && m <= 0 { // what is under way needs another thread of the kernel
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(ends[1]), Events: unix.POLLIN}}, 1000); err != nil && err != unix.EINTR {
				return 0, err
			}
		}
	}
	return time.Since(start), nil
}

// roundTrips are those of several connections: each has one of two costs, as the kernel's timers happen to fall.
func (w *wire) roundTrips() (all time.Duration, err error) {
	for range conversations {
		ends, err := w.connect()
		if err != nil {
			return 0, err
		}
		took, err := w.exchange(ends, roundTrips/conversations)
		hangUp(ends)
		if err != nil {
			return 0, err
		}
		all += took
	}
	return all, nil
}

// exchange passes a byte back and forth.
func (w *wire) exchange(ends [2]int, times int) (time.Duration, error) {
	err := backAndForth(ends, w.buf)
	start := time.Now()
	for i := 0; i < times && err == nil; i++ {
		err = backAndForth(ends, w.buf)
	}
	return time.Since(start), err
}

func (w *wire) connections() (time.Duration, error) {
	start := time.Now()
	for range connections {
		ends, err := w.connect()
		if err == nil {
			err = backAndForth(ends, w.buf)
		}
		hangUp(ends)
		if err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// datagrams exchanges some, all between the same ports.
func (w *wire) datagrams() (took time.Duration, err error) {
	var ends [2]int
	if ends[0], err = w.open(unix.SOCK_DGRAM); err != nil {
		return 0, err
	}
	if err := w.to.Do(func() (err error) { ends[1], err = w.open(unix.SOCK_DGRAM); return err }); err != nil {
		return 0, err
	}
	defer hangUp(ends)
	if err := errors.Join(unix.Bind(ends[1], w.server()), unix.Connect(ends[0], w.server())); err != nil {
		return 0, err
	}
	if _, err := unix.Write(ends[0], w.buf[:1]); err != nil {
		return 0, err
	}
	_, from, err := unix.Recvfrom(ends[1], w.buf[:1], 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Connect(ends[1], from); err != nil {
		return 0, err
	}
	return w.exchange(ends, datagrams/2)
}

// cost is what a unit of each kind of traffic takes, in nanoseconds.
func (w *wire) cost(t *testing.T) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	errtest.Must(t, w.from.Do(func() error {
		runtime.LockOSThread()
		for _, k := range kinds {
			var took []time.Duration
			for range rounds + 1 { // the first one warms up
				one, err := k.run(w)
				if err != nil {
					return fmt.Errorf("%s: %w", k.unit, err)
				}
				took = append(took, one)
			}
			sum := time.Duration(0)
			for _, one := range slices.Sorted(slices.Values(took[1:]))[1 : rounds-1] {
				sum += one
			}
			all[k.unit] = float64(sum) / float64(rounds-2) / float64(k.units)
		}
		return nil
	}))
	return all
}
