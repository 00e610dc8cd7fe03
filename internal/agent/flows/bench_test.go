package flows_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/agent/flows"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// site is a node between a client and a pod; the node tracks their connections as with policies.
type site struct {
	client, node, pod *netnstest.NS
	selection         *policy.Selection
	pods              map[policy.PodKey]*policy.Pod
}

const podAddr = "10.65.0.2"

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{client: netnstest.New(t), node: netnstest.New(t), pod: netnstest.New(t)}
	netnstest.Cable(t, s.client, "eth0", s.node, "out")
	netnstest.Cable(t, s.pod, "eth0", s.node, "in")
	s.client.Addr(t, "eth0", "192.0.2.2/24")
	s.node.Addr(t, "out", "192.0.2.1/24")
	s.node.Addr(t, "in", "10.65.0.1/24")
	s.pod.Addr(t, "eth0", podAddr+"/24")
	s.client.Route(t, "0.0.0.0/0", "192.0.2.1", "")
	s.pod.Route(t, "0.0.0.0/0", "10.65.0.1", "")
	s.set(t, sysctl.Key{"net", "ipv4", "ip_forward"}, "1")
	tracks := nft.NewRule("", nft.Established.In(), nft.Do(nft.Accept))
	_, err := nft.New(s.node.Namespace).Sync(t.Context(), nft.Part{Prefixes: []string{"t-"}, Chains: []nft.Chain{
		{Name: "t-forward", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward}, Rules: []nft.Rule{tracks}},
	}})
	errtest.Must(t, err)
	key := policy.PodKey{Namespace: "shop", Name: "web"}
	s.pods = map[policy.PodKey]*policy.Pod{key: {PodKey: key, Addresses: []netip.Addr{netip.MustParseAddr(podAddr)}}}
	s.selection = policy.Select(policy.State{Local: map[string]policy.PodKey{"cali1": key}, Pods: s.pods,
		Namespaces: map[string]map[string]string{"shop": nil}})
	return s
}

func (s *site) set(t testing.TB, key sysctl.Key, value string) {
	t.Helper()
	s.node.Within(t, func() error { return sysctl.DefaultRoot.Set(key, value) })
}

var accounting = sysctl.Key{"net", "netfilter", "nf_conntrack_acct"}

// record records until the returned function is called.
func (s *site) record(t testing.TB) (r *flows.Recorder, stop func()) {
	t.Helper()
	r = flows.New(flows.Options{Node: "node", Interval: 15 * time.Second, Kernel: s.node.Conn, Log: slog.New(slog.DiscardHandler)})
	r.InForce(s.selection, s.pods, nil, nil)
	s.set(t, accounting, "1") // as the Recorder does, only in time for the first connection
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.Run(ctx) }()
	time.Sleep(time.Second) // until the first list, which else comes once in 15 s, has been made
	return r, func() {
		cancel()
		<-ended
		s.set(t, accounting, "0")
	}
}

// serve answers TCP at the pod: it reads and drops all data.
func (s *site) serve(t testing.TB) (address string) {
	t.Helper()
	var l net.Listener
	s.pod.Within(t, func() (err error) { l, err = net.Listen("tcp", podAddr+":7001"); return err })
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(io.Discard, c) }()
		}
	}()
	return l.Addr().String()
}

const round = 500 * time.Millisecond

// processor returns the processor time of this process, with its work in the kernel: other processes of the machine do
// not matter.
func processor(t testing.TB) float64 {
	t.Helper()
	var u syscall.Rusage
	errtest.Must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// stream sends as much as it can, and returns bytes.
func (s *site) stream(t testing.TB, address string) float64 {
	t.Helper()
	var c net.Conn
	s.client.Within(t, func() (err error) { c, err = net.Dial("tcp", address); return err })
	defer c.Close()
	sent, begun := 0, time.Now()
	for b := make([]byte, 64<<10); time.Since(begun) < round; {
		n, err := c.Write(b)
		errtest.Must(t, err)
		sent += n
	}
	return float64(sent)
}

// connect opens and resets connections, and makes the kernel end them.
func (s *site) connect(t testing.TB, address string) (connections float64) {
	t.Helper()
	s.client.Within(t, func() error {
		for begun := time.Now(); time.Since(begun) < round; connections++ {
			c, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			_ = c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT: ports do not run out
			_ = c.Close()
		}
		return nil
	})
	s.node.Within(t, func() error {
		kernel, err := nlmsg.Open(unix.NETLINK_NETFILTER, time.Minute)
		if err != nil {
			return err
		}
		defer kernel.Close()
		const deletion = 2 // IPCTNL_MSG_CT_DELETE: without a tuple of all
		return kernel.Execute(nlmsg.Netfilter(unix.NFNL_SUBSYS_CTNETLINK, deletion, unix.NLM_F_ACK, 0, nil),
			func(nlmsg.Message) error { return nil })
	})
	time.Sleep(4 * pause) // until their ends have been read
	return connections
}

// pause is the pause between two reads of events.
const pause = 50 * time.Millisecond

// discard reads events as records do, and drops them.
func (s *site) discard(t testing.TB) (stop func()) {
	t.Helper()
	s.set(t, accounting, "1")
	var events *nlmsg.Events
	s.node.Within(t, func() (err error) {
		const begun, ended = 1, 3 // NFNLGRP_CONNTRACK_NEW and _DESTROY
		events, err = nlmsg.ListenUnwatched(unix.NETLINK_NETFILTER, []int{begun, ended}, 2<<20)
		return err
	})
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.Tick(pause); ; events.Discard(1 << 20) {
			select {
			case <-end:
				return
			case <-tick:
			}
		}
	}()
	return func() {
		close(end)
		<-ended
		errtest.Must(t, events.Close())
		s.set(t, accounting, "0")
	}
}

// The cost of records for a connection that carries as much as it can.
func BenchmarkTraffic(b *testing.B) {
	s := newSite(b)
	address := s.serve(b)
	b.Run("bulk", func(b *testing.B) {
		s.compare(b, func() float64 { return s.stream(b, address) }, map[string]func() func(){"": s.recording(b)})
	})
}

// The cost of records for many connections without data, and the kernel's part of it.
func BenchmarkConnections(b *testing.B) {
	s := newSite(b)
	address := s.serve(b)
	s.compare(b, func() float64 { return s.connect(b, address) }, map[string]func() func(){
		"": s.recording(b), "-kernel": func() func() { return s.discard(b) },
	})
}

func (s *site) recording(b *testing.B) func() func() {
	return func() func() { _, stop := s.record(b); return stop }
}

// compare reports how much work is done, and the processor time per unit, with something running beside relative to
// without. It takes turns, between two rounds without, so that a machine that becomes slower or faster changes neither.
func (s *site) compare(b *testing.B, work func() float64, beside map[string]func() (stop func())) {
	type measured struct{ done, each float64 }
	measure := func() measured {
		before := processor(b)
		done := work()
		return measured{done, (processor(b) - before) / done}
	}
	more, cost := map[string][]float64{}, map[string][]float64{}
	measure() // with caches that are cold
	for b.Loop() {
		off := measure()
		for range 15 {
			for name, start := range beside {
				stop := start()
				on := measure()
				stop()
				next := measure()
				more[name] = append(more[name], 2*on.done/(off.done+next.done))
				cost[name] = append(cost[name], 2*on.each/(off.each+next.each))
				off = next
			}
		}
	}
	for name := range beside {
		b.ReportMetric(median(more[name]), "x-throughput"+name)
		b.ReportMetric(median(cost[name]), "x-CPU"+name)
	}
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// The cost of a flood of connections for the agent: its memory, and its share of a processor.
func BenchmarkFlood(b *testing.B) {
	s := newSite(b)
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		r, stop := s.record(b)
		begun, used := time.Now(), processor(b)
		sent := s.flood(b, 3*time.Second)
		took := time.Since(begun).Seconds()
		b.ReportMetric((processor(b)-used)/took, "processors-with-the-flood")
		var after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(sent)/took, "connections/s")
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/1e6, "MB")
		b.ReportMetric(float64(r.Lost().Overruns), "overruns")
		stop()
	}
}

// flood sends datagrams to one port of the pod after the other: each is a connection.
func (s *site) flood(t testing.TB, during time.Duration) (sent int) {
	t.Helper()
	s.client.Within(t, func() error {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		to := syscall.SockaddrInet4{Addr: netip.MustParseAddr(podAddr).As4()}
		for begun := time.Now(); time.Since(begun) < during; sent++ {
			to.Port = 1 + sent%65535
			_ = syscall.Sendto(fd, []byte("x"), 0, &to)
		}
		return nil
	})
	return sent
}
