package nat_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
)

// config reads pools in the form "10.244.0.0/16" or, with natOutgoing, "10.244.0.0/16 nat".
func config(pools ...string) nat.Config {
	var c nat.Config
	for _, text := range pools {
		cidr, outgoing := strings.CutSuffix(text, " nat")
		c.Pools = append(c.Pools, nat.Pool{CIDR: netip.MustParsePrefix(cidr), NATOutgoing: outgoing})
	}
	return c
}

func syncer(ns *netnstest.NS) *nat.Syncer { return nat.New(nft.New(ns.Namespace)) }

func sync(t testing.TB, ns *netnstest.NS, pools ...string) {
	t.Helper()
	errtest.Must(t, syncer(ns).Sync(t.Context(), config(pools...)))
}

func ruleset(t testing.TB, ns *netnstest.NS) string { return ns.Run(t, "nft", "list", "ruleset") }

// wantText compares all of the namespace's nftables with a file.
func wantText(t *testing.T, ns *netnstest.NS, name string) {
	t.Helper()
	difftest.Golden(t, name+".txt", ruleset(t, ns))
}

func TestText(t *testing.T) {
	for name, pools := range map[string][]string{
		"one-pool":   {"10.244.0.0/16 nat"},
		"dual-stack": {"10.244.0.0/16 nat", "fd00:10:244::/48 nat"},
		"without-nat": {
			"10.244.0.0/16 nat", "10.60.0.0/24", "192.168.7.64/26", "fd00:10:244::/48",
		},
		"nested-and-adjacent": {
			"10.0.0.0/17 nat", "10.0.128.0/17 nat", "10.0.3.0/24", "10.0.0.0/17", "172.16.0.9/32 nat",
		},
		"ends-of-the-address-space": {
			"0.0.0.0/8 nat", "255.255.255.0/24 nat", "ff00::/8 nat", "::/16 nat",
		},
		"everything": {"0.0.0.0/0 nat", "::/0 nat", "10.0.0.0/8 nat"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			sync(t, ns, pools...)
			wantText(t, ns, name)
			before := nfttest.Generation(t, ns)
			sync(t, ns, pools...)
			sync(t, ns, pools...)
			if after := nfttest.Generation(t, ns); after != before {
				t.Errorf("%d transactions for what was right already", after-before)
			}
		})
	}
}

func TestNothingToTranslate(t *testing.T) {
	ns := netnstest.New(t)
	before := nfttest.Generation(t, ns)
	sync(t, ns)
	sync(t, ns, "10.244.0.0/16", "fd00::/48")
	if after := nfttest.Generation(t, ns); after != before || ruleset(t, ns) != "" {
		t.Errorf("%d transactions, and:\n%s", after-before, ruleset(t, ns))
	}
	sync(t, ns, "10.244.0.0/16 nat")
	sync(t, ns, "10.244.0.0/16")
	if got := ruleset(t, ns); got != "" {
		t.Errorf("left after the last pool with natOutgoing:\n%s", got)
	}
}

// TestChanges goes through configurations one after the other, each from the state that the one before left, in one
// transaction each.
func TestChanges(t *testing.T) {
	ns, fresh := netnstest.New(t), netnstest.New(t)
	for _, pools := range [][]string{
		{"10.244.0.0/16 nat"},
		{"10.244.0.0/16 nat", "10.60.0.0/24"},
		{"10.244.0.0/16 nat", "10.60.0.0/24 nat"},
		{"10.244.0.0/16", "10.60.0.0/24 nat"},
		{"10.244.0.0/17 nat", "10.60.0.0/24 nat"}, // narrower, same first address
		{"10.244.0.0/15 nat", "10.60.0.0/24 nat"}, // wider, another first address
		{"10.244.128.0/17 nat", "10.244.0.0/17 nat"},
		{"10.244.0.0/16 nat", "fd00::/48 nat"},
		{"0.0.0.0/0 nat", "fd00::/48 nat", "fd00:1::/48"},
		{"255.255.255.255/32 nat", "fd00::/49 nat"},
		{"fd00::/49 nat"},
	} {
		before := nfttest.Generation(t, ns)
		sync(t, ns, pools...)
		if n := nfttest.Generation(t, ns) - before; n != 1 {
			t.Errorf("%q: %d transactions, want 1", pools, n)
		}
		sync(t, fresh) // from nothing each time, for comparison
		sync(t, fresh, pools...)
		if diff := cmp.Diff(ruleset(t, fresh), ruleset(t, ns)); diff != "" {
			t.Errorf("%q (-from nothing +from the step before):\n%s", pools, diff)
		}
	}
}

var pools = []string{"10.244.0.0/16 nat", "10.60.0.0/24", "fd00::/48 nat"}

func TestDriftIsRepaired(t *testing.T) {
	const chain, set = "inet tortie nat-postrouting", "inet tortie pools-v4"
	for name, script := range map[string]string{
		"table deleted":        "delete table inet tortie",
		"table flushed":        "flush table inet tortie",
		"chain flushed":        "flush chain " + chain,
		"chain deleted":        "flush chain " + chain + "; delete chain " + chain,
		"set flushed":          "flush set " + set,
		"element deleted":      "delete element " + set + " { 10.60.0.0/24 }",
		"element added":        "add element " + set + " { 192.0.2.0/24 }",
		"element narrowed":     "delete element " + set + " { 10.60.0.0/24 }; add element " + set + " { 10.60.0.0/25 }",
		"rule added":           "add rule " + chain + " ip saddr 192.0.2.1 accept",
		"rule that hides ours": "insert rule " + chain + " accept",
		"rule with a counter":  "add rule " + chain + " tcp dport 80 counter masquerade to :1024-65535",
		"rules in another order": "flush chain " +
			chain + "; add rule " + chain + " ip6 saddr @nat-outgoing-v6 ip6 daddr != @pools-v6 masquerade fully-random; add rule " + chain +
			" ip saddr @nat-outgoing-v4 ip daddr != @pools-v4 masquerade fully-random",
		"rule without its condition": "flush chain " +
			chain + "; add rule " + chain + " ip saddr @nat-outgoing-v4 masquerade fully-random; add rule " + chain +
			" ip6 saddr @nat-outgoing-v6 ip6 daddr != @pools-v6 masquerade fully-random",
		"chain of another priority": "flush chain " + chain + "; delete chain " + chain + "; add chain " + chain +
			" { type nat hook postrouting priority 50; }",
		"chain of another type": "flush chain " + chain + "; delete chain " + chain + "; add chain " + chain +
			" { type filter hook postrouting priority 100; }",
		"chain that drops": "add chain " + chain + " { policy drop; }",
		"set of another kind": "delete table inet tortie; add table inet tortie; add set " + set +
			" { type inet_service; flags interval; elements = { 80 }; }",
		"set without ranges": "delete table inet tortie; add table inet tortie; add set " + set +
			" { type ipv4_addr; elements = { 10.60.0.1 }; }",
		"set with timeouts": "delete table inet tortie; add table inet tortie; add set " + set +
			" { type ipv4_addr; flags interval,timeout; }",
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			sync(t, ns, pools...)
			want := ruleset(t, ns)
			ns.Run(t, "nft", script)
			if name != "element added" && ruleset(t, ns) == want {
				t.Fatal("the script changes nothing")
			}
			before := nfttest.Generation(t, ns)
			sync(t, ns, pools...)
			if n := nfttest.Generation(t, ns) - before; n != 1 {
				t.Errorf("%d transactions, want 1", n)
			}
			difftest.Want(t, "", want, ruleset(t, ns))
		})
	}
}

// TestSameTextByNft writes the table with nft itself: Sync finds nothing to do.
func TestSameTextByNft(t *testing.T) {
	ns, other := netnstest.New(t), netnstest.New(t)
	sync(t, ns, pools...)
	file := filepath.Join(t.TempDir(), "ruleset")
	errtest.Must(t, os.WriteFile(file, []byte(ruleset(t, ns)), 0o644))
	other.Run(t, "nft", "-f", file)
	before := nfttest.Generation(t, other)
	sync(t, other, pools...)
	if n := nfttest.Generation(t, other) - before; n != 0 {
		t.Errorf("%d transactions, want none:\n%s", n, ruleset(t, other))
	}
}

func TestOthersAreKept(t *testing.T) {
	ns := netnstest.New(t)
	foreign := []string{
		"add table inet filter; add chain inet filter forward { type filter hook forward priority 0; }; add rule inet filter forward counter",
		"add table ip tortie; add chain ip tortie nat-postrouting; add set ip tortie pools-v4 { type ipv4_addr; }",
		"add table inet tortie-old; add chain inet tortie-old nat-postrouting { type nat hook postrouting priority 100; }",
	}
	for _, script := range foreign {
		ns.Run(t, "nft", script)
	}
	before := ruleset(t, ns)
	sync(t, ns, pools...)
	sync(t, ns, pools[0])
	sync(t, ns)
	if diff := cmp.Diff(before, ruleset(t, ns)); diff != "" {
		t.Errorf("others' tables (-before +after):\n%s", diff)
	}

	// Other chains and sets in the table itself, as the policy part will have them.
	ns.Run(t, "nft", "add table inet tortie; add chain inet tortie forward { type filter hook forward priority 0; }; add set inet tortie "+
		"blocked { type ipv4_addr; elements = { 192.0.2.1 }; }")
	before = ruleset(t, ns)
	sync(t, ns, pools...)
	ns.Run(t, "nft", "flush chain inet tortie nat-postrouting")
	sync(t, ns, pools...)
	sync(t, ns)
	if diff := cmp.Diff(before, ruleset(t, ns)); diff != "" {
		t.Errorf("the table's other things (-before +after):\n%s", diff)
	}
}

func TestBadConfig(t *testing.T) {
	ns := netnstest.New(t)
	sync(t, ns, pools...)
	before := ruleset(t, ns)
	for _, bad := range []nat.Config{
		{Pools: []nat.Pool{{NATOutgoing: true}}},
		{Pools: []nat.Pool{{CIDR: netip.MustParsePrefix("10.244.0.1/16"), NATOutgoing: true}}},
		{Floating: []nat.Floating{{Addr: addr("10.244.9.9"), Pod: addr("fd00::1")}}},
		{Floating: []nat.Floating{{Addr: addr("10.244.9.9"), Pod: addr("10.244.0.1")}, {Addr: addr("10.244.9.9"), Pod: addr("10.244.0.2")}}},
	} {
		if err := syncer(ns).Sync(t.Context(), bad); err == nil ||
			!strings.Contains(err.Error(), "CIDR") && !strings.Contains(err.Error(), "floating") {
			t.Errorf("Sync(%v) = %v, want an error about the CIDR", bad, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := syncer(ns).Sync(ctx, nat.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Sync after the end of its context: %v", err)
	}
	if after := ruleset(t, ns); after != before {
		t.Errorf("changed by calls that failed:\n%s", after)
	}
}

func TestManyPools(t *testing.T) {
	ns := netnstest.New(t)
	var many []string
	for i := range 2000 {
		many = append(many, fmt.Sprintf("10.%d.%d.0/24 nat", i/250, i%250))
	}
	begin := time.Now()
	sync(t, ns, many...)
	t.Logf("2000 pools from nothing: %v", time.Since(begin))
	before := nfttest.Generation(t, ns)
	begin = time.Now()
	sync(t, ns, many...)
	t.Logf("again: %v", time.Since(begin))
	if n := nfttest.Generation(t, ns) - before; n != 0 {
		t.Errorf("%d transactions for what was right already", n)
	}
	if n := strings.Count(ruleset(t, ns), "/24"); n != 2*len(many) {
		t.Errorf("%d elements in nft's list, want %d", n, 2*len(many))
	}
}

// aNode returns a node with two pods, 10.244.0.1 and 10.244.0.2, and a host of the world.
func aNode(t *testing.T) (node, a, b, world *netnstest.NS) {
	t.Helper()
	node, a, b, world = netnstest.New(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, node, "eth0", world, "eth0")
	for link, addrs := range map[*netnstest.NS][]string{
		node: {"192.0.2.1/24", "2001:db8::1/64"}, world: {"192.0.2.9/24", "2001:db8::9/64", "10.60.0.9/24"},
	} {
		for _, addr := range addrs {
			link.Addr(t, "eth0", addr)
		}
	}
	node.Route(t, "0.0.0.0/0", "192.0.2.9", "eth0")
	world.Route(t, "10.244.0.0/16", "192.0.2.1", "eth0") // so that untranslated packets are answered too
	world.Route(t, "fd00::/48", "2001:db8::1", "eth0")
	node.Within(t, func() error {
		return errors.Join(
			sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1"),
			sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1"))
	})
	for i, pod := range []*netnstest.NS{a, b} {
		node.Within(t, func() error {
			_, err := podnet.Setup(t.Context(), podnet.Config{
				Netns: pod.Path(), IfName: "eth0", HostVeth: fmt.Sprint("cali", i), MTU: 1480,
				Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.244.0.", i+1)), netip.MustParseAddr(fmt.Sprint("fd00::", i+1))},
			})
			return err
		})
	}
	return node, a, b, world
}

// TestPackets sends from a pod to another pod and to the world, in both families.
func TestPackets(t *testing.T) {
	node, a, b, world := aNode(t)
	for ns, addrs := range map[*netnstest.NS][]string{
		b: {"10.244.0.2:7000", "[fd00::2]:7000"}, world: {"192.0.2.9:7000", "[2001:db8::9]:7000", "10.60.0.9:7000"},
	} {
		for _, addr := range addrs {
			ns.EchoUDP(t, addr)
		}
	}
	for _, step := range []struct {
		pools []string
		want  map[string]string // by destination: the source seen there
	}{
		{nil, map[string]string{"192.0.2.9:7000": "10.244.0.1", "[2001:db8::9]:7000": "fd00::1"}},
		{[]string{"10.244.0.0/16 nat", "fd00::/48 nat"}, map[string]string{
			"192.0.2.9:7000": "192.0.2.1", "[2001:db8::9]:7000": "2001:db8::1", "10.60.0.9:7000": "192.0.2.1",
			"10.244.0.2:7000": "10.244.0.1", "[fd00::2]:7000": "fd00::1",
		}},
		{pools, map[string]string{"192.0.2.9:7000": "192.0.2.1", "10.60.0.9:7000": "10.244.0.1"}}, // 10.60.0.0/24 is a pool too
		{[]string{"10.244.0.0/16", "fd00::/48 nat"}, map[string]string{"192.0.2.9:7000": "10.244.0.1", "[2001:db8::9]:7000": "2001:db8::1"}},
		{[]string{"10.244.0.2/32 nat"}, map[string]string{"192.0.2.9:7000": "10.244.0.1"}}, // another pod's pool
	} {
		sync(t, node, step.pools...)
		for to, from := range step.want {
			// A socket of its own for each question: a known connection keeps its translation.
			got, err := a.AskUDP(t, "", to, "hello", 10*time.Second)
			if err != nil || got != from+" hello" {
				t.Errorf("pools %q, to %s: %q, %v; want to be seen as %s", step.pools, to, got, err, from)
			}
		}
	}
}

// TestFloatingPackets reaches a pod by its floating addresses: from the world, from another pod, from the node and from
// itself, in both families.
func TestFloatingPackets(t *testing.T) {
	node, a, b, world := aNode(t)
	for _, to := range []string{"10.244.0.2:7000", "[fd00::2]:7000"} {
		b.EchoUDP(t, to)
	}
	ask := func(what string, from *netnstest.NS, want map[string]string) {
		t.Helper()
		for to, seen := range want {
			got, err := from.AskUDP(t, "", to, "hello", 10*time.Second)
			if err != nil || got != seen+" hello" {
				t.Errorf("%s, to %s: %q, %v; want to be seen as %s", what, to, got, err, seen)
			}
		}
	}
	c := config("10.244.0.0/16 nat", "fd00::/48 nat")
	c.Floating = []nat.Floating{{Addr: addr("10.244.9.9"), Pod: addr("10.244.0.2")}, {Addr: addr("fd00::9"), Pod: addr("fd00::2")}}
	syncConfig(t, node, c)
	ask("from the world", world, map[string]string{"10.244.9.9:7000": "192.0.2.9", "[fd00::9]:7000": "2001:db8::9"})
	ask("from a pod", a, map[string]string{"10.244.9.9:7000": "10.244.0.1", "[fd00::9]:7000": "fd00::1"})
	ask("from the pod itself", b, map[string]string{"10.244.9.9:7000": "10.244.9.9", "[fd00::9]:7000": "fd00::9"})
	ask("from the node", node, map[string]string{"10.244.9.9:7000": "192.0.2.1"})
	ask("by the pod's own address", a, map[string]string{"10.244.0.2:7000": "10.244.0.1", "[fd00::2]:7000": "fd00::1"})
	// Connections that the pod opens have its own address.
	world.EchoUDP(t, "10.60.0.9:7001")
	c.Pools = append(c.Pools, nat.Pool{CIDR: netip.MustParsePrefix("10.60.0.0/24")})
	syncConfig(t, node, c)
	ask("to the world", b, map[string]string{"10.60.0.9:7001": "10.244.0.2"})
	// The address moves to another pod.
	a.EchoUDP(t, "10.244.0.1:7002")
	c.Floating = []nat.Floating{{Addr: addr("10.244.9.9"), Pod: addr("10.244.0.1")}}
	syncConfig(t, node, c)
	ask("after it moved", world, map[string]string{"10.244.9.9:7002": "192.0.2.9"})
	c.Floating = nil
	syncConfig(t, node, c)
	if rules := ruleset(t, node); strings.Contains(rules, "nat-floating") || strings.Contains(rules, "nat-prerouting") {
		t.Errorf("left without floating addresses:\n%s", rules)
	}
}
