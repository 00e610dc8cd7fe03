package bfd

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// watched collects the notifications of an engine.
type watched struct {
	mu   sync.Mutex
	lost map[netip.Addr]Loss
}

func (w *watched) Changed() {}

func (w *watched) Lost(addr netip.Addr, loss Loss) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.lost = map[netip.Addr]Loss{}
	}
	w.lost[addr] = loss
}

func (w *watched) loss(addr netip.Addr) (Loss, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	loss, ok := w.lost[addr]
	return loss, ok
}

// ways are two engines in network namespaces joined by a cable, with sessions between n pairs of addresses of each
// family.
type ways struct {
	ns      [2]*netnstest.NS
	engines [2]*Engine
	watched [2]*watched
	want    [2]map[netip.Addr]Config
}

func newWays(t testing.TB, n int, c Config) *ways {
	t.Helper()
	w := &ways{ns: [2]*netnstest.NS{netnstest.New(t), netnstest.New(t)}}
	netnstest.Cable(t, w.ns[0], "eth0", w.ns[1], "eth0")
	for i := range w.ns {
		w.ns[i].Up(t, "eth0")
		w.watched[i], w.want[i] = &watched{}, map[netip.Addr]Config{}
		w.engines[i] = NewEngine(slog.New(slog.DiscardHandler), w.watched[i])
		for k := range n {
			for _, form := range []string{"10.%d.%d.%d/8", "fd00::%d:%d:%d/64"} {
				addr := func(side int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf(form, side+1, k/200, k%200+1)) }
				w.ns[i].Addr(t, "eth0", addr(i).String())
				c.From = addr(i).Addr()
				w.want[i][addr(1-i).Addr()] = c
			}
		}
	}
	return w
}

// set starts the sessions of both engines, and ends them with the test.
func (w *ways) set(t testing.TB) {
	t.Helper()
	for i := range w.engines {
		w.ns[i].Within(t, func() error { w.engines[i].Set(w.want[i]); return nil })
		t.Cleanup(func() { w.engines[i].Set(nil) })
	}
}

func (w *ways) waitUp(t testing.TB) {
	t.Helper()
	waittest.For(t, 10*time.Second, func() error {
		for i, e := range w.engines {
			for addr := range w.want[i] {
				if s := e.Status(addr); s.State != Up {
					return fmt.Errorf("end %d with %s: %+v", i, addr, s)
				}
			}
		}
		return nil
	})
}

// TestEngine: sessions of both families come up. The removal of one end is no failure, a cut cable is one.
func TestEngine(t *testing.T) {
	w := newWays(t, 2, Config{Interval: 100 * time.Millisecond, Multiplier: 3})
	w.set(t)
	w.waitUp(t)
	gone, stays := netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("fd00::2:0:2")
	delete(w.want[0], gone)
	w.set(t)
	other := w.want[0][netip.MustParseAddr("10.2.0.2")].From.Prev()
	waittest.Until(t, 20*time.Second, "loss at the other end", func() bool { _, ok := w.watched[1].loss(other); return ok })
	if loss, _ := w.watched[1].loss(other); !loss.Admin || loss.Diag != NeighborSaysDown {
		t.Errorf("removal of a session is told as %+v", loss)
	}
	errtest.Must(t, w.ns[1].Conn.SetDown(w.ns[1].Link(t, "eth0").Index))
	waittest.Until(t, 20*time.Second, "loss", func() bool { _, ok := w.watched[0].loss(stays); return ok })
	loss, _ := w.watched[0].loss(stays)
	if loss.Admin || loss.Independent || loss.Diag != TimeExpired {
		t.Errorf("a cut cable is told as %+v", loss)
	}
}

// TestDistantPacket: a packet that has passed a router is dropped. A later packet of another neighbour is received,
// which proves that the first one was not just late.
func TestDistantPacket(t *testing.T) {
	w := newWays(t, 2, fast)
	clear(w.want[1])
	w.set(t)
	ends := func(side, k int) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{10, byte(side), 0, byte(k)}), netip.MustParseAddr(fmt.Sprintf("fd00::%d:0:%d", side, k))}
	}
	p := packet{state: Down, mult: 3, my: 9, minTx: time.Second, minRx: time.Second}
	send := func(k, hops int) {
		w.ns[1].Within(t, func() error {
			for i, to := range ends(1, k) {
				s := sender{from: ends(2, k)[i], to: to}
				defer s.close()
				errtest.Must(t, s.prepare())
				level, option := syscall.IPPROTO_IPV6, syscall.IPV6_UNICAST_HOPS
				if to.Is4() {
					level, option = syscall.IPPROTO_IP, syscall.IP_TTL
				}
				errtest.Must(t, syscall.SetsockoptInt(s.fd, level, option, hops))
				errtest.Must(t, s.send(p.append(nil), false))
			}
			return nil
		})
	}
	heard := func(k int) (n int) {
		for _, addr := range ends(2, k) {
			if w.engines[0].Status(addr).Heard {
				n++
			}
		}
		return n
	}
	send(1, ttl-1)
	send(2, ttl)
	waittest.Until(t, 20*time.Second, "packets of a neighbour", func() bool { return heard(2) == 2 })
	if n := heard(1); n != 0 {
		t.Errorf("%d of 2 packets were taken that have passed a router", n)
	}
	send(1, ttl)
	waittest.Until(t, 20*time.Second, "packets of the other neighbour", func() bool { return heard(1) == 2 })
}

// TestBusyPort: the status has the reason why there are no packets.
func TestBusyPort(t *testing.T) {
	w := newWays(t, 1, fast)
	w.ns[0].Within(t, func() error {
		fd, err := listen(true)
		if err == nil {
			t.Cleanup(func() { _ = syscall.Close(fd) })
		}
		return err
	})
	w.set(t)
	s := w.engines[0].Status(netip.MustParseAddr("10.2.0.1"))
	if want := "open UDP port 3784 for BFD: address already in use: another program has it (BIRD, FRR's bfdd): stop its BFD, or ask " +
		"for none here"; s.Fault != want {
		t.Errorf("fault is %q, want %q", s.Fault, want)
	}
}

// span is the time for which CPU time is measured.
const span = 5 * time.Second

// BenchmarkSessions is the load of 500 sessions at 3 x 300 ms: the CPU time of a second, and Go's memory, of one end of
// both. The sender's thread also delivers its packets to the other end, in softirq, which is about a quarter of the CPU
// time; between hosts, the receiver's interrupts do. The kernel's memory, a socket for each session, is not counted.
func BenchmarkSessions(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	w := newWays(b, 250, fast) // per family
	before := heap()
	w.set(b)
	w.waitUp(b)
	perEnd(b, func() { time.Sleep(span) }) //nolint:forbidigo // what a benchmark measures
	w.waitUp(b)
	b.ReportMetric(float64(heap()-before)/2/1024, "KiB/end")
}

// BenchmarkPackets measures the kernel's part of BenchmarkSessions: as many packets, sent and read as often, but not
// processed.
func BenchmarkPackets(b *testing.B) {
	w := newWays(b, 250, fast)
	var doors [2][2]int // by end and family
	var senders [2][]*sender
	for i := range doors {
		w.ns[i].Within(b, func() (err error) {
			for k := range doors[i] {
				if doors[i][k], err = listen(k == 0); err != nil {
					return err
				}
				b.Cleanup(func() { _ = syscall.Close(doors[i][k]) })
			}
			return nil
		})
		senders[i] = slices.Collect(maps.Values(w.newSenders(b, i)))
	}
	packet, in := make([]byte, headerLen), newBatch()
	perEnd(b, func() {
		begun, sent := time.Now(), [2]int{}
		for spent := time.Duration(0); spent < span; spent = time.Since(begun) {
			for i := range doors {
				// The average interval between two packets is 7/8 of the configured one.
				for ; float64(sent[i]) < float64(len(senders[i]))*spent.Seconds()/(fast.Interval.Seconds()*7/8); sent[i]++ {
					errtest.Must(b, senders[i][sent[i]%len(senders[i])].send(packet, true))
				}
				for _, fd := range doors[i] {
					for in.read(fd) == batchLen {
						continue
					}
				}
			}
			time.Sleep(mostTick) //nolint:forbidigo // what a benchmark measures
		}
	})
}

// perEnd reports the CPU time that work takes in a second of the span, for one end of both.
func perEnd(b *testing.B, work func()) {
	cpu := func() time.Duration {
		var u syscall.Rusage
		errtest.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	spent := cpu()
	for b.Loop() {
		work()
	}
	b.ReportMetric(100*(cpu()-spent).Seconds()/2/span.Seconds()/float64(b.N), "%cpu/end")
}

// Listened returns when sessions continue, before a neighbour could end them by silence, and soon if there are none.
func TestListened(t *testing.T) {
	c := Config{Interval: 200 * time.Millisecond, Multiplier: 10}
	w := newWays(t, 2, c)
	w.set(t)
	w.waitUp(t)
	former := w.engines[0]
	former.mu.Lock() // a process that has ended sends nothing
	for i := range former.doors {
		errtest.Must(t, syscall.Close(former.doors[i].fd))
		former.doors[i] = door{retry: time.Now().Add(time.Hour)}
	}
	former.mu.Unlock()
	next := NewEngine(slog.New(slog.DiscardHandler), w.watched[0])
	t.Cleanup(func() { next.Set(nil) })
	silent := netip.MustParseAddr("10.2.0.77")
	for _, with := range []bool{false, true} {
		want := maps.Clone(w.want[0])
		if with {
			want[silent] = c
		}
		w.ns[0].Within(t, func() error { next.Set(want); return nil })
		begun := time.Now()
		next.Listened(t.Context())
		t.Logf("listened for %v", time.Since(begun))
		for addr := range w.want[0] {
			if s := next.Status(addr); s.State != Up {
				t.Errorf("%s: %+v", addr, s)
			}
		}
		if silence := next.Status(silent); with && (silence.State != Down || time.Since(begun) < c.Interval) {
			t.Errorf("after %v a neighbour that is silent: %+v", time.Since(begun), silence)
		}
	}
	for addr := range w.want[1] {
		if loss, lost := w.watched[1].loss(addr); lost {
			t.Errorf("%s has lost its session: %+v", addr, loss)
		}
	}
}
