package perf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// How much is measured at once, and how often.
const (
	rounds        = 5
	streams       = 20
	streamBytes   = 4 << 20
	exchanges     = 20 // of a connection
	conversations = 10
	connections   = 30
	datagrams     = 200 // and as many answers
)

// wire is a way for packets between two namespaces. One thread has both ends: the kernel delivers a packet before it
// returns to its sender, so that only the packet's way is measured, without the kernel's or Go's scheduler.
type wire struct {
	from *netlinkx.Namespace
	to   []end
	buf  []byte
	nice int32 // of the thread
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
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience))
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
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0))
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

// kind is one of traffic. run returns how long units took, one by one or, of a stream, all of a round.
type kind struct {
	unit   string
	units  float64
	rounds int
	usual  float64 // part of what run returns, the fastest, of which the mean counts
	run    func(*wire) ([]time.Duration, error)
}

// The mean of exchanges leaves out the slowest tenth, which timers hit; of connections the slowest quarter; of streams,
// which have thousands of packets each, the slower half, as some wait for a timer of TCP.
var kinds = []kind{
	{"KiB of a stream", streamBytes >> 10, streams, 0.5, (*wire).stream},
	{"round trip", 1, rounds, 0.9, (*wire).roundTrips},
	{"connection", 1, rounds, 0.75, (*wire).connections},
	{"datagram", 2, rounds, 0.9, (*wire).datagrams},
}

// stream sends as much as the window takes, and then receives it, in turns; to several ends at once, the bytes in equal
// parts.
func (w *wire) stream() ([]time.Duration, error) {
	var all []*flow
	var waits []unix.PollFd
	for _, to := range w.to {
		ends, err := to.connect()
		if err != nil {
			return nil, err
		}
		defer hangUp(ends)
		if err := errors.Join(backAndForth(ends, w.buf), unix.SetNonblock(ends[0], true), unix.SetNonblock(ends[1], true)); err != nil {
			return nil, err
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
				return nil, err
			}
			moved, received = moved+n+m, received+m
		}
		if moved == 0 { // what is under way needs another thread of the kernel
			if _, err := unix.Poll(waits, 1000); err != nil && err != unix.EINTR {
				return nil, err
			}
		}
	}
	return []time.Duration{time.Since(start)}, nil
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

// roundTrips measures round trips of several connections to each end; a value is the mean over all ends.
func (w *wire) roundTrips() (took []time.Duration, err error) {
	for range conversations {
		one, err := w.conversation()
		if err != nil {
			return nil, err
		}
		took = append(took, one...)
	}
	return took, nil
}

func (w *wire) conversation() ([]time.Duration, error) {
	var all [][2]int
	for _, to := range w.to {
		ends, err := to.connect()
		defer hangUp(ends)
		if err != nil {
			return nil, err
		}
		all = append(all, ends)
	}
	return w.exchange(exchanges, all...)
}

// exchange passes a byte back and forth, between all ends in turns, and returns how long each time took by the number
// of these.
func (w *wire) exchange(times int, all ...[2]int) (took []time.Duration, err error) {
	for range times {
		start := time.Now()
		for _, ends := range all {
			err = errors.Join(err, backAndForth(ends, w.buf))
		}
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(start)/time.Duration(len(all)))
	}
	return took, nil
}

// connections are made and ended after a round trip.
func (w *wire) connections() (took []time.Duration, err error) {
	for range connections {
		start := time.Now()
		ends, err := w.to[0].connect()
		if err == nil {
			err = backAndForth(ends, w.buf)
		}
		hangUp(ends)
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}

// datagrams exchanges some, all between the same ports.
func (w *wire) datagrams() ([]time.Duration, error) {
	to := w.to[0]
	var ends [2]int
	var err error
	if ends[0], err = to.open(unix.SOCK_DGRAM); err != nil {
		return nil, err
	}
	if err := to.ns.Do(func() (err error) { ends[1], err = to.open(unix.SOCK_DGRAM); return err }); err != nil {
		return nil, err
	}
	defer hangUp(ends)
	if err := errors.Join(unix.Bind(ends[1], to.server()), unix.Connect(ends[0], to.server())); err != nil {
		return nil, err
	}
	if _, err := unix.Write(ends[0], w.buf[:1]); err != nil {
		return nil, err
	}
	_, from, err := unix.Recvfrom(ends[1], w.buf[:1], 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(ends[1], from); err != nil {
		return nil, err
	}
	return w.exchange(datagrams, ends)
}

// alone has no other thread of this process run while this one can, which ends with its goroutine: Go's monitor wakes
// every 70 us while there are system calls, which adds a sixth to a round trip, and twice that to some. A real-time
// priority would keep out the kernel's threads, too.
//
// WireGuard has threads of the kernel encrypt and decrypt. With a nice of 19 these run whenever they can, and with 0 it
// is up to chance, which made runs differ by 14 %.
func alone(nice int32) error {
	runtime.LockOSThread()
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		id, e := strconv.Atoi(t.Name())
		if e == nil {
			e = schedule(id, unix.SCHED_IDLE, 0)
		}
		if !errors.Is(e, unix.ESRCH) { // the thread has ended meanwhile
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, schedule(0, unix.SCHED_NORMAL, nice))
}

func schedule(thread int, policy uint32, nice int32) error {
	return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Nice: nice}, 0)
}

// cost is what a unit of each kind of traffic takes, in nanoseconds.
func (w *wire) cost(t *testing.T, path string, kinds []kind) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	errtest.Must(t, w.from.Do(func() error {
		if err := alone(w.nice); err != nil {
			return err
		}
		for _, k := range kinds {
			var took []time.Duration
			for range k.rounds {
				some, err := k.run(w)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", path, k.unit, err)
				}
				took = append(took, some...)
			}
			all[k.unit] = mean(took, k.usual) / k.units
		}
		return nil
	}))
	return all
}

// mean returns the mean of the shortest part of durations, in nanoseconds.
func mean(all []time.Duration, part float64) (m float64) {
	shortest := slices.Sorted(slices.Values(all))[:int(math.Ceil(part*float64(len(all))))]
	for _, d := range shortest {
		m += float64(d) / float64(len(shortest))
	}
	return m
}

func middle[T cmp.Ordered](all []T) T { return slices.Sorted(slices.Values(all))[len(all)/2] }
