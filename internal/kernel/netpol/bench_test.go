package netpol_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// rounds are how often figures are taken, in turns; the medians are reported.
const rounds = 15

func median[T int | float64 | time.Duration](of []T) T {
	return slices.Sorted(slices.Values(of))[len(of)/2]
}

// cpu is what the process has used, kernel and all.
func cpu(t testing.TB, who int) (user, system time.Duration) {
	t.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(who, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())
}

func threadTime(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// sender sends frames from pod 1 to pod 2; their way through the kernel takes the sender's time.
type sender struct {
	*cluster
	fd    int
	frame []byte
	port  uint16
}

const sinkPort, firstPort = 9000, 1024

func newSender(b *testing.B, c *cluster) *sender {
	b.Helper()
	sink := c.pods[2].ListenUDP(b, netip.AddrPortFrom(pod4(2), sinkPort).String())
	sink.SetReadBuffer(1) // what does not fit is dropped
	// An answer resolves the addresses, and establishes the connection from the first port.
	c.pods[1].AskUDP(b, fmt.Sprintf("%s:%d", pod4(1), firstPort), netip.AddrPortFrom(pod4(2), sinkPort).String(), "x", 0)
	if _, err := sink.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(pod4(1), firstPort)); err != nil {
		b.Fatal(err)
	}
	s := &sender{cluster: c, port: firstPort}
	to := mac(b, c.host, "cali1")
	kind, packet := netnstest.Datagram(netip.AddrPortFrom(pod4(1), firstPort), netip.AddrPortFrom(pod4(2), sinkPort), []byte("x"))
	s.frame = netnstest.Frame(mac(b, c.pods[1], "eth0"), to, kind, packet)
	c.pods[1].Within(b, func() (err error) {
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
	b.Cleanup(func() { unix.Close(s.fd) })
	return s
}

func mac(b *testing.B, ns *netnstest.NS, link string) (mac net.HardwareAddr) {
	ns.Within(b, func() error {
		i, err := net.InterfaceByName(link)
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	})
	return mac
}

// send sends n packets, each of a new connection or all of one, and returns the time of one.
func (s *sender) send(b *testing.B, n int, fresh bool) time.Duration {
	b.Helper()
	const sourcePort, checksum = 14 + 20, 14 + 20 + 6
	s.frame[checksum], s.frame[checksum+1] = 0, 0
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := threadTime(b)
	for range n {
		if fresh {
			s.port = max(s.port+1, firstPort+1)
			binary.BigEndian.PutUint16(s.frame[sourcePort:], s.port)
		}
		if _, err := unix.Write(s.fd, s.frame); err != nil {
			b.Fatal(err)
		}
	}
	return (threadTime(b) - from) / time.Duration(n)
}

// forget empties the table of connections.
func (s *sender) forget(b *testing.B) {
	b.Helper()
	s.host.Within(b, func() error {
		socket, err := nlmsg.Open(unix.NETLINK_NETFILTER, time.Minute)
		if err != nil {
			return err
		}
		defer socket.Close()
		const remove = 2 // IPCTNL_MSG_CT_DELETE
		return socket.Execute(nlmsg.Netfilter(unix.NFNL_SUBSYS_CTNETLINK, remove, unix.NLM_F_ACK, unix.AF_UNSPEC, nil), nil)
	})
}

// selected selects the pods with value v of label k.
func selected(b testing.TB, v string) *policy.Pods {
	b.Helper()
	s, err := selector.FromLabels(api.LabelSelector{MatchLabels: map[string]string{"k": v}})
	if err != nil {
		b.Fatal(err)
	}
	return &policy.Pods{Namespace: "default", Labels: s}
}

// isolating is a policy for ingress, which allows some ports, each from one peer, or any if it is nil.
func isolating(name string, subject *policy.Pods, protocol uint8, peer *policy.Pods, ports ...uint16) policy.Policy {
	p := policy.Policy{ID: np(name), Tier: policy.TierDefault, Subject: *subject, Applies: [2]bool{policy.Ingress: true}}
	for _, port := range ports {
		r := policy.Rule{AnyPeer: peer == nil, Ports: []policy.Port{{Protocol: protocol, First: port, Last: port}}}
		if peer != nil {
			r.Peers = []policy.Peer{{Pods: peer}}
		}
		p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress], r)
	}
	return p
}

// state has pods that are not local; value returns the value of each pod's label k.
func state(pods int, value func(i int) string) policy.State {
	s := policy.State{Local: map[string]policy.PodKey{}, Pods: map[policy.PodKey]*policy.Pod{},
		Namespaces: map[string]map[string]string{"default": {}}}
	for i := range pods {
		add(s, fmt.Sprint("pod-", i), "", value(i), netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}))
	}
	return s
}

// add adds a pod, which is local if link is not empty.
func add(s policy.State, name, link, value string, a netip.Addr) {
	key := policy.PodKey{Namespace: "default", Name: name}
	s.Pods[key] = &policy.Pod{PodKey: key, UID: name, Labels: map[string]string{"k": value}, Addresses: []netip.Addr{a}}
	if link != "" {
		s.Local[link] = key
	}
}

// peers are pods that selecting names.
func peers(count int) policy.State {
	return state(count, func(i int) string { return fmt.Sprint("peer-", i) })
}

// selecting is pod 2 with so many policies that allow three ports each, from any peer or from one pod each, in a
// cluster that has more. A packet from pod 1 is allowed by the last one.
func selecting(b testing.TB, s policy.State, policies int, peers bool) *policy.Ruleset {
	add(s, "one", "cali1", fmt.Sprint("peer-", policies-1), pod4(1))
	add(s, "two", "cali2", "subject-of-two", pod4(2))
	for i := range policies {
		var peer *policy.Pods
		if peers {
			peer = selected(b, fmt.Sprint("peer-", i))
		}
		port := uint16(sinkPort - 6*(policies-1-i))
		s.Policies = append(s.Policies,
			isolating(fmt.Sprint("two-", i), selected(b, "subject-of-two"), unix.IPPROTO_UDP, peer, port, port+2, port+4))
	}
	return &policy.Compile(s).Ruleset
}

const globals = 500

// global adds GlobalNetworkPolicies in three tiers that select the pods with a value of label k. Each policy names a
// group of pods: the first tier's policies deny it everything, the second tier's pass it on at three ports and deny the
// next group these, the third tier's allow it three ports.
func global(b testing.TB, s *policy.State, subject, group string, lastPort int) {
	b.Helper()
	tiers := map[string]policy.Tier{"first": {Name: "first", Order: 100, End: policy.Pass},
		"second": {Name: "second", Order: 200, End: policy.Pass}}
	protocol := api.CalicoProtocol("UDP")
	for i := range globals {
		rule := func(action string, group string) api.CalicoRule {
			r := api.CalicoRule{Action: action, Source: api.CalicoEntityRule{Selector: "k == '" + group + "'"}}
			if last := lastPort - 6*(globals-1-i); i >= globals/3 {
				r.Protocol = &protocol
				r.Destination.Ports = []api.CalicoPort{api.CalicoPort(fmt.Sprint(last - 4)), api.CalicoPort(fmt.Sprint(last - 2)),
					api.CalicoPort(fmt.Sprint(last))}
			}
			return r
		}
		own, next := fmt.Sprint(group, i), fmt.Sprint(group, i+1)
		g := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: fmt.Sprint("global-", i)}}
		g.Spec.Selector, g.Spec.Types = "k == '"+subject+"'", []string{"Ingress"}
		switch i * 3 / globals {
		case 0:
			g.Spec.Tier, g.Spec.Ingress = "first", []api.CalicoRule{rule("Deny", own)}
		case 1:
			g.Spec.Tier, g.Spec.Ingress = "second", []api.CalicoRule{rule("Pass", own), rule("Deny", next)}
		default:
			g.Spec.Tier, g.Spec.Ingress = "default", []api.CalicoRule{rule("Allow", own)}
		}
		p, err := policy.FromCalicoGlobalNetworkPolicy(g, tiers)
		if err != nil || len(p.Problems) > 0 {
			b.Fatal(err, p.Problems)
		}
		s.Policies = append(s.Policies, p)
	}
}

// globally is pod 2 with GlobalNetworkPolicies in three tiers; the last tier allows packets from pod 1.
func globally(b testing.TB) *policy.Ruleset {
	s := peers(globals)
	add(s, "one", "cali1", fmt.Sprint("peer-", globals-1), pod4(1))
	add(s, "two", "cali2", "subject-of-two", pod4(2))
	global(b, &s, "subject-of-two", "peer-", sinkPort)
	return &policy.Compile(s).Ruleset
}

// BenchmarkFirstPacket is the CPU time of a packet's whole way from one pod to another that opens a connection, by
// policies on the pod; crowded: ten, in a cluster with a thousand more for 100 other pods of the node, and 10,000
// peers; tiers: GlobalNetworkPolicies in three tiers.
func BenchmarkFirstPacket(b *testing.B) {
	for name, byPeer := range map[string]bool{"ports": false, "peers": true} {
		b.Run(name, func(b *testing.B) {
			const packets, crowded, tiers = 2000, "ns-with-10-crowded", "ns-with-500-in-tiers"
			counts := map[string]int{"ns-with-0": 0, "ns-with-1": 1, "ns-with-10": 10, "ns-with-100": 100,
				"ns-with-1000": 1000, crowded: 10, tiers: 0}
			senders := map[string]*sender{}
			for unit, n := range counts {
				c := newCluster(b, 2)
				s := peers(n)
				if unit == crowded {
					s = thousand(b, false)
				}
				switch {
				case unit == tiers:
					mustSync(b, c.Engine, globally(b))
				case n > 0:
					mustSync(b, c.Engine, selecting(b, s, n, byPeer))
				}
				senders[unit] = newSender(b, c)
			}
			took := map[string][]float64{}
			for b.Loop() {
				for range rounds {
					for unit, s := range senders { // in another order each time
						took[unit] = append(took[unit], float64(s.send(b, packets, true)))
						s.forget(b)
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			for unit, all := range took {
				b.ReportMetric(median(all), unit)
			}
			b.ReportMetric(median(took["ns-with-10"])/median(took["ns-with-1"]), "x-with-10")
			b.ReportMetric(median(took["ns-with-1000"])/median(took["ns-with-1"]), "x-with-1000")
			b.ReportMetric(median(took[tiers])/median(took["ns-with-1"]), "x-with-500-in-tiers")
			b.ReportMetric(median(took[crowded])/median(took["ns-with-10"]), "x-crowded")
		})
	}
}

// BenchmarkEstablishedPacket is the same for a packet of a connection that is there: without the table, with connection
// tracking alone, with the table, and with GlobalNetworkPolicies in three tiers.
func BenchmarkEstablishedPacket(b *testing.B) {
	const packets = 20_000
	bare, tracked, ours, tiers := newCluster(b, 2), newCluster(b, 2), newCluster(b, 2), newCluster(b, 2)
	tracked.host.Run(b, "nft",
		"add table inet t; add chain inet t c { type filter hook postrouting priority 0; }; add rule inet t c ct state invalid drop")
	mustSync(b, ours.Engine, selecting(b, thousand(b, false), 10, true))
	mustSync(b, tiers.Engine, globally(b))
	all := []*cluster{bare, tracked, ours, tiers}
	senders := make([]*sender, len(all))
	for i, c := range all {
		senders[i] = newSender(b, c)
	}
	took := make([][]time.Duration, len(all))
	for b.Loop() {
		for range rounds {
			for i, s := range senders {
				took[i] = append(took[i], s.send(b, packets, false))
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, name := range []string{"bare", "tracked", "ours", "tiers"} {
		b.ReportMetric(float64(median(took[i])), "ns-"+name)
	}
	b.ReportMetric(float64(median(took[2])-median(took[1])), "ns-more-than-tracked")
	b.ReportMetric(float64(median(took[2])-median(took[0])), "ns-more-than-bare")
	b.ReportMetric(float64(median(took[3])-median(took[1])), "ns-more-with-tiers")
}

// manyMembers are pods that are in so many sets each.
func manyMembers(pods, sets int) map[netip.Addr][]policy.SetID {
	members := map[netip.Addr][]policy.SetID{}
	for i := range pods {
		var ids []policy.SetID
		for j := range sets {
			ids = append(ids, policy.SetID(1+j+i%50*sets))
		}
		members[netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})] = ids
	}
	return members
}

// BenchmarkOneMorePod is a pod that comes, and goes, where 10,000 are in 20 sets each.
func BenchmarkOneMorePod(b *testing.B) {
	ns := netnstest.New(b)
	e := newEngine(b, ns)
	rs := sample()
	rs.Members = manyMembers(10_000, 20)
	mustSync(b, e, rs)
	pod := netip.AddrFrom4([4]byte{10, 3, 0, 1})
	ids := rs.Members[netip.AddrFrom4([4]byte{10, 2, 0, 1})]
	var total time.Duration
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := 0
	_, before := cpu(b, unix.RUSAGE_THREAD)
	for b.Loop() {
		rs.Members[pod] = ids
		from := time.Now()
		if s := mustSync(b, e, rs, pod); s.Elements != 20 || s.Transactions != 1 {
			b.Fatalf("did %+v", s)
		}
		total += time.Since(from)
		delete(rs.Members, pod)
		mustSync(b, e, rs, pod)
		n++
	}
	_, after := cpu(b, unix.RUSAGE_THREAD)
	b.ReportMetric(float64((after-before).Microseconds())/float64(2*n), "µs-kernel/pod")
	b.ReportMetric(float64(total.Microseconds())/float64(n), "µs/pod")
}

// thousand is 1,000 policies for 100 local pods of 10,000: dense, all policies select all of the local ones; else ten
// select each. Each has five rules for ports, which allow one of 1,000 groups of pods.
func thousand(b testing.TB, dense bool) policy.State {
	s := state(9900, func(i int) string { return fmt.Sprint("group-", i%1000) })
	subject := func(i int) string {
		if dense {
			return "subject"
		}
		return fmt.Sprint("subject-", i%100)
	}
	for i := range 100 {
		add(s, fmt.Sprint("local-", i), fmt.Sprintf("cali%d", i), subject(i), netip.AddrFrom4([4]byte{10, 3, 0, byte(i)}))
	}
	for i := range 1000 {
		port := uint16(1000 + 10*i)
		s.Policies = append(s.Policies, isolating(fmt.Sprint("p", i), selected(b, subject(i)), unix.IPPROTO_TCP,
			selected(b, fmt.Sprint("group-", i)), port, port+2, port+4, port+6, port+8))
	}
	return s
}

// slab is what the kernel uses for small things, in bytes.
func slab(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	total := 0.0
	for line := range strings.Lines(string(text)) {
		var name string
		var kilobytes float64
		if n, _ := fmt.Sscan(line, &name, &kilobytes); n == 2 && (name == "SUnreclaim:" || name == "VmallocUsed:") {
			total += kilobytes * 1024
		}
	}
	return total
}

// BenchmarkFromEmpty is the CPU time from a State to a table that enforces it where there is none.
func BenchmarkFromEmpty(b *testing.B) {
	tiers := thousand(b, true)
	tiers.Policies = nil
	global(b, &tiers, "subject", "group-", 9000)
	for name, s := range map[string]policy.State{"sparse": thousand(b, false), "dense": thousand(b, true), "tiers": tiers} {
		b.Run(name, func(b *testing.B) {
			fromEmpty(b, func() *policy.Ruleset { return &policy.Compile(s).Ruleset })
		})
	}
	for _, sets := range []int{1, 20} {
		members := manyMembers(10_000, sets)
		b.Run(fmt.Sprintf("10,000 pods in %d sets", sets), func(b *testing.B) {
			fromEmpty(b, func() *policy.Ruleset { return &policy.Ruleset{Closed: true, Members: members} })
		})
	}
}

func fromEmpty(b *testing.B, ruleset func() *policy.Ruleset) {
	var times, kernel, sizes []float64
	once := func() {
		ns := netnstest.New(b)
		e := netpol.New(ns.Namespace, "cali")
		defer e.Close()
		size := slab(b)
		u, s := cpu(b, unix.RUSAGE_SELF)
		if _, err := e.Sync(b.Context(), ruleset(), nil); err != nil {
			b.Fatal(err)
		}
		u2, s2 := cpu(b, unix.RUSAGE_SELF)
		times, kernel = append(times, (u2-u+s2-s).Seconds()*1000), append(kernel, (s2-s).Seconds()*1000)
		sizes = append(sizes, (slab(b)-size)/(1<<20))
		if err := e.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for range 5 {
			once()
		}
	}
	b.ReportMetric(median(times), "CPU-ms")
	b.ReportMetric(median(kernel), "kernel-CPU-ms")
	b.ReportMetric(median(sizes), "kernel-MiB")
}

// BenchmarkSync measures a Sync with a thousand policies: without work, with a new pod and a known program, and in a
// process that starts.
func BenchmarkSync(b *testing.B) {
	ns := netnstest.New(b)
	e := newEngine(b, ns)
	rs := &policy.Compile(thousand(b, false)).Ruleset
	mustSync(b, e, rs)
	b.Run("nothing changed", func(b *testing.B) {
		for b.Loop() {
			mustSync(b, e, rs)
		}
	})
	b.Run("one local pod", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			rs.Endpoints["cali1"] = rs.Endpoints[fmt.Sprintf("cali%d", 2+i%7)]
			mustSync(b, e, rs)
		}
	})
	b.Run("restart", func(b *testing.B) {
		for b.Loop() {
			if s := mustSync(b, newEngine(b, ns), rs); !s.Read || s.Transactions > 0 {
				b.Fatalf("did %+v", s)
			}
		}
	})
}

// BenchmarkPlugin measures the requests of an ADD for a pod with policies in force.
func BenchmarkPlugin(b *testing.B) {
	ns := netnstest.New(b)
	mustSync(b, newEngine(b, ns), &policy.Compile(thousand(b, false)).Ruleset)
	ns.Within(b, func() error {
		for b.Loop() {
			if uid, _, err := netpol.InForce("cali1"); err != nil || uid != "local-1" {
				return fmt.Errorf("in force are the policies of %q: %w", uid, err)
			}
		}
		return nil
	})
}
