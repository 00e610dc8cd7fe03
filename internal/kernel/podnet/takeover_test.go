package podnet_test

import (
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

func TestAlias(t *testing.T) {
	for _, tt := range []struct {
		alias, handle, ifName string
		ok                    bool
	}{
		{podnet.Alias("k8s-pod-network.0a1b", "eth0"), "k8s-pod-network.0a1b", "eth0", true},
		{"tortie:a.b:c.d:net1", "a.b:c.d", "net1", true},
		{"tortie:a.b", "", "", false},
		{"tortie::eth0", "", "", false},
		{"tortie:a.b:", "", "", false},
		{"tunnel: to somewhere", "", "", false},
		{"", "", "", false},
	} {
		if handle, ifName, ok := podnet.ParseAlias(tt.alias); handle != tt.handle || ifName != tt.ifName || ok != tt.ok {
			t.Errorf("ParseAlias(%q) = %q, %q, %v; want %q, %q, %v", tt.alias, handle, ifName, ok, tt.handle, tt.ifName, tt.ok)
		}
	}
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	c.Alias = podnet.Alias("net."+strings.Repeat("0a", 32), "eth0")
	setup(t, host, c)
	if got := host.Link(t, c.HostVeth).Alias; got != c.Alias {
		t.Errorf("alias %q, want %q", got, c.Alias)
	}
	teardown(t, host, c)
	c.Alias = podnet.Alias(strings.Repeat("n", netlinkx.MaxAlias), "eth0")
	setup(t, host, c)
	if got := host.Link(t, c.HostVeth).Alias; got != "" {
		t.Errorf("alias %q, want none of one that is too long", got)
	}
}

// TestTakeOver sets a pod up while the node has a link of the pod's name.
func TestTakeOver(t *testing.T) {
	mine, other := podnet.Alias("net.new", "eth0"), podnet.Alias("net.old", "eth0")
	for _, tt := range []struct {
		name  string
		alias string // of the old link
		spoil func(t *testing.T, host, old *netnstest.NS, c podnet.Config) (pid int)
		want  []string // in the error; nil: taken over
	}{
		{"a sandbox that only a mount keeps", other, nil, nil},
		{"a sandbox that only a mount keeps, of a real Calico", "", nil, nil},
		{"the same container", mine, startIn, nil},
		{"another interface of the same container", podnet.Alias("net.new", "net1"), nil, []string{"net1", "container", "new", "another"}},
		{"a live sandbox", other, startIn, []string{"eth0", "container", "old", "alive"}},
		{"a live sandbox of a real Calico", "", startIn, []string{"alive"}},
		{"both ends on the node", other, bothHere, nil},
		{"a link of another kind", other, notAPair, nil},
		{"a pair that a pod with CAP_NET_ADMIN made", "", madeByAPod(""), nil},
		{"a pair that such a pod made, with an alias", "", madeByAPod(other), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, old, p := node(t), pod(t), pod(t)
			c := config(old, "web-1", "10.65.0.2")
			c.Alias = tt.alias
			setup(t, host, c)
			before, pid := host.Link(t, c.HostVeth), 0
			if tt.spoil != nil {
				pid = tt.spoil(t, host, old, c)
			}
			c.Netns, c.Alias, c.Addresses = p.Path(), mine, []netip.Addr{netip.MustParseAddr("10.65.0.3")}
			err := setupErr(t, host, c)
			if tt.want == nil {
				errtest.Must(t, err)
				host.Within(t, func() error { return podnet.Check(c) })
				if after := host.Link(t, c.HostVeth); after.Index == before.Index {
					t.Error("the old link was kept")
				}
				return
			}
			if pid != 0 {
				tt.want = append(tt.want, strconv.Itoa(pid))
			}
			for _, want := range append(tt.want, c.HostVeth) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Setup = %v, want an error with %q", err, want)
				}
			}
			host.Link(t, c.HostVeth)
			if _, err := p.Conn.LinkByName("eth0"); !netlinkx.IsNotExist(err) {
				t.Errorf("left behind in the pod: %v", err)
			}
		})
	}
}

func startIn(t *testing.T, _, old *netnstest.NS, _ podnet.Config) int {
	return old.Start(t, "sleep", "60")
}

// bothHere replaces the pod's pair by one with both ends on the node.
func bothHere(t *testing.T, host, _ *netnstest.NS, c podnet.Config) int {
	t.Helper()
	replace(t, host, c.HostVeth, "type", "veth", "peer", "name", "elsewhere")
	return 0
}

func notAPair(t *testing.T, host, _ *netnstest.NS, c podnet.Config) int {
	t.Helper()
	replace(t, host, c.HostVeth, "type", "bridge")
	return 0
}

// madeByAPod replaces the pod's pair by one that a live pod could make: with an alias, up, and without a route.
func madeByAPod(alias string) func(t *testing.T, host, attacker *netnstest.NS, c podnet.Config) int {
	return func(t *testing.T, host, attacker *netnstest.NS, c podnet.Config) int {
		t.Helper()
		pid := attacker.Start(t, "sleep", "60")
		replace(t, host, c.HostVeth, "type", "veth", "peer", "name", "p0", "netns", strconv.Itoa(pid))
		attacker.Run(t, "ip", "link", "set", "p0", "up")
		host.Run(t, "ip", "link", "set", c.HostVeth, "up", "alias", alias)
		return pid
	}
}

// TestHolds distinguishes a container's interface from a link with its alias but without a route.
func TestHolds(t *testing.T) {
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	c.Alias = podnet.Alias("net.id", "eth0")
	want := func(handle string, want bool) {
		t.Helper()
		var holds bool
		host.Within(t, func() (err error) {
			_, holds, err = podnet.Holds(c.HostVeth, handle)
			return err
		})
		if holds != want {
			t.Errorf("Holds(%q) = %v, want %v", handle, holds, want)
		}
	}
	want("net.id", false)
	setup(t, host, c)
	want("net.id", true)
	want("net.other", false)
	madeByAPod(c.Alias)(t, host, p, c)
	want("net.id", false)
	host.Run(t, "ip", "-6", "route", "add", "2001:db8::1/128", "dev", c.HostVeth, "proto", "ra") // as the kernel does at an advertisement
	want("net.id", false)
}

func replace(t *testing.T, host *netnstest.NS, name string, kind ...string) {
	t.Helper()
	host.Run(t, "ip", "link", "delete", name)
	host.Run(t, "ip", append([]string{"link", "add", name}, kind...)...)
}

func TestRouteOfANamedPod(t *testing.T) {
	host, old, p := node(t), pod(t), pod(t)
	c := config(old, "old", "10.65.0.2")
	c.Alias = podnet.Alias("net.old", "eth0")
	setup(t, host, c)
	err := setupErr(t, host, config(p, "new", "10.65.0.2"))
	for _, want := range []string{"10.65.0.2", c.HostVeth, "eth0", "container", "old"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Setup with a live pod's address: %v, want an error with %q", err, want)
		}
	}
}

func TestTeardownSparesOthers(t *testing.T) {
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	c.Alias = podnet.Alias("net.new", "eth0")
	setup(t, host, c)

	own := c
	own.Netns = host.Path()
	host.Run(t, "ip", "link", "show", "eth0")
	if err := teardownErr(t.Context(), host, own); !errtest.Names(err, "netns "+own.Netns) {
		t.Errorf("Teardown of the node's own namespace: %v", err)
	}
	host.Link(t, "eth0")

	// The path of a dead sandbox (/proc/123/ns/net) may lead to a newer one.
	old := c
	old.Alias = podnet.Alias("net.old", "eth0")
	teardown(t, host, old)
	host.Within(t, func() error { return podnet.Check(c) })

	// Without a path the alias identifies the link's container, though the sandbox lives.
	for _, path := range []string{"", "/var/run/netns/no-such-namespace"} {
		old.Netns = path
		teardown(t, host, old)
		host.Within(t, func() error { return podnet.Check(c) })
	}
	mine := c
	mine.Netns = ""
	teardown(t, host, mine)
	wantNothing(t, host, p, c)
}

// TestConnectionsEndWithThePod is the case of a replaced pod of a name server: packets of a client that continues to
// send from one port go to the old pod as long as the kernel tracks the connection, which these packets keep alive.
func TestConnectionsEndWithThePod(t *testing.T) {
	for name, netns := range map[string]func(string) string{
		"sandbox there": func(path string) string { return path },
		"sandbox gone":  func(string) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			host, first, second, client := node(t), pod(t), pod(t), pod(t)
			cf, cs, cc := config(first, "first", "10.65.0.2"), config(second, "second", "10.65.0.3"), config(client, "client", "10.65.0.4")
			cf.Alias = podnet.Alias("net.first", "eth0")
			for _, c := range []podnet.Config{cf, cs, cc} {
				setup(t, host, c)
			}
			service := func(to string) {
				t.Helper()
				host.Run(t, "nft", "flush ruleset; add table ip t; add chain ip t pre { type nat hook prerouting priority dstnat; }; "+
					"add rule ip t pre ip daddr 10.96.0.10 udp dport 53 dnat to "+to)
			}
			service("10.65.0.2")
			first.EchoUDP(t, "10.65.0.2:53")
			second.EchoUDP(t, "10.65.0.3:53")
			const local = "10.65.0.4:4000"
			if _, err := client.AskUDP(t, local, "10.96.0.10:53", "hello", 5*time.Second); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(host.Run(t, "cat", "/proc/net/nf_conntrack"), "10.65.0.2") {
				t.Fatal("the kernel tracks no connection: the test would show nothing")
			}

			cf.Netns = netns(cf.Netns)
			var had []netip.Addr
			host.Within(t, func() (err error) {
				had, err = podnet.Teardown(t.Context(), cf)
				return err
			})
			if len(had) != 1 || had[0] != cf.Addresses[0] {
				t.Errorf("Teardown returns %v, want the pod's address", had)
			}
			service("10.65.0.3")
			if _, err := client.AskUDP(t, local, "10.96.0.10:53", "hello", 3*time.Second); err != nil {
				t.Errorf("the client does not reach the new pod: %v", err)
			}
			if list := host.Run(t, "cat", "/proc/net/nf_conntrack"); strings.Contains(list, "10.65.0.2 ") {
				t.Errorf("connections of the old pod are left:\n%s", list)
			}
		})
	}
}

func TestForget(t *testing.T) {
	host, p, client := node(t), pod(t), pod(t)
	setup(t, host, config(p, "web-1", "10.65.0.2"))
	setup(t, host, config(client, "client", "10.65.0.4"))
	host.Run(t, "nft", "add table ip t; add chain ip t pre { type filter hook prerouting priority 0; }; add rule ip t pre ct state new accept")
	p.EchoUDP(t, "10.65.0.2:53")
	if _, err := client.AskUDP(t, "", "10.65.0.2:53", "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	tracked := func() bool { return strings.Contains(host.Run(t, "cat", "/proc/net/nf_conntrack"), "10.65.0.2 ") }
	forget := func() {
		host.Within(t, func() error { return podnet.Forget([]netip.Addr{netip.MustParseAddr("10.65.0.2")}) })
	}
	if forget(); !tracked() {
		t.Error("connections of an address that a pod has were forgotten")
	}
	host.Run(t, "ip", "route", "del", "10.65.0.2")
	if forget(); tracked() {
		t.Error("connections of an address that nobody has were not forgotten")
	}
}

// TestReachableAtOnce sends one packet from the node to the pod the moment that Setup has returned, and waits for one
// answer.
func TestReachableAtOnce(t *testing.T) {
	const rounds = 20
	slow := 0
	for range rounds {
		host, p := node(t), pod(t)
		var logged strings.Builder
		c := config(p, "web-1", "10.65.0.2")
		c.Log = slog.New(slog.NewTextHandler(&logged, nil))
		c.Addresses = append(c.Addresses, netip.MustParseAddr("fd00:65::2"))
		host.Addr(t, "lo", "fd00:9::9/128")
		host.Within(t, func() error {
			_, err := podnet.Setup(t.Context(), c)
			return err
		})
		if strings.Contains(logged.String(), "slow to use") {
			slow++
		}
		for _, to := range []string{"10.65.0.2:7000", "[fd00:65::2]:7000"} {
			answer(t, host, p, to)
		}
	}
	// If the kernel's link watch, which runs once a second, delayed the addresses, Setup would time out in most rounds. A
	// loaded machine delays some.
	if slow > rounds/2 {
		t.Errorf("in %d of %d rounds Setup has not found the addresses in use", slow, rounds)
	}
}

// patience is how long a datagram, which is never repeated, may take on a busy machine.
const patience = 20 * time.Second

// answer sends one datagram, once.
func answer(t *testing.T, host, p *netnstest.NS, to string) {
	t.Helper()
	server := p.ListenUDP(t, to)
	client := host.ListenUDP(t, "[::]:0")
	addr := netip.MustParseAddrPort(to)
	if addr.Addr().Is4() {
		client = host.ListenUDP(t, "0.0.0.0:0")
	}
	if _, err := client.WriteToUDPAddrPort([]byte("hello"), addr); err != nil {
		t.Errorf("send to %s: %v", to, err)
		return
	}
	buf := make([]byte, 64)
	server.SetReadDeadline(time.Now().Add(patience))
	_, from, err := server.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Errorf("the first packet to %s was lost: %v", to, err)
		return
	}
	if _, err := server.WriteToUDPAddrPort([]byte("hello"), from); err != nil {
		t.Errorf("answer from %s: %v", to, err)
	}
	client.SetReadDeadline(time.Now().Add(patience))
	if _, err := client.Read(buf); err != nil {
		t.Errorf("the first answer from %s was lost: %v", to, err)
	}
}

// TestNetkit requests netkit links: the pod works whether this kernel has them or not.
func TestNetkit(t *testing.T) {
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	c.Netkit = true
	setup(t, host, c)
	want := "veth"
	probe := host.Conn.AddNetkit(netlinkx.Veth{Name: "probe", PeerName: "probe", PeerNamespace: p.Namespace})
	if probe == nil {
		want = "netkit"
	} else if !netlinkx.IsUnsupported(probe) {
		t.Fatal(probe)
	}
	if kind := host.Link(t, c.HostVeth).Kind; kind != want {
		t.Errorf("the pod's link is a %s, want %s (%v)", kind, want, probe)
	}
	host.Within(t, func() error { return podnet.Check(c) })
	answer(t, host, p, "10.65.0.2:7000")
	teardown(t, host, c)
	wantNothing(t, host, p, c)
}
