package podnet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

func sorted(s []string) []string { slices.Sort(s); return s }

// node makes a namespace that looks like the golden files' node before ADD: eth0 to an underlay, and a default route.
func node(t *testing.T) *netnstest.NS {
	t.Helper()
	host, underlay := netnstest.New(t), netnstest.New(t)
	defaults(t, host)
	err := host.Conn.AddVeth(netlinkx.Veth{
		Name: "eth0", TxQueueLen: 1000, PeerName: "node", PeerNamespace: underlay.Namespace, PeerTxQueueLen: 1000, Queues: 2,
	})
	errtest.Must(t, err)
	host.Up(t, "eth0")
	underlay.Up(t, "node")
	host.Addr(t, "eth0", "10.250.9.9/16")
	underlay.Addr(t, "node", "10.250.0.1/16")
	host.Route(t, "0.0.0.0/0", "10.250.0.1", "eth0")
	return host
}

// pod makes a pod's namespace.
func pod(t *testing.T) *netnstest.NS {
	ns := netnstest.New(t)
	defaults(t, ns)
	return ns
}

// defaults sets the kernel's IPv4 defaults in a namespace: a new one starts with the machine's.
func defaults(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	ns.Within(t, func() error {
		errs := []error{sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "0")}
		for _, name := range []string{"proxy_arp", "route_localnet", "rp_filter"} {
			for _, link := range []string{"all", "default", "lo"} {
				errs = append(errs, sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", link, name}, "0"))
			}
		}
		return errors.Join(errs...)
	})
}

// config is a pod with one IPv4 address, in the shape of the golden run.
func config(p *netnstest.NS, name, addr string) podnet.Config {
	return podnet.Config{
		Netns: p.Path(), IfName: "eth0", HostVeth: podnet.HostVethName("cali", "golden", name),
		Addresses: []netip.Addr{netip.MustParseAddr(addr)}, MTU: 1480,
	}
}

func setup(t *testing.T, host *netnstest.NS, c podnet.Config) podnet.Result {
	t.Helper()
	var r podnet.Result
	host.Within(t, func() (err error) {
		r, err = podnet.Setup(t.Context(), c)
		return err
	})
	return r
}

func setupErr(t *testing.T, host *netnstest.NS, c podnet.Config) error {
	t.Helper()
	return host.Do(func() error {
		_, err := podnet.Setup(t.Context(), c)
		return err
	})
}

func teardown(t *testing.T, host *netnstest.NS, c podnet.Config) {
	t.Helper()
	host.Within(t, func() error {
		_, err := podnet.Teardown(t.Context(), c)
		return err
	})
}

func teardownErr(ctx context.Context, host *netnstest.NS, c podnet.Config) error {
	return host.Do(func() error {
		_, err := podnet.Teardown(ctx, c)
		return err
	})
}

func TestHostVethName(t *testing.T) {
	for _, tt := range []struct{ prefix, namespace, pod, want string }{
		{"cali", "default", "test-pod", "cali7fba7a35b74"},
		{"cali", "golden", "web-1", "calie4cf1310d2b"}, // what the real plugin called it
		{"x", "default", "test-pod", "x7fba7a35b74"},
	} {
		if got := podnet.HostVethName(tt.prefix, tt.namespace, tt.pod); got != tt.want {
			t.Errorf("HostVethName(%q, %q, %q) = %s, want %s", tt.prefix, tt.namespace, tt.pod, got, tt.want)
		}
	}
}

func TestSameAsCalico(t *testing.T) {
	host, p := node(t), pod(t)
	wantDump(t, host, "before-host.txt")
	hostBefore, podBefore := parameters(t, host), parameters(t, p)

	c := config(p, "web-1", "192.168.154.1")
	got := setup(t, host, c)
	wantDump(t, host, "after-add-host.txt")
	wantDump(t, p, "after-add-pod.txt")
	for file, text := range map[string]string{
		"sysctl-changes-add-host.txt": changes(hostBefore, parameters(t, host), c.HostVeth),
		"sysctl-changes-add-pod.txt":  changes(podBefore, parameters(t, p), "eth0"),
	} {
		if diff := cmp.Diff(goldenChanges(t, file), text); diff != "" {
			t.Errorf("parameters differ from %s (-Calico +here):\n%s", file, diff)
		}
	}
	want := podnet.Result{HostVeth: "calie4cf1310d2b", MAC: p.Link(t, "eth0").HardwareAddr, MTU: 1480}
	difftest.Want(t, "result", want, got)

	teardown(t, host, c)
	wantDump(t, host, "after-del-host.txt")
	wantDump(t, p, "after-del-pod.txt")
}

// TestTraffic sends through the pod's gateway: to the node, to another pod, and back to the pod, in both families.
func TestTraffic(t *testing.T) {
	host, a, b := node(t), pod(t), pod(t)
	ca, cb := config(a, "a", "10.65.0.2"), config(b, "b", "10.65.0.3")
	ca.Addresses = append(ca.Addresses, netip.MustParseAddr("fd00:65::2"))
	cb.Addresses = append(cb.Addresses, netip.MustParseAddr("fd00:65::3"))
	setup(t, host, ca)
	setup(t, host, cb)
	host.Addr(t, "lo", "fd00:9::9/128")
	host.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1")
	})

	host.EchoUDP(t, "10.250.9.9:7000")
	host.EchoUDP(t, "[fd00:9::9]:7000")
	b.EchoUDP(t, "10.65.0.3:7000")
	b.EchoUDP(t, "[fd00:65::3]:7000")
	for _, tt := range []struct {
		name     string
		from     *netnstest.NS
		to, want string
	}{
		{"pod to node", a, "10.250.9.9:7000", "10.65.0.2 hello"},
		{"pod to pod", a, "10.65.0.3:7000", "10.65.0.2 hello"},
		{"node to pod", host, "10.65.0.3:7000", "10.250.9.9 hello"},
		{"pod to node, IPv6", a, "[fd00:9::9]:7000", "fd00:65::2 hello"},
		{"pod to pod, IPv6", a, "[fd00:65::3]:7000", "fd00:65::2 hello"},
	} {
		if got, err := tt.from.AskUDP(t, "", tt.to, "hello", 5*time.Second); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
	if err := a.SendTCP(t, b, "10.65.0.3:7001"); err != nil {
		t.Error(err)
	}
}

func TestGatewayNeedsARouteOnTheNode(t *testing.T) {
	// The reason for the package comment's warning, and for a diagnosis: without a default route the pod's gateway does
	// not answer.
	host, p := netnstest.New(t), pod(t)
	netnstest.Cable(t, host, "eth0", host, "eth1")
	host.Addr(t, "eth0", "10.250.9.9/16")
	setup(t, host, config(p, "a", "10.65.0.2"))
	host.EchoUDP(t, "10.250.9.9:7000")
	if got, err := p.AskUDP(t, "", "10.250.9.9:7000", "hello", 500*time.Millisecond); err == nil {
		t.Fatalf("answer %q without a default route", got)
	}
	host.Route(t, "169.254.1.1/32", "", "eth0")
	if _, err := p.AskUDP(t, "", "10.250.9.9:7000", "hello", 5*time.Second); err != nil {
		t.Error(err)
	}
}

func TestDualStack(t *testing.T) {
	host, p := node(t), pod(t)
	p.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "default", "disable_ipv6"}, "1")
	})
	c := config(p, "web-1", "10.65.0.2")
	c.Addresses = append(c.Addresses, netip.MustParseAddr("fd00:65::2"))
	c.AllowIPForwarding = true
	setup(t, host, c)

	index := p.Link(t, "eth0").Index
	addrs, err := p.Conn.Addrs(index, netlinkx.FamilyAll)
	errtest.Must(t, err)
	for _, want := range []string{"10.65.0.2/32", "fd00:65::2/128"} {
		if !slices.Contains(addrs, netlinkx.Addr{Prefix: netip.MustParsePrefix(want), Link: index}) {
			t.Errorf("pod's addresses %v lack %s, ready to use", addrs, want)
		}
	}
	routes := p.Run(t, "ip", "-6", "route", "show", "default")
	if want := "default via fe80::ecee:eeff:feee:eeee dev eth0"; !strings.Contains(routes, want) {
		t.Errorf("pod's IPv6 routes lack %q:\n%s", want, routes)
	}
	routes = host.Run(t, "ip", "-6", "route", "show", "fd00:65::2")
	if want := "fd00:65::2 dev " + c.HostVeth + " metric 1024"; !strings.Contains(routes, want) {
		t.Errorf("node's IPv6 routes lack %q:\n%s", want, routes)
	}
	wantParameters(t, host, map[string]string{
		"ipv4.conf.V.forwarding": "1", "ipv4.conf.V.proxy_arp": "1", "ipv4.conf.V.route_localnet": "0", "ipv4.conf.V.rp_filter": "1",
		"ipv4.neigh.V.proxy_delay": "0",
		"ipv6.conf.V.accept_dad":   "0", "ipv6.conf.V.disable_ipv6": "0", "ipv6.conf.V.proxy_ndp": "1", "ipv6.conf.V.forwarding": "1",
		"ipv6.conf.V.accept_ra": "0",
	}, c.HostVeth)
	wantParameters(t, p, map[string]string{
		"ipv4.ip_forward": "1", "ipv6.conf.all.forwarding": "1", "ipv6.conf.V.accept_dad": "0",
		"ipv6.conf.all.disable_ipv6": "0", "ipv6.conf.default.disable_ipv6": "0", "ipv6.conf.lo.disable_ipv6": "0",
	}, "eth0")
}

// wantParameters compares parameters below net, with V for the link.
func wantParameters(t *testing.T, ns *netnstest.NS, want map[string]string, link string) {
	t.Helper()
	have := parameters(t, ns)
	for key, value := range want {
		key = "net." + strings.Replace(key, ".V.", "."+link+".", 1)
		if have[key] != value {
			t.Errorf("%s = %q, want %q", key, have[key], value)
		}
	}
}

func TestOptions(t *testing.T) {
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	c.MAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x0b}
	c.Queues = 3
	c.MTU = 0
	c.Routes = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/8")}
	got := setup(t, host, c)
	difftest.Want(t, "result", podnet.Result{HostVeth: c.HostVeth, MAC: c.MAC, MTU: 1500}, got)
	for _, l := range []netlinkx.Link{host.Link(t, c.HostVeth), p.Link(t, "eth0")} {
		if l.TxQueues != 3 || l.RxQueues != 3 || l.MTU != 1500 {
			t.Errorf("%s: %d and %d queues, mtu %d; want 3, 3, 1500", l.Name, l.TxQueues, l.RxQueues, l.MTU)
		}
	}
	want := "10.96.0.0/12 via 169.254.1.1 dev eth0 \n169.254.1.1 dev eth0 scope link \n"
	difftest.Want(t, "pod's routes", want, p.Run(t, "ip", "route"))
}

func TestSetupAgain(t *testing.T) {
	host, first, second := node(t), pod(t), pod(t)
	setup(t, host, config(first, "web-1", "10.65.0.2"))
	before := host.Link(t, podnet.HostVethName("cali", "golden", "web-1"))

	// The same pod in a new sandbox, with a new address, while the old one still stands.
	c := config(second, "web-1", "10.65.0.3")
	setup(t, host, c)
	if after := host.Link(t, c.HostVeth); after.Index == before.Index {
		t.Error("the leftover link was kept")
	}
	if _, err := first.Conn.LinkByName("eth0"); !netlinkx.IsNotExist(err) {
		t.Errorf("interface of the old sandbox: %v, want none", err)
	}
	want := "10.65.0.3 dev " + c.HostVeth + " scope link \n"
	if got := host.Run(t, "ip", "route", "show", "root", "10.65.0.0/24"); got != want {
		t.Errorf("node's routes to pods:\n%swant:\n%s", got, want)
	}
	// The same sandbox again.
	setup(t, host, c)
	host.Within(t, func() error { return podnet.Check(c) })
}

func TestRouteThatIsThereAlready(t *testing.T) {
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	veth := make(chan error, 1)
	wake, err := host.Conn.Subscribe(t.Context(), netlinkx.LinkEvents)
	errtest.Must(t, err)
	// Felix, which also programs pods' routes, may be faster: add the route as soon as the link is there and up.
	go func() {
		for range wake {
			l, err := host.Conn.LinkByName(c.HostVeth)
			if err != nil || !l.Up {
				continue
			}
			veth <- host.Conn.AddRoute(netlinkx.Route{
				Dst: netip.MustParsePrefix("10.65.0.2/32"), Dev: l.Index, Scope: netlinkx.ScopeLink, Protocol: netlinkx.ProtocolFelix,
			})
			return
		}
	}()
	setup(t, host, c)
	if err := <-veth; err != nil && !netlinkx.IsExist(err) {
		t.Fatal(err)
	}
	want := "10.65.0.2 dev " + c.HostVeth
	if got := host.Run(t, "ip", "route", "show", "root", "10.65.0.0/24"); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("node's routes to pods:\n%swant one that begins:\n%s", got, want)
	}
}

func TestRouteOfALivePod(t *testing.T) {
	host, old, p := node(t), pod(t), pod(t)
	setup(t, host, config(old, "old", "10.65.0.2"))
	oldVeth := podnet.HostVethName("cali", "golden", "old")
	c := config(p, "new", "10.65.0.2")
	err := setupErr(t, host, c)
	if err == nil || !strings.Contains(err.Error(), oldVeth) || !strings.Contains(err.Error(), "10.65.0.2") {
		t.Fatalf("Setup with a live pod's address: %v, want an error that names %s", err, oldVeth)
	}
	wantNothing(t, host, p, c)
	want := "10.65.0.2 dev " + oldVeth + " scope link \n"
	if got := host.Run(t, "ip", "route", "show", "root", "10.65.0.0/24"); got != want {
		t.Errorf("node's routes to pods:\n%swant:\n%s", got, want)
	}
}

func TestRouteOfAnotherKind(t *testing.T) {
	for name, r := range map[string]netlinkx.Route{
		"unreachable":      {Type: netlinkx.Unreachable, Protocol: 84},
		"through the node": {Via: netip.MustParseAddr("10.250.0.1")},
	} {
		host, p := node(t), pod(t)
		r.Dst = netip.MustParsePrefix("10.65.0.2/32")
		if r.Via.IsValid() {
			r.Dev = host.Link(t, "eth0").Index
		}
		errtest.Must(t, host.Conn.AddRoute(r))
		c := config(p, "new", "10.65.0.2")
		if err := setupErr(t, host, c); err == nil || !strings.Contains(err.Error(), "10.65.0.2") {
			t.Errorf("%s: %v, want an error that names the address", name, err)
		}
		wantNothing(t, host, p, c)
	}
}

// wantNothing checks that neither end of a pod's veth is there.
func wantNothing(t *testing.T, host, p *netnstest.NS, c podnet.Config) {
	t.Helper()
	if l, err := host.Conn.LinkByName(c.HostVeth); !netlinkx.IsNotExist(err) {
		t.Errorf("left behind on the node: %+v, %v", l, err)
	}
	if l, err := p.Conn.LinkByName(c.IfName); !netlinkx.IsNotExist(err) {
		t.Errorf("left behind in the pod: %+v, %v", l, err)
	}
}

// TestRouteOfADeadPod gives a new pod the address of one with an ended namespace, before the kernel has removed its
// link.
func TestRouteOfADeadPod(t *testing.T) {
	for attempt := range 10 {
		host, p := node(t), pod(t)
		var logged strings.Builder
		c := config(p, "new", "10.65.0.2")
		c.Log = slog.New(slog.NewTextHandler(&logged, nil))
		veth := netnstest.Dying(t, host, "caliold", func(ns *netlinkx.Namespace) {
			old := c
			old.Netns, old.HostVeth, old.Log = ns.Path(), "caliold", nil
			setup(t, host, old)
		})
		err := setupErr(t, host, c)
		if err != nil {
			t.Fatalf("attempt %d: address of a pod whose namespace is gone: %v", attempt, err)
		}
		want := "10.65.0.2 dev " + c.HostVeth + " scope link \n"
		if got := host.Run(t, "ip", "route", "show", "root", "10.65.0.0/24"); got != want {
			t.Errorf("node's routes to pods:\n%swant:\n%s", got, want)
		}
		if strings.Contains(logged.String(), "taking over the route") && strings.Contains(logged.String(), veth+" (veth") {
			return // the kernel still had the old route: the case this test is about
		}
	}
	t.Fatal("the kernel always removed the old link before Setup met its route")
}

func TestTeardown(t *testing.T) {
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	setup(t, host, c)
	teardown(t, host, c)
	wantNothing(t, host, p, c)
	teardown(t, host, c) // no interface

	plain := filepath.Join(t.TempDir(), "unmounted")
	errtest.Must(t, os.WriteFile(plain, nil, 0o444))
	setup(t, host, c)
	for _, path := range []string{"", "/var/run/netns/no-such-namespace", plain} {
		c := c
		c.Netns = path
		teardown(t, host, c)
		// The sandbox is not known, so the link of that name may be a newer sandbox's.
		if err := host.Do(func() error { return podnet.Check(config(p, "web-1", "10.65.0.2")) }); err != nil {
			t.Errorf("teardown with namespace path %q touched a live pod: %v", path, err)
		}
	}
}

func TestTeardownOfADeadPod(t *testing.T) {
	for range 10 {
		host := node(t)
		veth := netnstest.Dying(t, host, "caliold", nil)
		if _, err := host.Conn.LinkByName(veth); err != nil {
			continue // the kernel was faster
		}
		teardown(t, host, podnet.Config{IfName: "eth0", HostVeth: veth})
		if _, err := host.Conn.LinkByName(veth); !netlinkx.IsNotExist(err) {
			t.Errorf("node's end after Teardown: %v, want none", err)
		}
		return
	}
	t.Fatal("the kernel cleaned up every namespace before it could be looked at")
}

func TestTeardownHasADeadline(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	host, p := node(t), pod(t)
	c := config(p, "web-1", "10.65.0.2")
	setup(t, host, c)
	err := teardownErr(ctx, host, c)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Teardown with a context that has ended: %v", err)
	}
}

func TestSetupUndoesHalf(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, host, p *netnstest.NS, c *podnet.Config){
		"kernel parameters can't be written": func(t *testing.T, _, _ *netnstest.NS, c *podnet.Config) { c.Sysctl = sysctl.Root(t.TempDir()) },
		"pod has a default route": func(t *testing.T, _, p *netnstest.NS, _ *podnet.Config) {
			netnstest.Cable(t, p, "net1", p, "net2")
			p.Route(t, "0.0.0.0/0", "", "net1")
		},
		"node has another route to the address": func(t *testing.T, host, _ *netnstest.NS, _ *podnet.Config) {
			host.Route(t, "10.65.0.2/32", "", "eth0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			host, p := node(t), pod(t)
			c := config(p, "web-1", "10.65.0.2")
			spoil(t, host, p, &c)
			before := normalize(dump(t, host))
			if err := setupErr(t, host, c); err == nil {
				t.Fatal("Setup succeeded")
			}
			wantNothing(t, host, p, c)
			if diff := cmp.Diff(before, normalize(dump(t, host))); diff != "" {
				t.Errorf("node before and after (-before +after):\n%s", diff)
			}
		})
	}
}

func TestInterfaceNameTaken(t *testing.T) {
	host, p := node(t), pod(t)
	netnstest.Cable(t, p, "eth0", p, "other")
	c := config(p, "web-1", "10.65.0.2")
	err := setupErr(t, host, c)
	if !errtest.Names(err, "eth0") {
		t.Errorf("Setup into a namespace with an eth0: %v", err)
	}
	if _, err := host.Conn.LinkByName(c.HostVeth); !netlinkx.IsNotExist(err) {
		t.Errorf("left behind on the node: %v", err)
	}
	p.Link(t, "eth0") // somebody else's, still there
}

func TestBadConfig(t *testing.T) {
	host, p := node(t), pod(t)
	v6 := netip.MustParseAddr("fd00:65::2")
	for want, change := range map[string]func(*podnet.Config){
		"addresses empty":          func(c *podnet.Config) { c.Addresses = nil },
		"addresses \"invalid IP\"": func(c *podnet.Config) { c.Addresses = []netip.Addr{{}} },
		"addresses \"fe80::1\"":    func(c *podnet.Config) { c.Addresses = []netip.Addr{netip.MustParseAddr("fe80::1")} },
		"addresses 10.65.0.2":      func(c *podnet.Config) { c.Addresses = append(c.Addresses, c.Addresses[0]) },
		"mtu 70000":                func(c *podnet.Config) { c.MTU = 70000 },
		"mtu 1000 1280":            func(c *podnet.Config) { c.MTU, c.Addresses = 1000, append(c.Addresses, v6) },
		"mac 01:00:00:00:00:01":    func(c *podnet.Config) { c.MAC = net.HardwareAddr{1, 0, 0, 0, 0, 1} },
		"queues -1":                func(c *podnet.Config) { c.Queues = -1 },
		"no such file":             func(c *podnet.Config) { c.Netns = "/var/run/netns/no-such-namespace" },
		"/proc/self/ns/mnt":        func(c *podnet.Config) { c.Netns = "/proc/self/ns/mnt" },
		"node's own":               func(c *podnet.Config) { c.Netns = host.Path() },
		"\"calico0123456789\" 15":  func(c *podnet.Config) { c.HostVeth = "calico0123456789" },
		"link name \"\"":           func(c *podnet.Config) { c.IfName = "" },
		"link name \"a/b\" '/'":    func(c *podnet.Config) { c.IfName = "a/b" },
		"link name \"eth 0\"":      func(c *podnet.Config) { c.IfName = "eth 0" },
	} {
		c := config(p, "web-1", "10.65.0.2")
		change(&c)
		if err := setupErr(t, host, c); !errtest.Names(err, want) {
			t.Errorf("Setup = %v, want an error with %q", err, want)
		}
	}
	wantNothing(t, host, p, config(p, "web-1", "10.65.0.2"))
}

func TestCheck(t *testing.T) {
	pfx := netip.MustParsePrefix
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, host, p *netnstest.NS, c *podnet.Config)
		want  string // "" for no error
	}{
		{"as set up", func(*testing.T, *netnstest.NS, *netnstest.NS, *podnet.Config) {}, ""},
		{"MTU", func(t *testing.T, _, p *netnstest.NS, _ *podnet.Config) { p.Conn.SetMTU(p.Link(t, "eth0").Index, 1400) }, "mtu eth0 1400 1480"},
		{"host link down", func(t *testing.T, h, _ *netnstest.NS, c *podnet.Config) { h.Conn.SetDown(h.Link(t, c.HostVeth).Index) }, "down"},
		{"address", func(t *testing.T, _, p *netnstest.NS, _ *podnet.Config) {
			p.Conn.DeleteAddr(p.Link(t, "eth0").Index, pfx("10.65.0.2/32"))
		}, "eth0 address 10.65.0.2/32"},
		{"pod's route", func(t *testing.T, _, p *netnstest.NS, _ *podnet.Config) { p.Run(t, "ip", "route", "del", "default") },
			"pod route 0.0.0.0/0 eth0"},
		{"node's route", func(t *testing.T, h, _ *netnstest.NS, _ *podnet.Config) { h.Run(t, "ip", "route", "del", "10.65.0.2") },
			"node route 10.65.0.2/32"},
		{"parameter", func(t *testing.T, h, _ *netnstest.NS, c *podnet.Config) {
			h.Within(t, func() error {
				return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", c.HostVeth, "proxy_arp"}, "0")
			})
		}, "\"0\" \"1\""},
		{"MAC", func(_ *testing.T, _, _ *netnstest.NS, c *podnet.Config) { c.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 9} }, "02:00:00:00:00:09"},
		{"no interface", func(t *testing.T, _, p *netnstest.NS, _ *podnet.Config) { p.Conn.DeleteLink(p.Link(t, "eth0").Index) }, "not found"},
		{"another pod's link", func(t *testing.T, h, _ *netnstest.NS, c *podnet.Config) {
			setup(t, h, config(pod(t), "other", "10.65.0.9"))
			c.HostVeth = podnet.HostVethName("cali", "golden", "other")
		}, podnet.HostVethName("cali", "golden", "other") + " eth0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, p := node(t), pod(t)
			c := config(p, "web-1", "10.65.0.2")
			setup(t, host, c)
			tt.spoil(t, host, p, &c)
			err := host.Do(func() error { return podnet.Check(c) })
			if tt.want == "" && err != nil || tt.want != "" && !errtest.Names(err, tt.want) {
				t.Errorf("Check = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestStorm sets up and takes down many pods at once, like a returning node.
func TestStorm(t *testing.T) {
	host := node(t)
	const pods = 40
	configs := make([]podnet.Config, pods)
	var wg sync.WaitGroup
	for i := range pods {
		configs[i] = config(pod(t), fmt.Sprint("web-", i), fmt.Sprintf("10.65.1.%d", i))
		wg.Go(func() {
			if err := setupErr(t, host, configs[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range configs {
		host.Within(t, func() error { return podnet.Check(c) })
	}
	for _, c := range configs {
		wg.Go(func() {
			if err := teardownErr(t.Context(), host, c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := host.Run(t, "ip", "route", "show", "root", "10.65.0.0/16"); got != "" {
		t.Errorf("routes left:\n%s", got)
	}
}

// BenchmarkSetup sets up one pod after the other, in one family and in both; taking them down is not measured.
func BenchmarkSetup(b *testing.B) {
	for name, more := range map[string][]netip.Addr{"IPv4": nil, "dual stack": {netip.MustParseAddr("fd00:65::2")}} {
		b.Run(name, func(b *testing.B) {
			host := netnstest.New(b)
			for b.Loop() {
				b.StopTimer()
				c := config(netnstest.New(b), "web-1", "10.65.0.2")
				c.Alias = podnet.Alias("net.c1", "eth0")
				c.Addresses = append(c.Addresses, more...)
				b.StartTimer()
				err := host.Do(func() error {
					_, err := podnet.Setup(b.Context(), c)
					return err
				})
				b.StopTimer()
				errtest.Must(b, err)
				errtest.Must(b, host.Conn.DeleteLink(host.Link(b, c.HostVeth).Index))
				b.StartTimer()
			}
		})
	}
}

// BenchmarkTeardown takes pods down. Some 20 ms of it are the kernel's (RCU).
func BenchmarkTeardown(b *testing.B) {
	host := netnstest.New(b)
	for b.Loop() {
		b.StopTimer()
		c := config(netnstest.New(b), "web-1", "10.65.0.2")
		c.Alias = podnet.Alias("net.c1", "eth0")
		host.Within(b, func() error {
			_, err := podnet.Setup(b.Context(), c)
			return err
		})
		b.StartTimer()
		host.Within(b, func() error {
			_, err := podnet.Teardown(b.Context(), c)
			return err
		})
	}
}
