package nat_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
)

var addr = netip.MustParseAddr

func syncConfig(t testing.TB, ns *netnstest.NS, c nat.Config) {
	t.Helper()
	errtest.Must(t, syncer(ns).Sync(t.Context(), c))
}

// options are configurations beyond pools.
func options() map[string]nat.Config {
	with := func(change func(*nat.Config)) nat.Config {
		c := config("10.244.0.0/16 nat", "fd00::/48 nat")
		change(&c)
		return c
	}
	return map[string]nat.Config{
		"nodes-excluded": with(func(c *nat.Config) {
			c.Nodes = []netip.Addr{addr("192.0.2.1"), addr("10.244.9.9"), addr("2001:db8::1")}
		}),
		"source-v4": with(func(c *nat.Config) { c.Source = addr("192.0.2.77") }),
		"source-v6": with(func(c *nat.Config) { c.Source = addr("2001:db8::77") }),
		"ports":     with(func(c *nat.Config) { c.Ports = nft.Ports{First: 30000, Last: 30999} }),
		"one-port":  with(func(c *nat.Config) { c.Ports = nft.Ports{First: 65535, Last: 65535} }),
		"floating": with(func(c *nat.Config) {
			c.Floating = []nat.Floating{{Addr: addr("10.244.9.9"), Pod: addr("10.244.0.2")}, {Addr: addr("fd00::9"), Pod: addr("fd00::2")}}
		}),
		"floating-alone": {Floating: []nat.Floating{{Addr: addr("10.244.9.9"), Pod: addr("10.244.0.3")},
			{Addr: addr("10.244.9.8"), Pod: addr("10.244.0.2")}}},
		"source-and-ports": with(func(c *nat.Config) { c.Source, c.Ports = addr("192.0.2.77"), nft.Ports{First: 1, Last: 65535} }),
	}
}

func TestTextOfOptions(t *testing.T) {
	for name, c := range options() {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			syncConfig(t, ns, c)
			wantText(t, ns, name)
			before := nfttest.Generation(t, ns)
			syncConfig(t, ns, c)
			if after := nfttest.Generation(t, ns); after != before {
				t.Errorf("%d transactions for what was right already", after-before)
			}
		})
	}
}

// unordered is a listing of a table without the order in which its sets and chains were made, which does not matter.
func unordered(rules string) string {
	things := strings.Split(strings.TrimSuffix(strings.TrimPrefix(rules, "table inet tortie {\n"), "}\n"), "\n\n")
	for i := range things {
		things[i] = strings.TrimSpace(things[i])
	}
	slices.Sort(things)
	return strings.Join(things, "\n")
}

// TestOptionsChange leads from each configuration to each other, and by hand away from each.
func TestOptionsChange(t *testing.T) {
	ns := netnstest.New(t)
	texts := map[string]string{}
	for name, c := range options() {
		fresh := netnstest.New(t)
		syncConfig(t, fresh, c)
		texts[name] = unordered(ruleset(t, fresh))
	}
	for from, c := range options() {
		for to, other := range options() {
			syncConfig(t, ns, c)
			before := nfttest.Generation(t, ns)
			syncConfig(t, ns, other)
			if n := nfttest.Generation(t, ns) - before; n > 1 {
				t.Errorf("from %s to %s: %d transactions", from, to, n)
			}
			if got := unordered(ruleset(t, ns)); got != texts[to] {
				t.Errorf("from %s to %s:\n%s", from, to, got)
			}
		}
	}
	// A rule with the same conditions but another translation does not count as ours.
	const chain = "inet tortie nat-postrouting"
	for _, rule := range []string{
		"ip saddr @nat-outgoing-v4 ip daddr != @pools-v4 masquerade",
		"ip saddr @nat-outgoing-v4 ip daddr != @pools-v4 masquerade fully-random,persistent",
		"ip saddr @nat-outgoing-v4 ip daddr != @pools-v4 snat to 192.0.2.77 persistent",
		"ip saddr @nat-outgoing-v4 ip daddr != @pools-v4 snat to 192.0.2.77-192.0.2.78 fully-random",
	} {
		syncConfig(t, ns, options()["source-v4"])
		ns.Run(t, "nft", "flush chain "+chain+"; add rule "+chain+" "+rule+"; add rule "+chain+
			" ip6 saddr @nat-outgoing-v6 ip6 daddr != @pools-v6 masquerade fully-random")
		syncConfig(t, ns, options()["source-v4"])
		if got := unordered(ruleset(t, ns)); got != texts["source-v4"] {
			t.Errorf("left instead of ours: %q:\n%s", rule, got)
		}
	}
}

// randomConfig has pools that overlap, touch and reach to the ends of the address space.
func randomConfig(r *rand.Rand) nat.Config {
	var c nat.Config
	anywhere := func() netip.Addr {
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{[]byte{0, 10, 255}[r.IntN(3)], byte(r.IntN(3)), byte(r.IntN(256)), byte(r.IntN(256))})
		}
		a := netip.MustParseAddr([]string{"::1:0", "fd00::", "ff00::"}[r.IntN(3)]).As16()
		a[3], a[7], a[15] = byte(r.IntN(3)), byte(r.IntN(256)), byte(r.IntN(256))
		return netip.AddrFrom16(a)
	}
	for range 1 + r.IntN(30) {
		a := anywhere()
		c.Pools = append(c.Pools, nat.Pool{CIDR: netip.PrefixFrom(a, r.IntN(a.BitLen()+1)).Masked(), NATOutgoing: r.IntN(2) == 0})
	}
	for range r.IntN(10) {
		c.Nodes = append(c.Nodes, anywhere())
	}
	if r.IntN(2) == 0 {
		c.Source = addr([]string{"192.0.2.7", "2001:db8::7"}[r.IntN(2)])
	}
	if first := uint16(r.IntN(3)); first > 0 {
		c.Ports = nft.Ports{First: first, Last: first + uint16(r.IntN(2))}
	}
	return c
}

// TestRandomConfigs changes from one to the next, and reads each back as it was written.
func TestRandomConfigs(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	for range 100 {
		c := randomConfig(r)
		if err := nat.New(table).Sync(t.Context(), c); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		before := nfttest.Generation(t, ns)
		syncConfig(t, ns, c)
		if n := nfttest.Generation(t, ns) - before; n != 0 {
			t.Fatalf("%+v: not read back as it was written:\n%s", c, ruleset(t, ns))
		}
	}
}

func TestBadOptions(t *testing.T) {
	ns := netnstest.New(t)
	for want, change := range map[string]func(*nat.Config){
		"natPortRange 5:4":                    func(c *nat.Config) { c.Ports = nft.Ports{First: 5, Last: 4} },
		"natPortRange 0:4":                    func(c *nat.Config) { c.Ports = nft.Ports{Last: 4} },
		"natOutgoingAddress \"0.0.0.0\"":      func(c *nat.Config) { c.Source = addr("0.0.0.0") },
		"natOutgoingAddress \"ff02::1\"":      func(c *nat.Config) { c.Source = addr("ff02::1") },
		"natOutgoingAddress \"fe80::1%eth0\"": func(c *nat.Config) { c.Source = addr("fe80::1%eth0") },
		"address \"invalid IP\"":              func(c *nat.Config) { c.Nodes = []netip.Addr{{}} },
		"node \"fe80::1%eth0\"":               func(c *nat.Config) { c.Nodes = []netip.Addr{addr("fe80::1%eth0")} },
	} {
		c := config("10.244.0.0/16 nat")
		change(&c)
		if err := syncer(ns).Sync(t.Context(), c); !errtest.Names(err, want) {
			t.Errorf("Sync = %v, want an error with %s", err, want)
		}
	}
	if left := ruleset(t, ns); left != "" {
		t.Errorf("written by calls that failed:\n%s", left)
	}
}

// place is a node with a pod and an address of a pool on itself, as a tunnel has, and two hosts outside of which one is
// a node.
type place struct{ node, pod, world *netnstest.NS }

func newPlace(t *testing.T) place {
	t.Helper()
	p := place{netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	netnstest.Cable(t, p.node, "eth0", p.world, "eth0")
	netnstest.Cable(t, p.node, "cali0", p.pod, "eth0")
	for _, a := range []struct {
		ns         *netnstest.NS
		link, cidr string
	}{
		{p.node, "eth0", "192.0.2.1/24"}, {p.node, "eth0", "192.0.2.77/24"}, {p.node, "lo", "10.244.0.0/32"},
		{p.node, "cali0", "10.244.0.254/24"},
		{p.pod, "eth0", "10.244.0.1/24"}, {p.world, "eth0", "192.0.2.9/24"}, {p.world, "eth0", "192.0.2.8/24"}, // .8 is another node
	} {
		a.ns.Addr(t, a.link, a.cidr)
	}
	p.pod.Route(t, "0.0.0.0/0", "10.244.0.254", "eth0")
	p.world.Route(t, "10.244.0.0/16", "192.0.2.1", "eth0")
	p.node.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	for _, listen := range []string{"192.0.2.9:7000", "192.0.2.8:7000"} {
		p.world.EchoUDP(t, listen)
	}
	return p
}

// want asks to from local and compares the source that is seen there.
func (p place) want(t *testing.T, from *netnstest.NS, local, to, source string) {
	t.Helper()
	got, err := from.AskUDP(t, local, to, "hello", 20*time.Second)
	if err != nil || got != source+" hello" {
		t.Errorf("from %q to %s: %q, %v; want to be seen as %s", local, to, got, err, source)
	}
}

func TestPacketsWithOptions(t *testing.T) {
	p := newPlace(t)
	pool := config("10.244.0.0/16 nat")
	const outside, otherNode = "192.0.2.9:7000", "192.0.2.8:7000"
	syncConfig(t, p.node, pool)
	p.want(t, p.pod, "", outside, "192.0.2.1")
	p.want(t, p.pod, "", otherNode, "192.0.2.1")
	// The node's own processes: only what they send from an address of a pool.
	p.want(t, p.node, "", outside, "192.0.2.1")
	p.want(t, p.node, "192.0.2.77:0", outside, "192.0.2.77")
	p.want(t, p.node, "10.244.0.0:0", outside, "192.0.2.1")

	pool.Nodes = []netip.Addr{addr("192.0.2.8"), addr("192.0.2.1")}
	syncConfig(t, p.node, pool)
	p.want(t, p.pod, "", outside, "192.0.2.1")
	p.want(t, p.pod, "", otherNode, "10.244.0.1")

	pool.Source = addr("192.0.2.77")
	syncConfig(t, p.node, pool)
	p.want(t, p.pod, "", outside, "192.0.2.77")
	p.want(t, p.pod, "", otherNode, "10.244.0.1")
	p.want(t, p.node, "", outside, "192.0.2.1")
}

// TestPortRange looks at the source ports that TCP and UDP are seen with, and pings, which have none.
func TestPortRange(t *testing.T) {
	p := newPlace(t)
	c := config("10.244.0.0/16 nat")
	c.Ports = nft.Ports{First: 40000, Last: 40009}
	const tcp, udp = "192.0.2.9:7001", "192.0.2.9:7002"
	var listener net.Listener
	p.world.Within(t, func() (err error) { listener, err = net.Listen("tcp", tcp); return err })
	t.Cleanup(func() { listener.Close() })
	server := p.world.ListenUDP(t, udp)
	seen := make(chan netip.AddrPort, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			seen <- netip.MustParseAddrPort(conn.RemoteAddr().String())
			conn.Close()
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := server.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			seen <- from
			server.WriteToUDPAddrPort([]byte("answer"), from)
		}
	}()
	for _, source := range []string{"", "192.0.2.77"} {
		want := addr("192.0.2.1")
		if source != "" {
			c.Source = addr(source)
			want = c.Source
		}
		syncConfig(t, p.node, c)
		for i := range 3 {
			p.pod.Within(t, func() error {
				conn, err := net.DialTimeout("tcp", tcp, 20*time.Second)
				if err == nil {
					conn.Close()
				}
				return err
			})
			p.wantPort(t, fmt.Sprint("TCP ", i), <-seen, want, c.Ports)
			if _, err := p.pod.AskUDP(t, "", udp, "hello", 20*time.Second); err != nil {
				t.Fatal(err)
			}
			p.wantPort(t, fmt.Sprint("UDP ", i), <-seen, want, c.Ports)
		}
		p.pod.Within(t, func() error { return ping("192.0.2.9") })
	}
}

// ping waits for one answer.
func ping(host string) error {
	conn, err := net.Dial("ip4:icmp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	const echo, answer = 8, 0
	request := []byte{echo, 0, 0xf7, 0xff - 7, 0, 7, 0, 0} // identifier 7, with the checksum for it
	for range 100 {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		buf := make([]byte, 100)
		if n, err := conn.Read(buf); err == nil && n > 0 && buf[n-8] == answer {
			return nil
		}
	}
	return fmt.Errorf("%s does not answer", host)
}

func (p place) wantPort(t *testing.T, name string, got netip.AddrPort, from netip.Addr, ports nft.Ports) {
	t.Helper()
	if got.Addr().Unmap() != from || got.Port() < ports.First || got.Port() > ports.Last {
		t.Errorf("%s: seen from %s, want %s and a port from %d to %d", name, got, from, ports.First, ports.Last)
	}
}

// BenchmarkSync has 1,000 pools and the addresses of 1,000 nodes.
func BenchmarkSync(b *testing.B) {
	ns := netnstest.New(b)
	large := func(nodes int) nat.Config {
		var c nat.Config
		for i := range 1000 {
			c.Pools = append(c.Pools, nat.Pool{CIDR: netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)), NATOutgoing: true})
		}
		for i := range nodes {
			c.Nodes = append(c.Nodes, addr(fmt.Sprintf("172.16.%d.%d", i/250, i%250)))
		}
		return c
	}
	table := nft.New(ns.Namespace)
	run := func(name string, config func(i int) nat.Config, reset bool) {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				c := config(i)
				if reset {
					errtest.Must(b, nat.New(table).Sync(b.Context(), nat.Config{}))
				}
				b.StartTimer()
				errtest.Must(b, nat.New(table).Sync(b.Context(), c))
			}
		})
	}
	run("from empty", func(int) nat.Config { return large(1000) }, true)
	run("nothing changed", func(int) nat.Config { return large(1000) }, false)
	run("one node changed", func(i int) nat.Config { return large(1000 - i%2) }, false)
	b.Run("by an agent that knows nothing", func(b *testing.B) {
		for b.Loop() {
			syncConfig(b, ns, large(1000))
		}
	})
}
