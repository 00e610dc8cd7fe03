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
	conversations = 50 // of the round trips
)

// wire is a way for packets between two namespaces. One thread has both ends: the kernel delivers a packet before it returns to its sender, so that
// nothing is measured but the packet's way, neither a scheduler's work nor that of Go's.
type wire struct {
	from *netlinkx.Namespace
	to   []end
	buf  []byte
}

// end is a far end of a wire.
type end struct {
	ns       *netlinkx.Namespace
	addr     netip.Addr
	listener int
}

// newWire listens at the far ends until the test ends.
func newWire(t *testing.T, from *netlinkx.Namespace, to ...end) *wire {
	t.Helper()
	w := &wire{from: from, to: to, buf: make([]byte, 128<<10)}
	for i := range to {
		far := &w.to[i]
		errtest.Must(t, far.ns.Do(func() (err error) {
			if far.listener, err = far.open(unix.SOCK_STREAM); err != nil {
				return err
			}
			t.Cleanup(func() { unix.Close(far.listener) })
			return errors.Join(unix.Bind(far.listener, far.server()), unix.Listen(far.listener, 16))
		}))
	}
	return w
}

func (e end) server() unix.Sockaddr {
	if e.addr.Is6() {
		return &unix.SockaddrInet6{Addr: e.addr.As16(), Port: port}
	}
	return &unix.SockaddrInet4{Addr: e.addr.As4(), Port: port}
}

// open opens a socket in the thread's namespace. What does not come within a minute is lost.
func (e end) open(kind int) (int, error) {
	family := unix.AF_INET
	if e.addr.Is6() {
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
func (e end) connect() (ends [2]int, err error) {
	if ends[0], err = e.open(unix.SOCK_STREAM); err != nil {
		return ends, err
	}
	if err := unix.Connect(ends[0], e.server()); err != nil {
		return ends, fmt.Errorf("connect to %s: %w", e.addr, err)
	}
	ends[1], _, err = unix.Accept(e.listener)
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

// kind is one of traffic, and what a unit of it is.
type kind struct {
	unit  string
	units int
	run   func(*wire) (time.Duration, error)
}

var kinds = []kind{
	{"KiB of a stream", streamBytes >> 10, (*wire).stream},
	{"round trip", roundTrips, (*wire).roundTrips},
	{"connection", connections, (*wire).connections},
	{"datagram", datagrams, (*wire).datagrams},
}

// stream sends as much as the window takes, and then receives it, in turns; to several ends at once, the bytes in equal parts.
func (w *wire) stream() (time.Duration, error) {
	var all []*flow
	var waits []unix.PollFd
	for _, to := range w.to {
		ends, err := to.connect()
		if err != nil {
			return 0, err
		}
		defer hangUp(ends)
		if err := errors.Join(backAndForth(ends, w.buf), unix.SetNonblock(ends[0], true), unix.SetNonblock(ends[1], true)); err != nil {
			return 0, err
		}
		all = append(all, &flow{ends: ends, rest: streamBytes / len(w.to)})
		waits = append(waits, unix.PollFd{Fd: int32(ends[1]), Events: unix.POLLIN})
	}
	start := time.Now()
	for received := 0; received < streamBytes; {
		moved := 0
		for _, f := range all {
			n, m, err := f.move(w.buf)
			if err != nil {
				return 0, err
			}
			moved, received = moved+n+m, received+m
		}
		if moved == 0 { // what is under way needs another thread of the kernel
			if _, err := unix.Poll(waits, 1000); err != nil && err != unix.EINTR {
				return 0, err
			}
		}
	}
	return time.Since(start), nil
}

// flow is one of a stream's connections, with the bytes that are not sent yet.
type flow struct {
	ends [2]int
	rest int
}

// move sends and receives what does not have to wait.
func (f *flow) move(buf []byte) (sent, received int, err error) {
	if f.rest > 0 {
		if sent, err = unix.Write(f.ends[0], buf[:min(len(buf), f.rest)]); err != nil && err != unix.EAGAIN {
			return 0, 0, err
		}
		sent = max(sent, 0)
		f.rest -= sent
	}
	if received, err = unix.Read(f.ends[1], buf); err != nil && err != unix.EAGAIN {
		return 0, 0, err
	}
	return sent, max(received, 0), nil
}

// roundTrips are those of several connections: each has one of two costs, as the kernel's timers happen to fall.
func (w *wire) roundTrips() (all time.Duration, err error) {
	for range conversations {
		ends, err := w.to[0].connect()
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
		ends, err := w.to[0].connect()
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
	to := w.to[0]
	if ends[0], err = to.open(unix.SOCK_DGRAM); err != nil {
		return 0, err
	}
	if err := to.ns.Do(func() (err error) { ends[1], err = to.open(unix.SOCK_DGRAM); return err }); err != nil {
		return 0, err
	}
	defer hangUp(ends)
	if err := errors.Join(unix.Bind(ends[1], to.server()), unix.Connect(ends[0], to.server())); err != nil {
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
func (w *wire) cost(t *testing.T, path string, kinds []kind) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	errtest.Must(t, w.from.Do(func() error {
		runtime.LockOSThread()
		for _, k := range kinds {
			var took []time.Duration
			for range rounds + 1 { // the first one warms up
				one, err := k.run(w)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", path, k.unit, err)
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
