package wireguard

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// The pools, whose blocks have the number of the node, and the network between the nodes.
var (
	pools     = [2]string{"10.244.0.0/16", "fd44::/64"}
	blocks    = [2]string{"10.244.%d.0/26", "fd44::%d:0/122"}
	pods      = [2]string{"10.244.%d.1", "fd44::%d:1"}
	forged    = [2]string{"10.244.99.9", "fd44::99:9"}
	addresses = [2]string{"172.30.0.%d/24", "fd30::%d/64"}
)

// host is a dual-stack node whose agent makes a pass when it is told to.
type host struct {
	*netnstest.NS
	pod    *netnstest.NS
	number int
	syncer *wireguard.Syncer
	crypts desired.Crypts
	states [2]wireguard.State

	rotates bool // its keys are to be changed
	alien   bool // its agent knows nothing of next keys, as Felix does
	keyless bool // WireGuard is off on it
	said    map[string]string
	known   desired.Announcements
	ways    [2]map[netip.Prefix]string // devices that its last pass led blocks to
}

func (h *host) name() string { return fmt.Sprint("node-", h.number) }

// block is that of an address family.
func (h *host) block(i int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(blocks[i], h.number))
}

// restart ends the agent; the next one knows what the kernel and annotations say.
func (h *host) restart() {
	h.crypts, h.states, h.known = desired.Crypts{}, [2]wireguard.State{}, desired.Announcements{}
	h.syncer = wireguard.New(h.Conn, routes.DefaultProtocol, nil)
	for _, annotation := range slices.Concat(desired.KeyAnnotations[:], desired.NextKeyAnnotations[:]) {
		if k, err := wireguard.ParseKey(h.said[annotation]); err == nil {
			h.syncer.Believe(k)
		}
	}
}

// network is some hosts on one link.
type network struct {
	hosts []*host
	ahead time.Duration    // of the agents' clocks
	tick  <-chan time.Time // between rounds
	encap [2]string        // of the pools, "" for none: then the main table has no way to pods of others
}

func newNetwork(t *testing.T, size int) *network {
	t.Helper()
	if netnstest.WireGuard() != nil {
		needtest.More(t, "a kernel with WireGuard")
	}
	// An emulator may stop a processor for seconds, which overflows the kernel's default queue.
	errtest.Must(t, sysctl.DefaultRoot.Set(sysctl.Key{"net", "core", "netdev_max_backlog"}, "100000"))
	hub, n := netnstest.New(t), &network{tick: time.Tick(200 * time.Millisecond)}
	hub.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	hub.Up(t, "br0")
	for i := range size {
		h := &host{NS: netnstest.New(t), pod: netnstest.New(t), number: i + 1}
		port := fmt.Sprint("p", h.number)
		netnstest.Cable(t, h.NS, "eth0", hub, port)
		hub.Run(t, "ip", "link", "set", port, "master", "br0")
		netnstest.Cable(t, h.NS, "cali1", h.pod, "eth0")
		h.Within(t, func() error {
			errtest.Must(t, sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1"))
			return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1")
		})
		for i, gateway := range []string{"169.254.1.1", "fd00:169::1"} {
			pod, single := fmt.Sprintf(pods[i], h.number), fmt.Sprint("/", 32+96*i)
			h.Addr(t, "eth0", fmt.Sprintf(addresses[i], h.number))
			h.Addr(t, "cali1", gateway+single)
			h.pod.Addr(t, "eth0", pod+single)
			h.Route(t, pod+single, "", "cali1")
			h.pod.Route(t, gateway+single, "", "eth0")
			h.pod.Route(t, []string{"0.0.0.0/0", "::/0"}[i], gateway, "")
		}
		h.restart()
		n.hosts = append(n.hosts, h)
	}
	return n
}

// snapshot is what the agent of a host knows.
func (n *network) snapshot(t *testing.T, h *host) *desired.Snapshot {
	t.Helper()
	var w state.Cluster
	for i, cidr := range pools {
		pool := api.IPPool{Meta: api.Meta{Name: fmt.Sprint("pool-", i)}, Spec: api.IPPoolSpec{CIDR: cidr}}
		switch n.encap[i] {
		case byIPIP:
			pool.Spec.IPIPMode = api.EncapAlways
		case byVXLAN:
			pool.Spec.VXLANMode = api.EncapAlways
		}
		w.Pools = append(w.Pools, pool)
	}
	for _, other := range n.hosts {
		for i, block := range blocks {
			w.Affinities = append(w.Affinities, api.BlockAffinity{
				Meta: api.Meta{Name: fmt.Sprint(other.name(), i)},
				Spec: api.BlockAffinitySpec{Node: other.name(), CIDR: fmt.Sprintf(block, other.number), State: api.AffinityConfirmed},
			})
		}
		if other != h {
			says := maps.Clone(other.said)
			if h.alien {
				delete(says, api.AnnotationWireGuardNextKey)
				delete(says, api.AnnotationWireGuardNextKeyV6)
			}
			w.Nodes = append(w.Nodes, api.Node{Meta: api.Meta{Name: other.name(), Annotations: says}})
		}
	}
	if !h.alien { // which believes a changed key at once
		w.Nodes, _ = h.known.Believe(w.Nodes, h.name(), time.Now())
	}
	at := func(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf(addresses[i], h.number)) }
	self := desired.Self{
		Name: h.name(), Addr: at(0), Addr6: at(1), Link: "eth0", Link6: "eth0", LinkMTU: 1500, LinkMTU6: 1500,
		RequireEncryption: h.alien, RotateKeys: [2]bool{h.rotates, h.rotates},
		TunnelAddr: h.block(0).Addr(), VTEP: h.block(0).Addr(), VTEP6: h.block(1).Addr(),
	}
	s, problems := desired.Build(self, w)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s.Felix.WireGuard.On = [2]bool{!h.keyless, !h.keyless}
	return &s
}

// pass does what the agent does in one, in its order.
func (n *network) pass(t *testing.T, h *host) {
	t.Helper()
	s := n.snapshot(t, h)
	for i := range h.states {
		var err error
		if h.states[i], err = h.syncer.States(i == 1); err != nil {
			t.Fatal(err)
		}
	}
	h.crypts.Follow(s, h.states, time.Now().Add(n.ahead))
	if n.encap != [2]string{} {
		h.tunnels(t, s)
	}
	h.announce(t, s)
	judge := s.By(desired.Grounds{})
	accepted, _ := judge.Accept(nil, nil)
	if n.encap != [2]string{} {
		h.main(t, judge, accepted)
	}
	if !h.keyless {
		h.encrypt(t, s, judge, accepted)
	}
}

// announce makes WireGuard's devices, and says what there is.
func (h *host) announce(t *testing.T, s *desired.Snapshot) {
	t.Helper()
	says := map[string]string{}
	ends := [2]string{api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr}
	for i, annotation := range []string{api.AnnotationIPv4Address, api.AnnotationIPv6Address} {
		says[annotation], says[ends[i]] = fmt.Sprintf(addresses[i], h.number), h.block(i).Addr().String()
		if h.keyless {
			continue
		}
		h.devices(t, s, i == 1)
		says[desired.KeyAnnotations[i]] = h.states[i].Public.String()
		next := &h.states[i]
		if next.Second != nil {
			next = next.Second
		}
		if !h.alien {
			says[desired.NextKeyAnnotations[i]] = next.Public.String()
		}
	}
	h.said = says
}

// encrypt makes the devices' peers, and leads packets to them.
func (h *host) encrypt(t *testing.T, s *desired.Snapshot, judge *desired.Judge, accepted []bgp.Path) {
	t.Helper()
	for _, v6 := range []bool{false, true} {
		i, d, second := 0, s.WireGuard(v6), s.SecondWireGuard(v6)
		if v6 {
			i = 1
		}
		peers, nexts, ways := judge.Encrypted(v6, accepted)
		d.Peers = peers
		_, err := h.syncer.Peers(t.Context(), *d)
		errtest.Must(t, err)
		if second != nil {
			second.Peers = nexts
			_, err = h.syncer.Peers(t.Context(), *second)
			errtest.Must(t, err)
		}
		errtest.Must(t, h.syncer.Routes(t.Context(), v6, ways, true, routes.Predecessors{}))
		errtest.Must(t, h.syncer.Lead(t.Context(), v6, judge.RulePriority()))
		errtest.Must(t, h.syncer.Prune(t.Context(), *d))
		if second != nil {
			errtest.Must(t, h.syncer.Prune(t.Context(), *second))
		} else {
			errtest.Must(t, h.syncer.RemoveSecond(t.Context(), v6))
		}
		h.ways[i] = map[netip.Prefix]string{}
		for _, r := range ways {
			if len(r.Hops) == 1 {
				h.ways[i][r.Dst] = r.Hops[0].Dev
			}
		}
	}
}

// devices makes those of a family.
func (h *host) devices(t *testing.T, s *desired.Snapshot, v6 bool) {
	t.Helper()
	i := 0
	if v6 {
		i = 1
	}
	st, err := h.syncer.Merge(t.Context(), *s.WireGuard(v6))
	errtest.Must(t, err)
	h.states[i] = st
	d := s.SecondWireGuard(v6)
	if d == nil {
		return
	}
	if s.BeginsRotation(v6) {
		errtest.Must(t, h.syncer.RemoveSecond(t.Context(), v6))
	}
	second, err := h.syncer.Merge(t.Context(), *d)
	errtest.Must(t, err)
	h.states[i].Second = &second
	if leave, takes := s.TakesKey(v6); takes {
		errtest.Must(t, h.syncer.TakeKey(t.Context(), v6, leave))
		h.states[i].Public = second.Public
	}
}

// until has all agents make passes until something is so.
func (n *network) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			for _, h := range n.hosts {
				t.Logf("%s: says %v, ways %v\n%s", h.name(), h.said, h.ways, h.Run(t, "ip", "link"))
			}
			t.Fatalf("no longer waiting until %s", what)
		}
		n.round(t)
	}
}

func (n *network) round(t *testing.T) {
	t.Helper()
	for _, h := range n.hosts {
		n.pass(t, h)
	}
	<-n.tick
}

// by reports whether all others and these hosts send to each other by second devices, or by the first ones.
func (n *network) by(second bool, hosts ...*host) bool {
	for _, from := range n.hosts {
		for _, to := range n.hosts {
			if from == to || !slices.Contains(hosts, from) && !slices.Contains(hosts, to) {
				continue
			}
			for i, v6 := range []bool{false, true} {
				dev := wireguard.Name(v6)
				if second {
					dev = wireguard.SecondName(v6)
				}
				if from.ways[i][to.block(i)] != dev {
					return false
				}
			}
		}
	}
	return true
}

// flow sends numbered datagrams from one pod to another, about as many a second, until it is stopped. It returns how
// many were sent, how many of them did not arrive, and the longest time in which none did.
func flow(t *testing.T, from, to *host, v6 bool, rate int) (stop func() (sent, lost int, gap time.Duration)) {
	t.Helper()
	family := 0
	if v6 {
		family = 1
	}
	addr := func(h *host) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(pods[family], h.number)) }
	client := from.pod.ListenUDP(t, netip.AddrPortFrom(addr(from), 0).String())
	dst := netip.AddrPortFrom(addr(to), uint16(client.LocalAddr().(*net.UDPAddr).Port))
	server := to.pod.ListenUDP(t, dst.String())
	raw, err := server.SyscallConn()
	errtest.Must(t, err)
	errtest.Must(t, raw.Control(func(fd uintptr) {
		errtest.Must(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	}))
	var arrived, longest atomic.Int64
	go func() {
		seen, b, last := map[uint32]bool{}, make([]byte, 64), time.Now()
		for {
			size, err := server.Read(b)
			if err != nil {
				return
			}
			if number := binary.BigEndian.Uint32(b); size == 4 && !seen[number] {
				seen[number] = true
				arrived.Add(1)
				longest.Store(max(longest.Load(), int64(time.Since(last))))
				last = time.Now()
			}
		}
	}()
	ended, sent := make(chan struct{}), make(chan int)
	end := sync.OnceValue(func() int {
		close(ended)
		return <-sent
	})
	t.Cleanup(func() { end() }) // before the sockets are closed
	go func() {
		count, tick := 0, time.NewTicker(time.Second/time.Duration(rate))
		for {
			select {
			case <-ended:
				tick.Stop()
				sent <- count
				return
			case <-tick.C:
				if _, err := client.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, uint32(count)), dst); err != nil {
					t.Errorf("send: %v", err)
				}
				count++
			}
		}
	}()
	return func() (int, int, time.Duration) {
		count := end()
		for tick, left := time.Tick(100*time.Millisecond), 100; int(arrived.Load()) != count && left > 0; left-- {
			<-tick
		}
		return count, count - int(arrived.Load()), time.Duration(longest.Load())
	}
}

// flows are between one host and all others, each way, of both families.
func (n *network) flows(t *testing.T, h *host, rate int) (stop func(most time.Duration)) {
	t.Helper()
	type stopper struct {
		what string
		stop func() (int, int, time.Duration)
	}
	var all []stopper
	begun := time.Now()
	for _, other := range n.hosts {
		for _, pair := range [][2]*host{{h, other}, {other, h}} {
			for _, v6 := range []bool{false, true} {
				if other != h {
					all = append(all, stopper{fmt.Sprintf("%s to %s, IPv6 %v", pair[0].name(), pair[1].name(), v6), flow(t, pair[0], pair[1], v6, rate)})
				}
			}
		}
	}
	// most is how long packets between h and an alien may be lost.
	return func(most time.Duration) {
		t.Helper()
		for _, s := range all {
			sent, lost, gap := s.stop()
			t.Logf("%s: %d of %d packets lost in %v, longest gap %v", s.what, lost, sent, time.Since(begun).Round(time.Second),
				gap.Round(time.Millisecond))
			if sent < rate || lost > 0 && (most == 0 || gap > most) {
				t.Errorf("%s: %d of %d packets lost, longest gap %v", s.what, lost, sent, gap)
			}
		}
	}
}

// outer reads a packet's header.
func outer(p []byte) (src, dst netip.Addr, protocol byte, rest []byte) {
	at, size, protocol, end := 12, 4, p[9], 20
	if p[0]>>4 == 6 {
		at, size, protocol, end = 8, 16, p[6], 40
	}
	src, _ = netip.AddrFromSlice(p[at : at+size])
	dst, _ = netip.AddrFromSlice(p[at+size : at+2*size])
	return src, dst, protocol, p[end:]
}

// watch counts the packets of a host's link that show a pod's address, and those of WireGuard by port.
func (h *host) watch(t *testing.T) (stop func() (clear int, encrypted map[uint16]int)) {
	t.Helper()
	clear, encrypted := 0, map[uint16]int{}
	pools4, pools6 := netip.MustParsePrefix(pools[0]), netip.MustParsePrefix(pools[1])
	end := h.Watch(t, "eth0", func(p []byte) {
		src, dst, protocol, rest := outer(p)
		switch {
		case pools4.Contains(src) || pools4.Contains(dst) || pools6.Contains(src) || pools6.Contains(dst):
			clear++
		case protocol == unix.IPPROTO_UDP && len(rest) > 4:
			encrypted[binary.BigEndian.Uint16(rest[2:])]++
		}
	})
	return func() (int, map[uint16]int) {
		end()
		return clear, encrypted
	}
}

// keys are the public keys of the device of a family, and of its peers.
func (h *host) keys(t *testing.T, v6 bool) (own wireguard.Key, peers []wireguard.Key) {
	t.Helper()
	w, err := h.Conn.WireGuard(h.Link(t, wireguard.Name(v6)).Index)
	errtest.Must(t, err)
	for _, p := range w.Peers {
		peers = append(peers, p.Public)
	}
	return w.Public, peers
}

// start turns WireGuard on everywhere.
func start(t *testing.T, size int) *network {
	t.Helper()
	n := newNetwork(t, size)
	n.until(t, "all encrypt to all", func() bool { return n.by(false, n.hosts...) })
	return n
}

const (
	follow = 31 * time.Second // more than the followTime of a change
	retire = 11 * time.Minute
)

// finish goes on until the hosts have changed their keys, and second devices are gone.
func (n *network) finish(t *testing.T, each func(), hosts ...*host) {
	t.Helper()
	changed := func() bool {
		each()
		return !slices.ContainsFunc(hosts, func(h *host) bool {
			return slices.ContainsFunc(h.states[:], func(s wireguard.State) bool { return s.Second == nil || s.Changes() })
		})
	}
	n.ahead += follow
	n.until(t, "keys are changed", changed)
	for _, h := range hosts {
		h.rotates = false
	}
	n.until(t, "first devices are used", func() bool { each(); return n.by(false, hosts...) })
	n.round(t)
	n.ahead += retire
	n.until(t, "second devices are gone", func() bool {
		return !slices.ContainsFunc(n.hosts, func(h *host) bool { return strings.Contains(h.Run(t, "ip", "link"), ".next") })
	})
}

// changed checks that a host has other keys than before, and that the others know it by these alone.
func (n *network) changed(t *testing.T, h *host, before [2]wireguard.Key) {
	t.Helper()
	for i, v6 := range []bool{false, true} {
		own, _ := h.keys(t, v6)
		if own == before[i] || h.said[desired.KeyAnnotations[i]] != own.String() {
			t.Errorf("%s has key %s, before %s, and announces %s", h.name(), own, before[i], h.said[desired.KeyAnnotations[i]])
		}
		for _, other := range n.hosts {
			if _, peers := other.keys(t, v6); other != h && (!slices.Contains(peers, own) || slices.Contains(peers, before[i])) {
				t.Errorf("%s has peers %v; %s has key %s, before %s", other.name(), peers, h.name(), own, before[i])
			}
		}
	}
}

func (h *host) both(t *testing.T) (keys [2]wireguard.Key) {
	keys[0], _ = h.keys(t, false)
	keys[1], _ = h.keys(t, true)
	return keys
}

const rate = 1000

// TestRotation has a node change its keys under traffic.
func TestRotation(t *testing.T) {
	n := start(t, 2)
	a := n.hosts[0]
	before, stop, wire := a.both(t), n.flows(t, a, rate), a.watch(t)
	a.rotates = true
	n.until(t, "second devices are used", func() bool { return n.by(true, a) })
	n.spoof(t, n.hosts[1], a)
	n.finish(t, func() {}, a)
	stop(0)
	clear, encrypted := wire()
	if clear != 0 || encrypted[51820] < 100 || encrypted[51821] < 100 || encrypted[51822] < 100 || encrypted[51823] < 100 {
		t.Errorf("%d packets in the clear, encrypted ones by port: %v", clear, encrypted)
	}
	n.changed(t, a, before)
}

// spoof sends to a pod from an address that is not the sending host's, and from one that is.
func (n *network) spoof(t *testing.T, from, to *host) {
	t.Helper()
	for i, bits := range []int{32, 128} {
		server := to.pod.ListenUDP(t, netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(pods[i], to.number)), 7999).String())
		arrives := func(src string) bool {
			client := from.ListenUDP(t, netip.AddrPortFrom(netip.MustParseAddr(src), 0).String())
			_, err := client.WriteToUDPAddrPort([]byte("x"), server.LocalAddr().(*net.UDPAddr).AddrPort())
			errtest.Must(t, err)
			errtest.Must(t, server.SetReadDeadline(time.Now().Add(3*time.Second)))
			_, err = server.Read(make([]byte, 9))
			return err == nil
		}
		from.Addr(t, "lo", fmt.Sprint(forged[i], "/", bits))
		node, _, _ := strings.Cut(fmt.Sprintf(addresses[i], from.number), "/")
		if arrives(forged[i]) || !arrives(node) {
			t.Errorf("by the second device %s arrives, or %s does not", forged[i], node)
		}
	}
}

// TestRotationRestarts ends agents in each phase, of three nodes.
func TestRotationRestarts(t *testing.T) {
	n := start(t, 3)
	a := n.hosts[0]
	before, stop, wire := a.both(t), n.flows(t, a, 100), a.watch(t)
	a.rotates = true
	rounds := 0
	each := func() {
		n.hosts[rounds%len(n.hosts)].restart()
		rounds++
	}
	n.until(t, "second devices are used", func() bool { each(); return n.by(true, a) })
	for range 3 {
		each()
	}
	n.round(t)
	n.finish(t, func() { n.hosts[1+rounds%2].restart(); rounds++ }, a)
	stop(0)
	if clear, _ := wire(); clear != 0 {
		t.Errorf("%d packets in the clear", clear)
	}
	n.changed(t, a, before)
}

// TestRotationOfTwo has two nodes begin before either knows of the other's change.
func TestRotationOfTwo(t *testing.T) {
	n := start(t, 3)
	a, b := n.hosts[0], n.hosts[1]
	beforeA, beforeB, stop, wire := a.both(t), b.both(t), n.flows(t, a, 100), a.watch(t)
	a.rotates, b.rotates = true, true
	n.ahead += follow // so that neither leaves it to the other to begin
	said := a.said
	n.pass(t, a)
	now := a.said
	a.said = said // b has not heard of it
	n.pass(t, b)
	a.said = now
	for _, h := range []*host{a, b} {
		if !h.states[0].Changes() || !h.states[1].Changes() {
			t.Fatalf("%s does not begin", h.name())
		}
	}
	n.until(t, "second devices are used", func() bool { return n.by(true, a, b) })
	n.finish(t, func() {}, a, b)
	stop(0)
	if clear, _ := wire(); clear != 0 {
		t.Errorf("%d packets in the clear", clear)
	}
	n.changed(t, a, beforeA)
	n.changed(t, b, beforeB)
}

// handshake is how long a peer that takes no part may be without one: the kernel repeats a first message after five
// seconds and a bit.
const handshake = 7 * time.Second

// TestRotationBesideAlien has a node change its keys beside one that takes no part, which is not waited for.
func TestRotationBesideAlien(t *testing.T) {
	n := newNetwork(t, 3)
	n.hosts[2].alien = true
	n.until(t, "all encrypt to all", func() bool { return n.by(false, n.hosts...) })
	a, b, alien := n.hosts[0], n.hosts[1], n.hosts[2]
	before := a.both(t)
	alone := network{hosts: []*host{a, b}}
	stop, stopAlien := alone.flows(t, a, 100), (&network{hosts: []*host{a, alien}}).flows(t, a, 100)
	a.rotates = true
	n.until(t, "second devices are used", func() bool { return a.states[0].Changes() && a.states[1].Changes() && alone.by(true, a) })
	n.finish(t, func() {}, a)
	stop(0)
	stopAlien(handshake)
	n.changed(t, a, before)
}
