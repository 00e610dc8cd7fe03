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
)

const (
	// rate is a stream's packets per second. An emulated processor does not carry more: what is lost is counted all the same.
	fullRate     = 1000
	emulatedRate = 100
	// perFlow is how many packets a stream sends from one port before it takes another: a new connection in the eyes of
	// conntrack, so that a gap in the NAT rules shows too, which old connections do not notice.
	perFlow = 10
	// burst bounds how much a sender that was not scheduled in time sends at once: the kernel queues 1,000 packets per processor.
	burst = 32
	// receiveBuffer takes minutes of a stream: a receiver that is not scheduled loses nothing.
	receiveBuffer = 64 << 20
	// Receivers take ports above this one.
	streamPort = 7000
)

// Stream is packets with numbers from one pod to another, sent at a fixed rate until it is ended.
type Stream struct {
	name     string
	from     *Pod
	src, dst netip.Addr
	port     int // of the receiver
	conn     *net.UDPConn
	stop     atomic.Bool
	began    time.Time

	sent     chan sendCount // what the sender has done, once it has ended
	received chan arrivals
	last     atomic.Int64 // when a packet arrived last, since began
	arrived  atomic.Int64 // how many have
}

// sendCount is the sender's own account.
type sendCount struct {
	packets int
	errors  map[string]int // sends that the kernel refused: these count as lost
	at      []time.Duration
	took    time.Duration
	givenUp int // sent, and no longer waited for
}

// arrivals is the receiver's.
type arrivals struct {
	seen       []bool // by number
	duplicated int
	reordered  int
	translated int // from another address than the pod's: masqueraded on the way
	overrun    uint32
}

// Count is what became of a stream. Lost are packets that never arrived.
type Count struct {
	name                                          string
	Sent, Lost, Duplicated, Reordered, Translated int
	Overrun                                       uint32 // dropped at the receiver's socket: no fault of the network
	Took                                          time.Duration
	Refused                                       map[string]int
	when                                          []time.Duration // when the lost ones were sent
	gaps                                          int             // how often the ones before a lost one arrived
}

// String says it in one line.
func (c Count) String() string {
	s := fmt.Sprintf("%s: %d sent in %v (%.0f per s), %d lost, %d duplicated, %d reordered, %d translated, %d dropped at the receiver's socket",
		c.name, c.Sent, c.Took.Round(time.Millisecond), float64(c.Sent)/c.Took.Seconds(), c.Lost, c.Duplicated, c.Reordered, c.Translated, c.Overrun)
	if len(c.when) > 0 {
		s += fmt.Sprintf(", in %d gaps, the first after %v, the last after %v; refused by the sender's kernel: %v", c.gaps, c.when[0], c.when[len(c.when)-1], c.Refused)
	}
	return s
}

// StartStream begins to send in IPv4, once a packet has come through.
func StartStream(t testing.TB, name string, from, to *Pod) *Stream {
	t.Helper()
	return StartStreamBetween(t, name, from, to, from.V4, to.V4)
}

// StartStreamBetween is StartStream between two of the pods' addresses.
func StartStreamBetween(t testing.TB, name string, from, to *Pod, src, dst netip.Addr) *Stream {
	t.Helper()
	to.streams++
	s := &Stream{name: name, from: from, src: src, dst: dst, port: streamPort + to.streams, sent: make(chan sendCount, 1), received: make(chan arrivals, 1)}
	address := netip.AddrPortFrom(dst, uint16(s.port))
	s.conn = to.ListenUDP(t, address.String())
	raw, err := s.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	if err := errors.Join(err, optErr); err != nil {
		t.Fatal(err)
	}
	s.warmUp(t, address)
	s.began = time.Now()
	rate := fullRate
	if TimeScale > 1 {
		rate = emulatedRate
	}
	go s.receive()
	go s.send(time.Second / time.Duration(rate))
	t.Cleanup(func() { s.stop.Store(true) })
	return s
}

// warmUp sends packets without a number until one arrives: the first ones of a path may be lost to address resolution.
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
	// What else was sent arrives now, or has no number.
	time.Sleep(100 * time.Millisecond)
	s.conn.SetReadDeadline(time.Time{})
}

// send is run by a thread of its own, inside the sender's namespace.
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
			time.Sleep(time.Duration(c.packets)*interval - time.Since(s.began) + waited)
		}
		return nil
	})
	if err != nil {
		c.errors[err.Error()]++
	}
	c.took = time.Since(s.began)
	s.sent <- c
}

// An emulated processor, on a machine that has other things to do, may fall behind at any rate; then packets queue until the
// kernel gives up looking for their next hop. There a sender waits while this many of its packets are on their way, unless none
// arrives any more.
const (
	window   = 64
	hopeless = time.Second
)

// wait returns how long it has waited.
func (s *Stream) wait(c *sendCount) time.Duration {
	begun := time.Now()
	for TimeScale > 1 && !s.stop.Load() && c.packets-c.givenUp-int(s.arrived.Load()) >= window {
		if time.Since(begun) > hopeless {
			c.givenUp = c.packets - int(s.arrived.Load())
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(begun)
}

// flow is a socket, with a port of its own, and how much it has sent.
type flow struct{ fd, packets int }

func (f *flow) close() { _ = unix.Close(f.fd) }

// sendOne sends the next packet. Only an error of the sender's own is one: what the kernel refuses to send counts as lost.
func (s *Stream) sendOne(c *sendCount, f *flow) (err error) {
	family, to := s.destination()
	if f.packets%perFlow == 0 {
		f.close()
		// Unconnected: an ICMP error in answer to one packet must not keep the next from being sent.
		if f.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
	}
	c.at = append(c.at, time.Since(s.began))
	if err := unix.Sendto(f.fd, binary.BigEndian.AppendUint64(nil, uint64(c.packets)), 0, to); err != nil {
		c.errors[err.Error()]++
	}
	f.packets++
	c.packets++
	return nil
}

// destination is what the kernel is told to send to.
func (s *Stream) destination() (family int, to unix.Sockaddr) {
	if s.dst.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: s.port, Addr: s.dst.As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: s.port, Addr: s.dst.As16()}
}

// receive ends when the socket is closed or has a deadline.
func (s *Stream) receive() {
	var a arrivals
	buf := make([]byte, 100)
	top := -1
	for {
		size, from, err := s.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			break
		}
		if size != 8 {
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

// dropped is the kernel's own count of what found no room in the socket's buffer.
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

// quiet is how long nothing has arrived when all that was on its way has.
const quiet = time.Second

// End stops the sender, gives what is on its way time to arrive, and counts.
func (s *Stream) End() Count {
	s.stop.Store(true)
	sent := <-s.sent
	c := Count{name: s.name, Sent: sent.packets, Took: sent.took, Refused: sent.errors}
	for ended := time.Now(); time.Since(ended) < quiet || time.Since(s.began)-time.Duration(s.last.Load()) < quiet; {
		time.Sleep(50 * time.Millisecond)
	}
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

// Traffic is a stream in each direction.
type Traffic []*Stream

// StartTraffic begins to send both ways, in each family that the pods have.
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

// Intact ends the streams; the test fails unless every packet has arrived once, from the address that it was sent from.
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
		case c.Lost+c.Duplicated+c.Translated > 0:
			t.Errorf("%s: not every packet has arrived once and as it was sent (the kernel's queues have dropped %d on all processors since it runs)", c, backlogDrops())
		case c.Sent < int(c.Took.Seconds()*emulatedRate/4):
			t.Errorf("%s: that is no stream", c)
		}
	}
	return counts
}

// backlogDrops is how many packets found no room in the processors' queues: an overloaded machine, and no route's fault.
func backlogDrops() (drops int) {
	text, _ := os.ReadFile("/proc/net/softnet_stat") // not there: nothing to say
	for line := range strings.Lines(string(text)) {
		var n int
		if fields := strings.Fields(line); len(fields) > 1 {
			fmt.Sscanf(fields[1], "%x", &n)
			drops += n
		}
	}
	return drops
}
