package wireguard_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// The tests of this package need a kernel with WireGuard and fail on another: there, run them in a virtual machine. A
// short run leaves them out.

var comparable = []cmp.Option{cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.IgnoreUnexported(netlinkx.Link{})}

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
	at     = netip.MustParseAddrPort
)

// TestNoWireGuard holds on any kernel: without WireGuard the error names the reason and the remedy, and nothing is left
// behind.
func TestNoWireGuard(t *testing.T) {
	ns := netnstest.New(t)
	s := newSyncer(ns)
	_, err := s.Merge(t.Context(), device())
	if err == nil {
		return
	}
	if !errors.Is(err, wireguard.ErrNoWireGuard) || !strings.Contains(err.Error(), "modprobe") {
		t.Errorf("%v, want ErrNoWireGuard with its remedy", err)
	}
	if rules := marked(t, ns); len(rules) > 0 {
		t.Errorf("a Merge that failed left %+v behind", rules)
	}
	errtest.Must(t, s.Remove(t.Context(), false, routes.Predecessors{}))
}

func newSyncer(ns *netnstest.NS) *wireguard.Syncer {
	return wireguard.New(ns.Conn, routes.DefaultProtocol, []netlinkx.Protocol{netlinkx.ProtocolFelix})
}

func newNS(t *testing.T) *netnstest.NS {
	t.Helper()
	if netnstest.WireGuard() != nil {
		needtest.More(t, "a kernel with WireGuard")
	}
	return netnstest.New(t)
}

func device(peers ...wireguard.Peer) wireguard.Device {
	return wireguard.Device{Port: 51820, MTU: 1440, Addr: addr("10.0.1.0"), Peers: peers}
}

func peer(n byte, allowed ...string) wireguard.Peer {
	p := wireguard.Peer{Key: wireguard.Key{n, 31: 1}, Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 51820)}
	for _, a := range allowed {
		p.Allowed = append(p.Allowed, prefix(a))
	}
	return p
}

func marked(t *testing.T, ns *netnstest.NS) (found []netlinkx.Rule) {
	t.Helper()
	rules, err := ns.Conn.Rules()
	errtest.Must(t, err)
	for _, r := range rules {
		if r.Mark == wireguard.Mark {
			found = append(found, r)
		}
	}
	return found
}

// seen is all that a Syncer takes care of.
type seen struct {
	Link   netlinkx.Link
	Addrs  []netip.Prefix
	Peers  map[wireguard.Key]string
	Port   uint16
	Mark   uint32
	Rules  []netlinkx.Rule
	Routes []string
}

func look(t *testing.T, ns *netnstest.NS, v6 bool) (s seen) {
	t.Helper()
	l := ns.Link(t, wireguard.Name(v6))
	s.Link = netlinkx.Link{Name: l.Name, Kind: l.Kind, MTU: l.MTU, Up: l.Up}
	addrs, err := ns.Conn.Addrs(l.Index, netlinkx.FamilyAll)
	errtest.Must(t, err)
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			s.Addrs = append(s.Addrs, a.Prefix)
		}
	}
	w, err := ns.Conn.WireGuard(l.Index)
	errtest.Must(t, err)
	if w.Public == (wireguard.Key{}) {
		t.Error("the device has no key")
	}
	s.Port, s.Mark, s.Peers = w.Port, w.Mark, map[wireguard.Key]string{}
	for _, p := range w.Peers {
		slices.SortFunc(p.AllowedIPs, netip.Prefix.Compare)
		s.Peers[p.Public] = fmt.Sprint(p.Endpoint, p.AllowedIPs)
	}
	s.Rules = marked(t, ns)
	found, err := ns.Conn.Routes(netlinkx.RouteFilter{Table: wireguard.Table(v6)})
	errtest.Must(t, err)
	for _, r := range found {
		s.Routes = append(s.Routes, r.Text(map[int]string{l.Index: l.Name}))
	}
	slices.Sort(s.Routes)
	return s
}

var ways = []routes.Route{
	routes.To(prefix("10.0.2.0/26"), routes.Hop{Dev: wireguard.Device4}),
	{Dst: prefix("10.0.2.7/32"), Type: netlinkx.Throw}, {Dst: prefix("10.0.0.0/16"), Type: netlinkx.Prohibit},
}

func sync(t *testing.T, s *wireguard.Syncer, d wireguard.Device, ways []routes.Route) wireguard.State {
	t.Helper()
	state, err := s.Merge(t.Context(), d)
	errtest.Must(t, err)
	_, err = s.Peers(t.Context(), d)
	errtest.Must(t, err)
	errtest.Must(t, s.Routes(t.Context(), d.V6, ways, true, routes.Predecessors{}))
	errtest.Must(t, s.Lead(t.Context(), d.V6, 99))
	errtest.Must(t, s.Prune(t.Context(), d))
	return state
}

func want(d wireguard.Device, ways ...string) seen {
	s := seen{
		Link: netlinkx.Link{Name: wireguard.Name(d.V6), Kind: "wireguard", MTU: d.MTU, Up: true}, Port: d.Port, Mark: 0x200000,
		Peers: map[wireguard.Key]string{},
		Rules: []netlinkx.Rule{{Family: netlinkx.FamilyOf(d.Addr), Priority: 99, Table: wireguard.Table(d.V6), Mark: 0x200000, Mask: 0x200000,
			Not: true, Protocol: routes.DefaultProtocol}},
		Addrs:  []netip.Prefix{netip.PrefixFrom(d.Addr, d.Addr.BitLen())},
		Routes: ways,
	}
	for _, p := range d.Peers {
		s.Peers[p.Key] = fmt.Sprint(p.Endpoint, p.Allowed)
	}
	return s
}

var wantWays = []string{"10.0.2.0/26 dev wireguard.cali table 1 proto 84", "prohibit 10.0.0.0/16 table 1 proto 84",
	"throw 10.0.2.7/32 table 1 proto 84"}

func wantSeen(t *testing.T, ns *netnstest.NS, d wireguard.Device, ways ...string) {
	t.Helper()
	got := look(t, ns, d.V6)
	got.Link.HardwareAddr = nil
	difftest.Want(t, "what is there", want(d, ways...), got, comparable...)
}

// From nothing, steady, changed, shrunk, and off.
func TestSync(t *testing.T) {
	ns := newNS(t)
	s := newSyncer(ns)
	d := device(peer(2, "10.0.2.0/26", "192.0.2.2/32"), peer(3, "10.0.3.0/26"))
	key := sync(t, s, d, ways).Public
	wantSeen(t, ns, d, wantWays...)

	writes := ns.Writes(t)
	if again := sync(t, s, d, ways).Public; again != key {
		t.Error("another key without need")
	}
	started := newSyncer(ns)
	started.Believe(key)
	sync(t, started, d, ways)
	if n := writes(); n > 0 {
		t.Errorf("%d events: the kernel reports a change", n)
	}

	d = device(peer(2, "10.0.2.0/26"), peer(4, "10.0.3.0/26")) // an address is lost, one moves, a peer goes
	d.MTU, d.Port, d.Addr = 1300, 51900, addr("10.0.1.9")
	sync(t, s, d, ways[1:])
	wantSeen(t, ns, d, wantWays[1:]...)

	errtest.Must(t, s.Lead(t.Context(), false, 98))
	if rules := marked(t, ns); len(rules) != 1 || rules[0].Priority != 98 {
		t.Errorf("rules %+v", rules)
	}
	for range 2 {
		errtest.Must(t, s.Remove(t.Context(), false, routes.Predecessors{}))
		if _, err := ns.Conn.LinkByName(wireguard.Device4); !netlinkx.IsNotExist(err) || len(marked(t, ns)) != 0 {
			t.Errorf("after Remove: %v, %+v", err, marked(t, ns))
		}
	}
}

func TestIPv6(t *testing.T) {
	ns := newNS(t)
	s := newSyncer(ns)
	d := wireguard.Device{V6: true, Port: 51821, MTU: 1420, Addr: addr("fd00::1"),
		Peers: []wireguard.Peer{{Key: wireguard.Key{2}, Endpoint: at("[2001:db8::2]:51821"), Allowed: []netip.Prefix{prefix("fd00:2::/122")}}}}
	both := device(peer(2, "10.0.2.0/26"))
	sync(t, s, both, ways[:1])
	sync(t, s, d, []routes.Route{routes.To(prefix("fd00:2::/122"), routes.Hop{Dev: wireguard.Device6}),
		{Dst: prefix("fd00:2::7/128"), Type: netlinkx.Throw}})
	got := look(t, ns, true)
	got.Link.HardwareAddr, got.Rules = nil, slices.DeleteFunc(got.Rules, func(r netlinkx.Rule) bool { return r.Family == netlinkx.IPv4 })
	difftest.Want(t, "what is there", want(d, "fd00:2::/122 dev wg-v6.cali table 2 metric 1024 proto 84",
		"throw fd00:2::7/128 table 2 metric 1024 proto 84"), got, comparable...)
	writes := ns.Writes(t)
	sync(t, s, d, []routes.Route{routes.To(prefix("fd00:2::/122"), routes.Hop{Dev: wireguard.Device6}),
		{Dst: prefix("fd00:2::7/128"), Type: netlinkx.Throw}})
	if n := writes(); n > 0 {
		t.Errorf("%d events: the kernel reports a change", n)
	}
	errtest.Must(t, s.Remove(t.Context(), true, routes.Predecessors{}))
	if rules := marked(t, ns); len(rules) != 1 || rules[0].Family != netlinkx.IPv4 {
		t.Errorf("rules %+v", rules)
	}
}

func TestDriftIsRepaired(t *testing.T) {
	rule := netlinkx.Rule{Family: netlinkx.IPv4, Priority: 99, Table: 1, Mark: wireguard.Mark, Mask: wireguard.Mark, Not: true}
	route := netlinkx.Route{Dst: prefix("10.0.2.0/26"), Table: 1, Scope: netlinkx.ScopeLink}
	told := map[string]string{
		"MTU": "had MTU 1400", "key": "was missing", "down": "was down", "device": "was missing", "port": "had port 1",
		"mark":    "had firewall mark 0x1",
		"address": "lacked address 10.0.1.0/32", "more address": "had address 192.0.2.9/24", "peer": "1 lost",
		"more peers, with an address of another": "1 lost",
	}
	for name, spoil := range map[string]func(c *netlinkx.Conn, l netlinkx.Link) error{
		"MTU":          func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetMTU(l.Index, 1400) },
		"down":         func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetDown(l.Index) },
		"device":       func(c *netlinkx.Conn, l netlinkx.Link) error { return c.DeleteLink(l.Index) },
		"port":         func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetWireGuardPort(l.Index, 1) },
		"mark":         func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetWireGuardMark(l.Index, 1) },
		"key":          func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetWireGuardKey(l.Index, wireguard.Key{}) },
		"address":      func(c *netlinkx.Conn, l netlinkx.Link) error { return c.DeleteAddr(l.Index, prefix("10.0.1.0/32")) },
		"more address": func(c *netlinkx.Conn, l netlinkx.Link) error { return c.AddUniqueAddr(l.Index, prefix("192.0.2.9/24")) },
		"rule":         func(c *netlinkx.Conn, _ netlinkx.Link) error { return c.DeleteRule(rule) },
		"more rules": func(c *netlinkx.Conn, _ netlinkx.Link) error {
			more := rule
			more.Priority, more.Table = 50, 77
			return c.AddRule(more)
		},
		"route": func(c *netlinkx.Conn, l netlinkx.Link) error {
			route.Dev = l.Index
			return c.DeleteRoute(route)
		},
		"peer": func(c *netlinkx.Conn, l netlinkx.Link) error {
			return c.ChangeWireGuardPeers(l.Index,
				[]netlinkx.WireGuardChange{{WireGuardPeer: netlinkx.WireGuardPeer{Public: wireguard.Key{2, 31: 1}}, Remove: true}})
		},
		"more peers, with an address of another": func(c *netlinkx.Conn, l netlinkx.Link) error {
			thief := netlinkx.WireGuardPeer{Public: wireguard.Key{9}, AllowedIPs: []netip.Prefix{prefix("10.0.2.0/26"), prefix("10.0.9.0/26")}}
			return c.ChangeWireGuardPeers(l.Index, []netlinkx.WireGuardChange{{WireGuardPeer: thief}})
		},
		"more addresses of a peer": func(c *netlinkx.Conn, l netlinkx.Link) error {
			more := netlinkx.WireGuardPeer{Public: wireguard.Key{2, 31: 1}, AllowedIPs: []netip.Prefix{prefix("10.0.0.0/8")},
				Endpoint: at("192.0.2.77:1")}
			return c.ChangeWireGuardPeers(l.Index, []netlinkx.WireGuardChange{{WireGuardPeer: more}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNS(t)
			s := newSyncer(ns)
			d := device(peer(2, "10.0.2.0/26"), peer(3, "10.0.3.0/26"))
			sync(t, s, d, ways)
			errtest.Must(t, spoil(ns.Conn, ns.Link(t, wireguard.Device4)))
			state, err := s.Merge(t.Context(), d)
			errtest.Must(t, err)
			lost, err := s.Peers(t.Context(), d)
			errtest.Must(t, err)
			if lost > 0 {
				state.Was = append(state.Was, fmt.Sprint(lost, " lost"))
			}
			difftest.Want(t, "found", told[name], strings.Join(state.Was, ", "))
			sync(t, s, d, ways)
			wantSeen(t, ns, d, wantWays...)
			more := d
			more.Peers = append(slices.Clone(d.Peers), peer(7, "10.0.7.0/26"))
			if lost, err := s.Peers(t.Context(), more); lost > 0 || err != nil {
				t.Errorf("a new peer: %d lost, %v", lost, err)
			}
		})
	}
}

// Others' rules, routes in the table and devices stay; the error names obstacles, and the rest is done.
func TestForeign(t *testing.T) {
	ns := newNS(t)
	netnstest.Cable(t, ns, "eth0", ns, "far")
	other := netlinkx.Rule{Family: netlinkx.IPv4, Priority: 99, Table: 7, Mark: 0x100, Mask: 0x100, Not: true}
	errtest.Must(t, ns.Conn.AddRule(other))
	errtest.Must(t, ns.Conn.AddWireGuard("wg0", 1420))
	theirs := netlinkx.Route{Dst: prefix("10.0.2.0/26"), Dev: ns.Link(t, "eth0").Index, Table: 1, Scope: netlinkx.ScopeLink, Protocol: 4}
	aside := theirs
	aside.Dst = prefix("198.51.100.0/24")
	for _, r := range []netlinkx.Route{theirs, aside} {
		errtest.Must(t, ns.Conn.AddRoute(r))
	}
	s, d := newSyncer(ns), device(peer(2, "10.0.2.0/26"))
	_, err := s.Merge(t.Context(), d)
	errtest.Must(t, err)
	if err := s.Routes(t.Context(), false, ways, true, routes.Predecessors{}); !errors.Is(err, routes.ErrForeign) ||
		!errtest.Names(err, "10.0.2.0/26") {
		t.Errorf("with a foreign route in the way: %v", err)
	}
	got := look(t, ns, false).Routes
	for _, want := range wantWays[1:] {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing: %q", want, got)
		}
	}
	errtest.Must(t, s.Remove(t.Context(), false, routes.Predecessors{}))
	found, err := ns.Conn.Routes(netlinkx.RouteFilter{Table: 1})
	errtest.Must(t, err)
	rules, err := ns.Conn.Rules()
	errtest.Must(t, err)
	if len(found) != 2 || !slices.ContainsFunc(rules, func(r netlinkx.Rule) bool { return r.Table == 7 }) ||
		ns.Link(t, "wg0").Kind != "wireguard" {
		t.Errorf("of others are left: %v, %+v", found, rules)
	}
}

// A second device has the first one's key, or one of its own, which TakeKey copies to the first one while it removes
// the given peers from that.
func TestSecondDevice(t *testing.T) {
	ns := newNS(t)
	s, d := newSyncer(ns), device(peer(2, "10.0.2.0/26"), peer(3, "10.0.3.0/26"))
	second := device(peer(4, "10.0.2.0/26"))
	second.Second, second.Port, second.SameKey = true, 51822, true
	if _, err := s.Merge(t.Context(), second); !netlinkx.IsNotExist(err) {
		t.Errorf("the key of a device that is not there: %v", err)
	}
	first := sync(t, s, d, nil)
	if states, err := s.States(false); err != nil || states.Second != nil || states.Public != first.Public {
		t.Errorf("a second device without a key: %+v, %v", states, err)
	}
	state, err := s.Merge(t.Context(), second)
	errtest.Must(t, err)
	if state.Public != first.Public {
		t.Errorf("key %s, want %s", state.Public, first.Public)
	}
	errtest.Must(t, s.RemoveSecond(t.Context(), false))
	second.SameKey = false
	state, err = s.Merge(t.Context(), second)
	errtest.Must(t, err)
	_, err = s.Peers(t.Context(), second)
	errtest.Must(t, err)
	states, err := s.States(false)
	if err != nil || states.Second == nil || !states.Changes() || states.Public != first.Public ||
		states.Second.Peers != 1 || states.Peers != 2 {
		t.Errorf("%+v, %v", states, err)
	}
	wantSeen(t, ns, d)
	errtest.Must(t, s.TakeKey(t.Context(), false, []wireguard.Key{d.Peers[0].Key}))
	have, err := ns.Conn.WireGuard(ns.Link(t, wireguard.Device4).Index)
	if err != nil || have.Public != state.Public || len(have.Peers) != 1 || have.Peers[0].Public != d.Peers[1].Key {
		t.Errorf("%+v, %v; want key %s", have, err, state.Public)
	}
	second.Peers = nil
	errtest.Must(t, s.Prune(t.Context(), second))
	if states, err = s.States(false); err != nil || states.Changes() || states.Second.Peers != 0 {
		t.Errorf("%+v, %v", states, err)
	}
	sync(t, s, d, nil)
	wantSeen(t, ns, d)
	errtest.Must(t, s.Remove(t.Context(), false, routes.Predecessors{}))
	if links := ns.Run(t, "ip", "link"); strings.Contains(links, "wireguard") {
		t.Errorf("left are %s", links)
	}
}

// A device, a rule and routes of Felix's are taken over: the device keeps its key, so that its sessions continue.
func TestFelix(t *testing.T) {
	ns := newNS(t)
	errtest.Must(t, ns.Conn.AddWireGuard(wireguard.Device4, 1440))
	link := ns.Link(t, wireguard.Device4)
	errtest.Must(t, ns.Conn.SetWireGuardKey(link.Index, wireguard.Key{8: 7}))
	errtest.Must(t, ns.Conn.SetUp(link.Index))
	before, err := ns.Conn.WireGuard(link.Index)
	errtest.Must(t, err)
	rule := netlinkx.Rule{Family: netlinkx.IPv4, Priority: 99, Table: 1, Mark: wireguard.Mark, Mask: wireguard.Mark, Not: true}
	errtest.Must(t, ns.Conn.AddRule(rule))
	for _, r := range []netlinkx.Route{
		{Dst: prefix("10.0.2.0/26"), Dev: link.Index, Table: 1, Scope: netlinkx.ScopeLink, Protocol: netlinkx.ProtocolFelix},
		{Dst: prefix("10.0.7.0/26"), Dev: link.Index, Table: 1, Scope: netlinkx.ScopeLink, Protocol: netlinkx.ProtocolFelix},
		{Dst: prefix("10.0.8.0/26"), Type: netlinkx.Throw, Table: 1, Protocol: netlinkx.ProtocolFelix},
	} {
		errtest.Must(t, ns.Conn.AddRoute(r))
	}
	s, d := newSyncer(ns), device(peer(2, "10.0.2.0/26"))
	s.Believe(before.Public)
	state, err := s.Merge(t.Context(), d)
	errtest.Must(t, err)
	errtest.Must(t, s.Routes(t.Context(), false, ways, true, routes.Predecessors{Ranges: []netip.Prefix{prefix("10.0.0.0/16")}}))
	got := look(t, ns, false)
	if state.Public != before.Public || len(got.Rules) != 1 {
		t.Errorf("key %s, was %s; rules %+v", state.Public, before.Public, got.Rules)
	}
	difftest.Want(t, "routes", wantWays, got.Routes, comparable...)
	errtest.Must(t, s.Lead(t.Context(), false, 99))
	if rules := marked(t, ns); len(rules) != 1 || rules[0].Protocol == routes.DefaultProtocol {
		t.Errorf("rules %+v: Felix's was right", rules)
	}
	errtest.Must(t, s.Remove(t.Context(), false, routes.Predecessors{}))
	if rules := marked(t, ns); len(rules) != 0 {
		t.Errorf("rules %+v", rules)
	}
}

// A pod with CAP_NET_ADMIN replaces the node's devices by its own, with private keys that it knows, or without keys:
// ours are restored, with new keys, and the replacement is reported. The keys of the pod's devices are not read.
func TestMovedDevice(t *testing.T) {
	ns, pod := newNS(t), netnstest.New(t)
	netnstest.Cable(t, ns, "cali1", pod, "eth0")
	s, d, second := newSyncer(ns), device(), device()
	second.Second, second.Port = true, 51822
	sync(t, s, d, nil)
	_, err := s.Merge(t.Context(), second)
	errtest.Must(t, err)
	for name, private := range map[string]wireguard.Key{"with a key": {8: 7}, "without a key": {}} {
		for _, d := range []wireguard.Device{d, second} {
			device := wireguard.Device4
			if d.Second {
				device = wireguard.Second4
			}
			errtest.Must(t, pod.Conn.AddWireGuard("mine", d.MTU))
			link := pod.Link(t, "mine")
			if private != (wireguard.Key{}) {
				errtest.Must(t, pod.Conn.SetWireGuardKey(link.Index, private))
			}
			theirs, err := pod.Conn.WireGuard(link.Index)
			errtest.Must(t, err)
			pod.Swap(t, "mine", device)
			if states, err := s.States(false); err != nil || states.Second == nil != d.Second || (states.Public == wireguard.Key{}) == d.Second {
				t.Errorf("%s, %s: %+v, %v", name, device, states, err)
			}
			var told string
			ns.Conn.Replaced = func(name, was string) { told += name + " " + was }
			state, err := s.Merge(t.Context(), d)
			errtest.Must(t, err)
			have, err := ns.Conn.WireGuard(ns.Link(t, device).Index)
			if err != nil || have.Public == theirs.Public || have.Public == (wireguard.Key{}) || have.Public != state.Public {
				t.Errorf("%s, %s: key %s, %v; theirs is %s", name, device, have.Public, err, theirs.Public)
			}
			difftest.Want(t, name, device+" of kind wireguard and with no key of this node's", told)
			if again, err := s.Merge(t.Context(), d); err != nil || again.Public != state.Public {
				t.Errorf("%s, %s: key %s, then %s, %v", name, device, state.Public, again.Public, err)
			}
		}
	}
}

func TestPortTaken(t *testing.T) {
	ns := newNS(t)
	ns.ListenUDP(t, "0.0.0.0:51820")
	s := newSyncer(ns)
	for range 2 {
		if _, err := s.Merge(t.Context(), device()); !errors.Is(err, unix.EADDRINUSE) ||
			!errtest.Names(err, "51820 spec.wireguardListeningPort") {
			t.Errorf("%v", err)
		}
	}
}

// TestManyPeers programs 1,000 peers with 20 addresses each, more than fit into one message.
func TestManyPeers(t *testing.T) {
	ns := newNS(t)
	s := newSyncer(ns)
	d := device()
	for i := range 1000 {
		p := wireguard.Peer{Key: wireguard.Key{byte(i), byte(i >> 8), 31: 1},
			Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 51820)}
		for j := range 20 {
			p.Allowed = append(p.Allowed, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 2), byte(i << 6)}), 26))
		}
		d.Peers = append(d.Peers, p)
	}
	begin := time.Now()
	sync(t, s, d, nil)
	t.Logf("1,000 peers with 20,000 addresses: %v", time.Since(begin))
	wantSeen(t, ns, d)
	begin = time.Now()
	sync(t, s, d, nil)
	t.Logf("again: %v", time.Since(begin))
	d.Peers = d.Peers[:500]
	for i := range d.Peers {
		d.Peers[i].Allowed = d.Peers[i].Allowed[:10]
	}
	sync(t, s, d, nil)
	wantSeen(t, ns, d)
}
