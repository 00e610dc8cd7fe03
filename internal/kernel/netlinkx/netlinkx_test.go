package netlinkx_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

var (
	macA = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	macB = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x0b}
)

func TestVethInOneMessage(t *testing.T) {
	host, pod := netnstest.New(t), netnstest.New(t)
	err := host.Conn.AddVeth(netlinkx.Veth{
		Name: "cali.0", HardwareAddr: macA, MTU: 1480, Queues: 2, TxQueueLen: 0,
		PeerName: "eth0", PeerNamespace: pod.Namespace, PeerHardwareAddr: macB, PeerTxQueueLen: 1000,
	})
	errtest.Must(t, err)
	near, far := host.Link(t, "cali.0"), pod.Link(t, "eth0")
	want := netlinkx.Link{
		Index: near.Index, Name: "cali.0", Kind: "veth", MTU: 1480, Down: true, HardwareAddr: macA, TxQueues: 2, RxQueues: 2,
		PeerIndex: far.Index, Peer: netlinkx.PeerElsewhere,
	}
	difftest.Want(t, "near end", want, near, cmpopts.IgnoreUnexported(netlinkx.Link{}))
	want.Index, want.Name, want.HardwareAddr, want.PeerIndex = far.Index, "eth0", macB, near.Index
	difftest.Want(t, "far end", want, far, cmpopts.IgnoreUnexported(netlinkx.Link{}))

	links, err := host.Conn.Links()
	errtest.Must(t, err)
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	// A kernel with tunnels built in puts fallback devices into every namespace.
	names = slices.DeleteFunc(names, func(n string) bool { return n != "lo" && n != "cali.0" && n != "eth0" })
	difftest.Want(t, "links of the near namespace", []string{"cali.0", "lo"}, names)

	err = host.Conn.AddVeth(netlinkx.Veth{Name: "cali.0", PeerName: "eth1", PeerNamespace: pod.Namespace})
	if !netlinkx.IsExist(err) {
		t.Errorf("second veth of that name: %v, want IsExist", err)
	}
	errtest.Must(t, host.Conn.DeleteLink(near.Index))
	if _, err := pod.Conn.LinkByName("eth0"); !netlinkx.IsNotExist(err) {
		t.Errorf("far end after deletion: %v, want IsNotExist", err)
	}
}

func TestChangeLink(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "a", ns, "b")
	a := ns.Link(t, "a")
	if a.Peer != netlinkx.PeerHere || a.PeerIndex != ns.Link(t, "b").Index {
		t.Errorf("peer of a: place %v index %d, want PeerHere and b's index", a.Peer, a.PeerIndex)
	}
	steps := []func() error{
		func() error { return ns.Conn.SetDown(a.Index) },
		func() error { return ns.Conn.SetMTU(a.Index, 1400) },
		func() error { return ns.Conn.SetHardwareAddr(a.Index, macB) },
	}
	for _, step := range steps {
		errtest.Must(t, step())
	}
	got, err := ns.Conn.LinkByIndex(a.Index)
	errtest.Must(t, err)
	if got.Up || got.MTU != 1400 || got.HardwareAddr.String() != macB.String() {
		t.Errorf("after the changes: %+v", got)
	}
}

// TestLinkTo: one link-local address is on several links, and its zone names one.
func TestLinkTo(t *testing.T) {
	ns := netnstest.New(t)
	for i := range 2 {
		netnstest.Cable(t, ns, fmt.Sprint("eth", i), ns, fmt.Sprint("far", i))
		ns.Addr(t, fmt.Sprint("eth", i), fmt.Sprintf("2001:db8:%d::1/64", i))
	}
	for to, want := range map[string]string{"2001:db8:1::2": "eth1", "fe80::1%eth0": "eth0", "fe80::1%eth1": "eth1"} {
		if got, err := ns.Conn.LinkTo(netip.MustParseAddr(to)); err != nil || got != ns.Link(t, want).Index {
			t.Errorf("%s: link %d, %v, want that of %s", to, got, err, want)
		}
	}
	if _, err := ns.Conn.LinkTo(netip.MustParseAddr("fe80::1%eth9")); !netlinkx.IsNotExist(err) {
		t.Errorf("on a link that is not there: %v", err)
	}
}

func TestMissingThings(t *testing.T) {
	c := netnstest.New(t).Conn
	const nowhere = 4711
	errs := map[string]error{
		"link by name":  second(c.LinkByName("nowhere")),
		"link by index": second(c.LinkByIndex(nowhere)),
		"set":           c.SetUp(nowhere),
		"delete link":   c.DeleteLink(nowhere),
		"delete addr":   c.DeleteAddr(1, netip.MustParsePrefix("192.0.2.1/32")),
		"delete route":  c.DeleteRoute(netlinkx.Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Type: netlinkx.Unreachable}),
	}
	for what, err := range errs {
		if !netlinkx.IsNotExist(err) {
			t.Errorf("%s: %v, want IsNotExist", what, err)
		}
	}
	for _, name := range []string{"", "..", "a/b", "a b", "sixteen-chars-xx"} {
		if _, err := c.LinkByName(name); err == nil || netlinkx.IsNotExist(err) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("LinkByName(%q) = %v, want an error about the name", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestAddresses(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "a", ns, "b")
	a := ns.Link(t, "a")
	want := []netlinkx.Addr{
		{Prefix: netip.MustParsePrefix("10.1.2.3/32"), Link: a.Index},
		{Prefix: netip.MustParsePrefix("10.9.9.9/24"), Link: a.Index},
	}
	for _, w := range want {
		errtest.Must(t, ns.Conn.AddUniqueAddr(a.Index, w.Prefix))
		if err := ns.Conn.AddUniqueAddr(a.Index, w.Prefix); !netlinkx.IsExist(err) {
			t.Errorf("second add of %s: %v, want IsExist", w.Prefix, err)
		}
	}
	got, err := ns.Conn.Addrs(a.Index, netlinkx.IPv4)
	errtest.Must(t, err)
	difftest.Want(t, "addresses", want, got)
	errtest.Must(t, ns.Conn.DeleteAddr(a.Index, want[0].Prefix))
	all, err := ns.Conn.Addrs(0, netlinkx.FamilyAll)
	errtest.Must(t, err)
	var text []string
	for _, a := range all {
		text = append(text, a.Prefix.String())
	}
	for _, p := range []string{"127.0.0.1/8", "::1/128", "10.9.9.9/24"} {
		if !slices.Contains(text, p) {
			t.Errorf("list of all addresses %q lacks %s", text, p)
		}
	}
	if slices.Contains(text, "10.1.2.3/32") {
		t.Errorf("list of all addresses %q has what was deleted", text)
	}
}

// scratchRoutes makes a namespace with a link "a" (10.0.0.1/24, 2001:db8::1/64) that routes can use.
func scratchRoutes(t *testing.T) (*netnstest.NS, netlinkx.Link) {
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "a", ns, "b")
	ns.Addr(t, "a", "10.0.0.1/24")
	ns.Addr(t, "a", "2001:db8::1/64")
	return ns, ns.Link(t, "a")
}

func TestRoutesRoundTrip(t *testing.T) {
	ns, a := scratchRoutes(t)
	const own, main = netlinkx.Protocol(84), netlinkx.TableMain
	pfx, addr := netip.MustParsePrefix, netip.MustParseAddr
	want := []netlinkx.Route{
		{Dst: pfx("0.0.0.0/0"), Via: addr("10.0.0.254"), Dev: a.Index, Type: netlinkx.Unicast},
		{Dst: pfx("10.2.0.0/26"), Via: addr("192.0.2.7"), Dev: a.Index, Onlink: true, Type: netlinkx.Unicast},
		{Dst: pfx("10.2.0.64/26"), Type: netlinkx.Unreachable, Metric: 7},
		{Dst: pfx("10.2.0.128/26"), Type: netlinkx.Blackhole},
		{Dst: pfx("10.2.1.1/32"), Dev: a.Index, Scope: netlinkx.ScopeLink, Src: addr("10.0.0.1"), Type: netlinkx.Unicast},
		{Dst: pfx("2001:db8:1::/122"), Via: addr("fe80::1"), Dev: a.Index, Metric: 1024, Type: netlinkx.Unicast},
		{Dst: pfx("2001:db8:2::/122"), Type: netlinkx.Unreachable, Metric: 1024},
		{Dst: pfx("2001:db8:3::/122"), Via: addr("2001:db8:ffff::1"), Dev: a.Index, Onlink: true, Metric: 12, Type: netlinkx.Unicast},
	}
	for i := range want {
		want[i].Protocol, want[i].Table = own, main
		errtest.Must(t, ns.Conn.AddRoute(want[i]))
		if err := ns.Conn.AddRoute(want[i]); !netlinkx.IsExist(err) {
			t.Errorf("second add of %s: %v, want IsExist", want[i], err)
		}
	}
	got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: own})
	errtest.Must(t, err)
	byDst := cmpopts.SortSlices(func(x, y netlinkx.Route) bool { return x.Dst.String() < y.Dst.String() })
	difftest.Want(t, "own routes", want, got, byDst)
	for _, r := range want {
		if err := ns.Conn.DeleteRoute(r); err != nil {
			t.Error(err)
		}
	}
	if got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: own}); err != nil || len(got) != 0 {
		t.Errorf("own routes after deletion: %v, %v", got, err)
	}
}

func TestRouteFilters(t *testing.T) {
	ns, a := scratchRoutes(t)
	pfx := netip.MustParsePrefix
	add := []netlinkx.Route{
		{Dst: pfx("10.2.0.0/26"), Protocol: 84, Dev: a.Index, Scope: netlinkx.ScopeLink},
		{Dst: pfx("10.3.0.0/26"), Protocol: 12, Dev: a.Index, Scope: netlinkx.ScopeLink},
		{Dst: pfx("10.4.0.0/26"), Protocol: 84, Table: 1000, Dev: a.Index, Scope: netlinkx.ScopeLink},
		{Dst: pfx("10.5.0.0/26"), Protocol: 84, Type: netlinkx.Unreachable},
	}
	for _, r := range add {
		errtest.Must(t, ns.Conn.AddRoute(r))
	}
	for _, tt := range []struct {
		name   string
		filter netlinkx.RouteFilter
		want   []string
	}{
		{"protocol", netlinkx.RouteFilter{Protocol: 84}, []string{"10.2.0.0/26", "10.5.0.0/26"}},
		{"family and protocol", netlinkx.RouteFilter{Family: netlinkx.IPv6, Protocol: 84}, nil},
		{"device", netlinkx.RouteFilter{Family: netlinkx.IPv4, Dev: a.Index}, []string{"10.0.0.0/24", "10.2.0.0/26", "10.3.0.0/26"}},
		{"table beyond 255", netlinkx.RouteFilter{Table: 1000}, []string{"10.4.0.0/26"}},
		{"table that never had a route", netlinkx.RouteFilter{Table: 1001}, nil},
	} {
		got, err := ns.Conn.Routes(tt.filter)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		var dsts []string
		for _, r := range got {
			dsts = append(dsts, r.Dst.String())
		}
		slices.Sort(dsts)
		difftest.Want(t, tt.name, tt.want, dsts)
	}
}

func TestRoutesOfUntouchedNamespace(t *testing.T) {
	ns, err := netnstest.NewNamespace()
	errtest.Must(t, err)
	defer ns.Close()
	c, err := netlinkx.OpenAt(ns)
	errtest.Must(t, err)
	defer c.Close()
	// Not even lo is up: the kernel has not made the main table yet.
	if got, err := c.Routes(netlinkx.RouteFilter{}); err != nil || len(got) != 0 {
		t.Errorf("routes = %v, %v; want none", got, err)
	}
}

func TestReplaceRoute(t *testing.T) {
	ns, a := scratchRoutes(t)
	r := netlinkx.Route{
		Dst: netip.MustParsePrefix("10.2.0.0/26"), Via: netip.MustParseAddr("10.0.0.2"), Dev: a.Index,
		Protocol: 84, Table: netlinkx.TableMain, Type: netlinkx.Unicast,
	}
	for _, via := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.3"} {
		r.Via = netip.MustParseAddr(via)
		errtest.Must(t, ns.Conn.ReplaceRoute(r))
		got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84})
		errtest.Must(t, err)
		difftest.Want(t, "", []netlinkx.Route{r}, got)
	}
}

// TestSeveralNextHops: in both families, one at a time and in batches.
func TestSeveralNextHops(t *testing.T) {
	ns, a := scratchRoutes(t)
	addr := netip.MustParseAddr
	want := []netlinkx.Route{
		{Dst: netip.MustParsePrefix("10.7.0.0/24"), Metric: 9, Hops: []netlinkx.Hop{
			{Via: addr("10.0.0.3"), Dev: a.Index, Weight: 1}, {Via: addr("10.0.0.2"), Dev: a.Index, Weight: 3},
			{Via: addr("192.0.2.9"), Dev: a.Index, Onlink: true, Weight: 1},
		}},
		{Dst: netip.MustParsePrefix("fd00:7::/64"), Metric: 1024, Hops: []netlinkx.Hop{
			{Via: addr("2001:db8::2"), Dev: a.Index, Weight: 1}, {Via: addr("fe80::3"), Dev: a.Index, Weight: 2},
		}},
	}
	for i := range want {
		want[i].Protocol, want[i].Table, want[i].Type = 84, netlinkx.TableMain, netlinkx.Unicast
		errtest.Must(t, ns.Conn.AddRoute(want[i]))
	}
	listed := func(want ...netlinkx.Route) {
		t.Helper()
		got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84})
		errtest.Must(t, err)
		difftest.Want(t, "", want, got, cmpopts.SortSlices(func(x, y netlinkx.Hop) bool { return x.Via.Less(y.Via) }))
	}
	listed(want...)
	fewer := slices.Clone(want)
	for i := range fewer {
		fewer[i].Hops = fewer[i].Hops[1:]
	}
	single := fewer[1] // a route with one next hop is listed as one without Hops
	single.Via, single.Dev, single.Hops = fewer[1].Hops[0].Via, a.Index, nil
	if err := ns.Conn.ReplaceRoute(fewer[0]); err != nil {
		t.Error(err)
	}
	if err := ns.Conn.ReplaceRoutes(fewer[1:])[0]; err != nil {
		t.Error(err)
	}
	listed(fewer[0], single)
	if err := errors.Join(append(ns.Conn.ReplaceRoutes(want), ns.Conn.DeleteRoute(want[0]), ns.Conn.DeleteRoute(want[1]))...); err != nil {
		t.Error(err)
	}
	listed()
	bad := want[0]
	bad.Object = true
	if err := ns.Conn.AddRoute(bad); err == nil || !strings.Contains(err.Error(), "hop object") {
		t.Errorf("a next hop object: %v, want a refusal", err)
	}
}

func TestSubscribe(t *testing.T) {
	ns, a := scratchRoutes(t)
	ns.Writes(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wake, err := ns.Conn.Subscribe(ctx, netlinkx.RouteEvents)
	errtest.Must(t, err)
	socket, err := ns.Conn.Listen(netlinkx.RouteEvents)
	errtest.Must(t, err)
	count := counted(t, socket)
	ns.Run(t, "ip", "link", "set", "dev", "a", "alias", "not a route")
	if _, all := count(); all != 0 {
		t.Errorf("%d events of a change of another kind", all)
	}
	for i := range 100 {
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, byte(i)}), 32)
		errtest.Must(t, ns.Conn.AddRoute(netlinkx.Route{Dst: dst, Dev: a.Index, Scope: netlinkx.ScopeLink}))
	}
	select {
	case <-wake:
	case <-time.After(20 * time.Second):
		t.Fatal("no wake-up after 100 changes")
	}
	more := 0
	for within(wake, 100*time.Millisecond) {
		more++
	}
	if more > 2 { // events that were read while the first wake-up was taken
		t.Errorf("%d wake-ups for 100 changes", 1+more)
	}
	cancel()
	select {
	case _, open := <-wake:
		if open {
			t.Error("woken up by the end of the context, want a closed channel")
		}
	case <-time.After(20 * time.Second):
		t.Error("channel still open after the context ended")
	}
}

func TestPeerAlive(t *testing.T) {
	host, pod := netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, host, "cali0", pod, "eth0")
	alive, err := host.Conn.PeerAlive(host.Link(t, "cali0"))
	if err != nil || !alive {
		t.Errorf("peer in an open namespace: alive %v, %v", alive, err)
	}
	netnstest.Cable(t, host, "a", host, "b")
	if alive, err = host.Conn.PeerAlive(host.Link(t, "a")); err != nil || !alive {
		t.Errorf("peer in the same namespace: alive %v, %v", alive, err)
	}
	if alive, err = host.Conn.PeerAlive(host.Link(t, "lo")); err != nil || alive {
		t.Errorf("link without a peer: alive %v, %v", alive, err)
	}
}

// TestPeerOfDyingNamespace has a link with a peer in a namespace that waits for the kernel's cleanup. The kernel cleans
// up in batches, one after the other: a namespace that ends during another batch stays in that state for a while.
func TestPeerOfDyingNamespace(t *testing.T) {
	host := netnstest.New(t)
	for attempt := range 10 {
		dying := netnstest.Dying(t, host, fmt.Sprintf("cali%d", attempt), nil)
		link, err := host.Conn.LinkByName(dying)
		if netlinkx.IsNotExist(err) {
			continue // cleaned up before it could be looked at
		}
		errtest.Must(t, err)
		alive, err := host.Conn.PeerAlive(link)
		if err != nil || alive {
			t.Fatalf("peer alive %v, %v; want dead", alive, err)
		}
		return
	}
	t.Fatal("the kernel cleaned up every namespace before it could be looked at")
}

func TestOpenNamespace(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	errtest.Must(t, os.WriteFile(plain, nil, 0o444))
	for _, tt := range []struct {
		path string
		want error
	}{
		{filepath.Join(dir, "missing"), fs.ErrNotExist},
		{plain, netlinkx.ErrNotNamespace},
		{"/proc/self/ns/mnt", netlinkx.ErrNotNamespace},
	} {
		if _, err := netlinkx.OpenNamespace(tt.path); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.path) {
			t.Errorf("OpenNamespace(%s) = %v, want %v", tt.path, err, tt.want)
		}
	}
	ns := netnstest.New(t)
	again, err := netlinkx.OpenNamespace(ns.Path())
	errtest.Must(t, err)
	defer again.Close()
	if same, err := again.Same(ns.Namespace); err != nil || !same {
		t.Errorf("namespace opened by its path: same %v, %v", same, err)
	}
}

func TestDoLeavesThreadsWhereTheyWere(t *testing.T) {
	home, err := netlinkx.CurrentNamespace()
	errtest.Must(t, err)
	defer home.Close()
	ns := netnstest.New(t)
	boom := errors.New("boom")
	if err := ns.Do(func() error { return boom }); err != boom {
		t.Errorf("Do returned %v, want the function's error", err)
	}
	if err := ns.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("Do returned nil for a function that never returned")
	}
	inside := func(want *netlinkx.Namespace) error {
		here, err := netlinkx.CurrentNamespace()
		if err != nil {
			return err
		}
		defer here.Close()
		if same, err := here.Same(want); err != nil || !same {
			return fmt.Errorf("in another namespace than wanted (%v)", err)
		}
		return nil
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := ns.Do(func() error { return inside(ns.Namespace) }); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := inside(home); err != nil {
				t.Errorf("outside of Do: %v", err)
			}
		})
	}
	wg.Wait()
}

func TestConnOutlivesItsNamespaceReference(t *testing.T) {
	ns, err := netnstest.NewNamespace()
	errtest.Must(t, err)
	c, err := netlinkx.OpenAt(ns)
	errtest.Must(t, err)
	defer c.Close()
	errtest.Must(t, ns.Close())
	if _, err := c.LinkByName("lo"); err != nil {
		t.Error(err)
	}
	if _, err := c.Subscribe(t.Context(), netlinkx.LinkEvents); err != nil {
		t.Error(err)
	}
}

// TestNetAdminIsEnough works in the process's own namespace as the agent does, which has CAP_NET_ADMIN and may not
// enter namespaces: it runs itself again, in a scratch namespace and without CAP_SYS_ADMIN.
func TestNetAdminIsEnough(t *testing.T) {
	const inside = "TORTIE_TEST_NET_ADMIN"
	if os.Getenv(inside) != "" {
		workWithNetAdmin(t)
		return
	}
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "a", ns, "b")
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: a thread without the right is of no use to other tests, and ends with the goroutine.
		runtime.LockOSThread()
		err := errors.Join(
			unix.Setns(ns.Fd(), unix.CLONE_NEWNET),
			unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0))
		if err != nil {
			done <- result{nil, err}
			return
		}
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	if r := <-done; r.err != nil || !strings.Contains(string(r.out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", r.err, r.out)
	}
	if l := ns.Link(t, "a"); l.MTU != 1400 {
		t.Errorf("mtu %d, want 1400", l.MTU)
	}
}

func workWithNetAdmin(t *testing.T) {
	if _, err := netnstest.NewNamespace(); !errors.Is(err, unix.EPERM) {
		t.Fatalf("NewNamespace: %v, want EPERM: the test still has CAP_SYS_ADMIN", err)
	}
	c, err := netlinkx.Open()
	errtest.Must(t, err)
	defer c.Close()
	if _, err := c.Subscribe(t.Context(), netlinkx.LinkEvents); err != nil {
		t.Error(err)
	}
	l, err := c.LinkByName("a")
	errtest.Must(t, err)
	if _, err := c.PeerAlive(l); err != nil {
		t.Error(err)
	}
	if err := c.SetMTU(l.Index, 1400); err != nil {
		t.Error(err)
	}
}

func TestPeerProcess(t *testing.T) {
	host, pod, other := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, host, "cali0", pod, "eth0")
	netnstest.Cable(t, host, "cali1", other, "eth0")
	if pid, err := host.Conn.PeerProcess(host.Link(t, "cali0")); pid != 0 || err != nil {
		t.Errorf("a namespace that only this test holds open has process %d, %v", pid, err)
	}
	sleep := pod.Start(t, "sleep", "60")
	for name, want := range map[string]int{"cali0": sleep, "cali1": 0, "lo": 0} {
		if pid, err := host.Conn.PeerProcess(host.Link(t, name)); pid != want || err != nil {
			t.Errorf("process at the other end of %s: %d, %v; want %d", name, pid, err, want)
		}
	}
}

func TestNetkit(t *testing.T) {
	host, pod := netnstest.New(t), netnstest.New(t)
	err := host.Conn.AddNetkit(netlinkx.Veth{
		Name: "cali0", HardwareAddr: macA, MTU: 1480, PeerName: "eth0", PeerNamespace: pod.Namespace, PeerHardwareAddr: macB,
	})
	if netlinkx.IsUnsupported(err) {
		// Many kernels have no netkit; they must report it.
		if _, err := host.Conn.LinkByName("cali0"); !netlinkx.IsNotExist(err) {
			t.Errorf("a link that the kernel does not support is there: %v", err)
		}
		return
	}
	errtest.Must(t, err)
	near, far := host.Link(t, "cali0"), pod.Link(t, "eth0")
	if near.Kind != "netkit" || far.Kind != "netkit" || near.PeerIndex != far.Index || far.MTU != 1480 {
		t.Errorf("ends %+v and %+v", near, far)
	}
}

func TestSetUpWithAlias(t *testing.T) {
	host, pod := netnstest.New(t), netnstest.New(t)
	err := host.Conn.AddVeth(netlinkx.Veth{
		Name: "cali0", HardwareAddr: macA, TxQueueLen: 7, MTU: 1480, PeerName: "eth0", PeerNamespace: pod.Namespace,
	})
	errtest.Must(t, err)
	want := host.Link(t, "cali0")
	alias := strings.Repeat("x", netlinkx.MaxAlias)
	errtest.Must(t, host.Conn.SetUpWithAlias(want, alias))
	want.Up, want.Alias = true, alias
	difftest.Want(t, "link", want, host.Link(t, "cali0"), cmpopts.IgnoreUnexported(netlinkx.Link{}))
	if out := host.Run(t, "ip", "link", "show", "cali0"); !strings.Contains(out, "qlen 7") {
		t.Errorf("queue length changed: %s", out)
	}
	if err := host.Conn.SetUpWithAlias(want, alias+"x"); err == nil {
		t.Error("an alias that is too long was accepted")
	}
}
