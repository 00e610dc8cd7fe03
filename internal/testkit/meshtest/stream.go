package meshtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

const (
	// fullRate is the packets per second of a stream. The first tier has a quarter: dozens of streams at once would keep a
	// processor busy. emulatedRate is the rate that an emulated processor sustains. Loss is counted at any rate.
	fullRate     = 1000
	emulatedRate = 50
	// perFlow is the number of packets from one source port before the sender uses another. A new port is a new connection
	// for conntrack, so gaps in the NAT rules, which do not affect established connections, show too.
	perFlow = 10
	// burst is the most a sender that was scheduled late sends at once: the kernel queues 1,000 packets per processor.
	burst = 32
	// receiveBuffer holds minutes of a stream, so a receiver that is scheduled late loses nothing.
	receiveBuffer = 64 << 20
	// streamPort is below the ports of the receivers.
	streamPort = 7000
)

// Stream is a sequence of numbered packets from one pod to another, sent at a fixed rate until End.
type Stream struct {
	name     string
	from     *Pod
	src, dst netip.Addr
	port     int // of the receiver
	excused  int // gaps, see PastBIRD
	conn     *net.UDPConn
	stop     atomic.Bool
	began    time.Time

	sent     chan sendCount // the sender's counts, once it has ended
	received chan arrivals
	flushed  chan struct{} // closed when the packet after the last numbered one has arrived
	last     atomic.Int64  // time of the last arrival, since began
	arrived  atomic.Int64  // packets received
	refused  atomic.Int64  // packets that the sender's kernel did not take
	departed atomic.Int64  // packets sent
}

// sendCount is the counters of the sender.
type sendCount struct {
	packets int
	errors  map[string]int // send errors by text; these packets count as lost
	at      []time.Duration
	took    time.Duration
	givenUp int // sent, and no longer waited for
}

// arrivals is the counters of the receiver.
type arrivals struct {
	seen       []bool // by number
	duplicated int
	reordered  int
	translated int // source address is not the pod's: masqueraded on the way
	overrun    uint32
}

// Count is the result of a stream. Lost packets never arrived.
type Count struct {
	name                                          string
	Sent, Lost, Duplicated, Reordered, Translated int
	Overrun                                       uint32 // dropped at the receiver's socket, not by the network
	Took                                          time.Duration
	Refused                                       map[string]int
	when                                          []time.Duration // send times of the lost packets
	gaps                                          int             // number of runs of lost packets
}

// String formats the counts in one line.
func (c Count) String() string {
	s := fmt.Sprintf(
		"%s: %d sent in %v (%.0f per s), %d lost, %d duplicated, %d reordered, %d translated, %d dropped at the receiver's socket", c.name,
		c.Sent, c.Took.Round(time.Millisecond), float64(c.Sent)/c.Took.Seconds(), c.Lost, c.Duplicated, c.Reordered, c.Translated, c.Overrun)
	if len(c.when) > 0 {
		s += fmt.Sprintf(", in %d gaps, the first after %v, the last after %v; refused by the sender's kernel: %v", c.gaps, c.when[0],
			c.when[len(c.when)-1], c.Refused)
	}
	return s
}

// StartStream starts to send over IPv4, once a first packet has arrived.
func StartStream(t testing.TB, name string, from, to *Pod) *Stream {
	t.Helper()
	return StartStreamBetween(t, name, from, to, from.V4, to.V4)
}

// StartStreamBetween is StartStream between two given addresses of the pods.
func StartStreamBetween(t testing.TB, name string, from, to *Pod, src, dst netip.Addr) *Stream {
	t.Helper()
	to.streams++
	s := &Stream{name: name, from: from, src: src, dst: dst, port: streamPort + to.streams,
		sent: make(chan sendCount, 1), received: make(chan arrivals, 1), flushed: make(chan struct{})}
	address := netip.AddrPortFrom(dst, uint16(s.port))
	s.conn = to.ListenUDP(t, address.String())
	raw, err := s.conn.SyscallConn()
	errtest.Must(t, err)
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	errtest.Must(t, errors.Join(err, optErr))
	s.warmUp(t, address)
	s.began = time.Now()
	go s.receive()
	go s.send(time.Second / time.Duration(rate()))
	t.Cleanup(func() { s.stop.Store(true) })
	return s
}

// rate is the packets per second of a stream on this machine.
func rate() int {
	switch {
	case TimeScale > 1:
		return emulatedRate
	case Measuring():
		return fullRate
	}
	return tier.Size(fullRate/4, fullRate)
}

// warmUp sends packets without a number until one arrives, as address resolution may drop the first packets of a path.
// The receiver skips those that arrive later.
func (s *Stream) warmUp(t testing.TB, to netip.AddrPort) {
	t.Helper()
	conn := s.from.ListenUDP(t, netip.AddrPortFrom(s.src, 0).String())
	defer conn.Close()
	buf := make([]byte, 100)
	Eventually(t, func() error {
		_, err := conn.WriteToUDPAddrPort([]byte("warm up"), to)
		if err != nil {
			return err
		}
		s.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = s.conn.Read(buf)
		return err
	})
	s.conn.SetReadDeadline(time.Time{})
}

// send runs on a thread of its own, inside the sender's namespace.
func (s *Stream) send(interval time.Duration) {
	c := sendCount{errors: map[string]int{}}
	err := s.from.Do(func() error {
		f := flow{fd: -1}
		defer f.close()
		var waited time.Duration
		for !s.stop.Load() {
			waited += s.wait(&c)
			due := int((time.Since(s.began)-waited)/interval) + 1
			for range min(burst, due-c.packets) {
				if err := s.sendOne(&c, &f); err != nil {
					return err
				}
			}
			time.Sleep(time.Duration(c.packets)*interval - time.Since(s.began) + waited) //nolint:forbidigo // the stream's pace
		}
		// It takes the way of the last packets, behind them. If it is lost, End waits for silence.
		_, to := s.destination()
		_ = unix.Sendto(f.fd, []byte(lastWord), 0, to)
		return nil
	})
	if err != nil {
		c.errors[err.Error()]++
	}
	c.took = time.Since(s.began)
	s.sent <- c
}

// An emulated processor on a busy machine may fall behind at any rate; then packets queue until the kernel gives up
// resolving their next hop. There the sender waits while this many of its packets are in flight, as long as packets
// arrive.
const (
	window   = 64
	hopeless = time.Second
)

// wait blocks while too many packets are in flight and returns the time it has waited.
func (s *Stream) wait(c *sendCount) time.Duration {
	begun := time.Now()
	for TimeScale > 1 && !s.stop.Load() && c.packets-c.givenUp-int(s.arrived.Load()) >= window {
		if time.Since(begun) > hopeless {
			c.givenUp = c.packets - int(s.arrived.Load())
			break
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // a poll of its own receiver
	}
	return time.Since(begun)
}

// flow is a socket with a source port of its own, and the number of packets sent from it.
type flow struct{ fd, packets int }

func (f *flow) close() { _ = unix.Close(f.fd) }

// sendOne sends the next packet. Packets that the kernel refuses to send count as lost; an error is returned only for
// failures of the sender itself.
func (s *Stream) sendOne(c *sendCount, f *flow) (err error) {
	family, to := s.destination()
	if f.packets%perFlow == 0 {
		f.close()
		// The socket is not connected: an ICMP error for one packet must not fail the next send.
		if f.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
	}
	c.at = append(c.at, time.Since(s.began))
	if err := unix.Sendto(f.fd, binary.BigEndian.AppendUint64(nil, uint64(c.packets)), 0, to); err != nil {
		c.errors[err.Error()]++
		s.refused.Add(1)
	}
	f.packets++
	c.packets++
	s.departed.Store(int64(c.packets))
	return nil
}

// destination returns the socket address to send to.
func (s *Stream) destination() (family int, to unix.Sockaddr) {
	if s.dst.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: s.port, Addr: s.dst.As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: s.port, Addr: s.dst.As16()}
}

// receive counts packets until the socket is closed or its deadline has passed.
func (s *Stream) receive() {
	var a arrivals
	buf := make([]byte, 100)
	top, flushed := -1, false
	for {
		size, from, err := s.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			break
		}
		switch {
		case string(buf[:size]) == lastWord && !flushed:
			flushed = true
			close(s.flushed)
			continue
		case size != 8:
			continue // of the warm-up
		}
		s.last.Store(int64(time.Since(s.began)))
		number := int(binary.BigEndian.Uint64(buf))
		for len(a.seen) <= number {
			a.seen = append(a.seen, false)
		}
		if a.seen[number] {
			a.duplicated++
			continue
		}
		a.seen[number] = true
		s.arrived.Add(1)
		if number < top {
			a.reordered++
		}
		top = max(top, number)
		if from.Addr().Unmap() != s.src {
			a.translated++
		}
	}
	a.overrun = dropped(s.conn)
	s.received <- a
}

// dropped returns the kernel's count of packets that did not fit into the socket's buffer.
func dropped(conn *net.UDPConn) (drops uint32) {
	const indexOfDrops = 8 // SK_MEMINFO_DROPS
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		var info [9]uint32
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			drops = info[indexOfDrops]
		}
	})
	return drops
}

// Sent returns how many packets have been sent so far.
func (s *Stream) Sent() int { return int(s.departed.Load()) }

// Arrived returns how many packets have arrived so far.
func (s *Stream) Arrived() int { return int(s.arrived.Load()) }

// Refused returns how many packets the sender's kernel has refused to send so far.
func (s *Stream) Refused() int { return int(s.refused.Load()) }

// lastWord is the content of the packet that follows the last numbered one.
const lastWord = "last word"

// quiet is the time without an arrival after which no packet is in flight.
const quiet = time.Second

// End stops the sender, waits for packets in flight, and returns the counts.
func (s *Stream) End() Count {
	s.stop.Store(true)
	sent := <-s.sent
	c := Count{name: s.name, Sent: sent.packets, Took: sent.took, Refused: sent.errors}
	s.land(sent)
	s.conn.SetReadDeadline(time.Now())
	a := <-s.received
	s.conn.Close()
	arrived := true
	for number, at := range sent.at {
		before := arrived
		if arrived = number < len(a.seen) && a.seen[number]; arrived {
			continue
		}
		c.Lost++
		c.when = append(c.when, at)
		if before {
			c.gaps++
		}
	}
	c.Duplicated, c.Reordered, c.Translated, c.Overrun = a.duplicated, a.reordered, a.translated, a.overrun
	return c
}

// land returns when all packets that the kernel took have arrived, and lastWord behind them, or when no packet has
// arrived for a while.
func (s *Stream) land(sent sendCount) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	flushed := s.flushed
	for flushed != nil || s.Arrived() < sent.packets-s.Refused() {
		if time.Since(s.began)-max(sent.took, time.Duration(s.last.Load())) >= quiet && !s.unread() {
			return
		}
		select {
		case <-flushed:
			flushed = nil
		case <-tick.C:
		}
	}
}

// unread reports whether packets wait at the receiver's socket: a busy machine has not let the receiver read them.
func (s *Stream) unread() (waiting bool) {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		size, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		waiting = err == nil && size > 0
	})
	return waiting
}

// Traffic is a stream in each direction.
type Traffic []*Stream

// StartTraffic starts a stream in each direction, in each address family of the pods.
func StartTraffic(t testing.TB, a, b *Pod) (tr Traffic) {
	t.Helper()
	both := func(ofA, ofB netip.Addr) {
		tr = append(tr,
			StartStreamBetween(t, fmt.Sprintf("%s to %s", ofA, ofB), a, b, ofA, ofB),
			StartStreamBetween(t, fmt.Sprintf("%s to %s", ofB, ofA), b, a, ofB, ofA))
	}
	both(a.V4, b.V4)
	if a.V6.IsValid() && b.V6.IsValid() {
		both(a.V6, b.V6)
	}
	return tr
}

// Onward waits until as many more packets of each stream have arrived as it sends in a span of time: a busy machine
// takes longer for the same number.
func (tr Traffic) Onward(t testing.TB, span time.Duration) {
	t.Helper()
	want := make([]int, len(tr)) // of all streams from the same moment on
	for i, s := range tr {
		want[i] = s.Arrived() + int(span.Seconds()*float64(rate()))
	}
	for i, s := range tr {
		s.Await(t, want[i], Patience+4*span)
	}
}

// Await waits until so many packets have arrived since the stream's start.
func (s *Stream) Await(t testing.TB, packets int, limit time.Duration) {
	t.Helper()
	Within(t, limit, func() error {
		if n := s.Arrived(); n < packets {
			return fmt.Errorf("%s: %d packets have arrived, not %d", s.name, n, packets)
		}
		return nil
	})
}

// longestGap is how many packets one excused gap may have: the packets of 50 ms, for which a busy machine may hold up
// BIRD.
const longestGap = fullRate / 20

// PastBIRD excuses gaps on the way from a node with a BIRD that learns the same route from another speaker: BIRD
// replaces a route of the kernel by deleting it and adding the new one. It does so twice for each change of the
// speaker: when its path comes, and when the stale one goes.
func (s *Stream) PastBIRD(changes int) { s.excused += 2 * changes }

// tooManyLost reports whether a packet is lost that no excuse covers.
func (s *Stream) tooManyLost(c Count) bool {
	return c.gaps > s.excused || c.Lost > s.excused*longestGap
}

// Intact ends the streams. The test fails unless every packet has arrived exactly once with its source address
// unchanged.
func (tr Traffic) Intact(t testing.TB) (counts []Count) {
	t.Helper()
	for _, s := range tr {
		s.stop.Store(true)
	}
	for _, s := range tr {
		c := s.End()
		t.Log(c)
		counts = append(counts, c)
		Record("packets sent between pods while agents end and come back", "", float64(c.Sent))
		Record("packets lost of these", "", float64(c.Lost))
		switch {
		case c.Overrun > 0:
			t.Errorf("%s: this machine is too busy to count: the receiver's socket dropped %d", c.name, c.Overrun)
		case s.tooManyLost(c) || c.Duplicated+c.Translated > 0:
			t.Errorf("%s: want every packet exactly once and unchanged (backlog drops of all processors since boot: %d)", c, backlogDrops())
		case c.Sent < int(c.Took.Seconds()*emulatedRate/4):
			t.Errorf("%s: too few packets for a stream", c)
		}
	}
	return counts
}

// backlogDrops returns the packets dropped because a processor's backlog queue was full: a sign of an overloaded
// machine, not of a wrong route.
func backlogDrops() (drops int) {
	text, _ := os.ReadFile("/proc/net/softnet_stat") // missing: reported as 0
	for line := range strings.Lines(string(text)) {
		var n int
		if fields := strings.Fields(line); len(fields) > 1 {
			fmt.Sscanf(fields[1], "%x", &n)
			drops += n
		}
	}
	return drops
}
