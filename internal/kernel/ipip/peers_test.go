package ipip_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// peersOf are the desired devices of node 172.30.0.1.
func peersOf(nodes ...string) ipip.Peers {
	p := ipip.Peers{Local: addr("172.30.0.1"), MTU: 1480}
	for _, n := range nodes {
		p.Nodes = append(p.Nodes, addr(n))
	}
	return p
}

// syncPeers returns the devices that were prepared.
func syncPeers(t *testing.T, ns *netnstest.NS, p ipip.Peers) (prepared []string, err error) {
	t.Helper()
	links, err := ns.Conn.Links()
	errtest.Must(t, err)
	err = ipip.New(ns.Conn).SyncPeers(t.Context(), links, p, func(devices []string) error {
		prepared = devices
		for _, d := range devices { // there, to be prepared
			if _, err := ns.Conn.LinkByName(d); err != nil {
				return err
			}
		}
		return nil
	})
	return prepared, err
}

// wantPeers compares the links that packets in a tunnel come in by, except tunl0.
func wantPeers(t *testing.T, ns *netnstest.NS, p ipip.Peers) {
	t.Helper()
	links, err := ns.Conn.Links()
	errtest.Must(t, err)
	var got, want []netlinkx.Link
	for _, l := range links {
		if ipip.Owns(l.Name) && l.Name != ipip.Device {
			l.Index, l.HardwareAddr, l.Down = 0, nil, false
			got = append(got, l)
		}
	}
	for _, n := range p.Nodes {
		want = append(want, netlinkx.Link{Name: ipip.PeerDevice(n), Kind: "ipip", MTU: p.MTU, Up: true, TxQueues: 1, RxQueues: 1,
			Tunnel: netlinkx.Tunnel{Local: p.Local, Remote: n, PMTUDisc: true}})
	}
	byName := func(a, b netlinkx.Link) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(got, byName)
	slices.SortFunc(want, byName)
	difftest.Want(t, "devices", want, got, cmpopts.IgnoreUnexported(netlinkx.Link{}),
		cmpopts.IgnoreFields(netlinkx.Link{}, "PeerIndex", "Peer"))
}

func TestPeerDevice(t *testing.T) {
	if name := ipip.PeerDevice(addr("172.30.0.2")); name != "tunl0-ac1e0002" || !ipip.Owns(name) ||
		!ipip.Owns("tunl0") || ipip.Owns("tunl01") {
		t.Error(name)
	}
}

// Devices come and go with the desired state, from each to each; correct ones are not written.
func TestPeers(t *testing.T) {
	ns := newNS(t)
	sync(t, ns, ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")})
	other := peersOf("172.30.0.2")
	other.Local, other.MTU = addr("172.30.0.7"), 1430
	for _, p := range []ipip.Peers{peersOf("172.30.0.2"), peersOf("172.30.0.3", "172.30.0.2"), peersOf("172.30.0.3"), {},
		peersOf("172.30.0.2"), other, peersOf("172.30.0.2", "172.30.0.4")} {
		prepared, err := syncPeers(t, ns, p)
		errtest.Must(t, err)
		if len(prepared) != len(p.Nodes) {
			t.Errorf("prepared are %q", prepared)
		}
		wantPeers(t, ns, p)
		writes := ns.Writes(t)
		_, err = syncPeers(t, ns, p)
		errtest.Must(t, err)
		if n := writes(); n > 0 {
			t.Errorf("%v: %d events: the kernel reports a change where nothing is to be done", p, n)
		}
	}
	keep := peersOf("172.30.0.9")
	keep.Keep = true
	_, err := syncPeers(t, ns, keep)
	errtest.Must(t, err)
	wantPeers(t, ns, peersOf("172.30.0.2", "172.30.0.4", "172.30.0.9"))
	wantDevice(t, ns, ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")})
}

func TestPeersDriftIsRepaired(t *testing.T) {
	ns := newNS(t)
	p := peersOf("172.30.0.2", "172.30.0.3")
	_, err := syncPeers(t, ns, p)
	errtest.Must(t, err)
	for name, spoil := range map[string]func(netlinkx.Link) error{
		"MTU":           func(l netlinkx.Link) error { return ns.Conn.SetMTU(l.Index, 1400) },
		"down":          func(l netlinkx.Link) error { return ns.Conn.SetDown(l.Index) },
		"gone":          func(l netlinkx.Link) error { return ns.Conn.DeleteLink(l.Index) },
		"local address": func(l netlinkx.Link) error { return ns.Conn.SetTunnelLocal(l, addr("127.0.0.1")) }, // as one that is being removed
	} {
		errtest.Must(t, spoil(ns.Link(t, ipip.PeerDevice(addr("172.30.0.2")))))
		if _, err := syncPeers(t, ns, p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantPeers(t, ns, p)
	}
}

// Foreign links stay, unless they have the name of a device; a failure for one node does not affect others.
func TestPeersOfOthers(t *testing.T) {
	ns := newNS(t)
	errtest.Must(t, ns.Conn.AddIPIP("site", netlinkx.Tunnel{Local: addr("172.30.0.1"), Remote: addr("172.30.0.2")}, 1480))
	errtest.Must(t, ns.Conn.AddIPIP("tunl0-ac1e0003", netlinkx.Tunnel{Local: addr("172.30.0.1"), Remote: addr("198.51.100.7")}, 1480))
	errtest.Must(t, ns.Conn.AddIPIP("tunl0-mine", netlinkx.Tunnel{Local: addr("172.30.0.1"), Remote: addr("198.51.100.8")}, 1480))
	before := []int{ns.Link(t, "site").Index, ns.Link(t, "tunl0-mine").Index}
	var told string
	ns.Conn.Replaced = func(name, was string) { told += name + " " + was }
	_, err := syncPeers(t, ns, peersOf("172.30.0.2", "172.30.0.3", "172.30.0.4"))
	if !errtest.Names(err, "tunl0-ac1e0002") || errtest.Names(err, "tunl0-ac1e0003") {
		t.Errorf("%v, want an error that names the one device that cannot be made", err)
	}
	for name, remote := range map[string]netip.Addr{"tunl0-ac1e0003": addr("172.30.0.3"), "tunl0-ac1e0004": addr("172.30.0.4")} {
		if l := ns.Link(t, name); !l.Up || l.Tunnel.Remote != remote {
			t.Errorf("%+v", l)
		}
	}
	difftest.Want(t, "told", "tunl0-ac1e0003 of kind ipip", told)
	_, err = syncPeers(t, ns, ipip.Peers{})
	errtest.Must(t, err)
	if after := []int{ns.Link(t, "site").Index, ns.Link(t, "tunl0-mine").Index}; !slices.Equal(before, after) {
		t.Errorf("links of others have the indexes %v, before %v", after, before)
	}
	if _, err := ns.Conn.LinkByName("tunl0-ac1e0004"); !netlinkx.IsNotExist(err) {
		t.Errorf("a device that is not wanted any more: %v", err)
	}
}

// A pod with CAP_NET_ADMIN replaces the node's device by one of its own, which differs only in the namespace in which
// it sends and receives.
func TestMovedPeer(t *testing.T) {
	ns, pod := newNS(t), netnstest.New(t)
	netnstest.Cable(t, ns, "cali1", pod, "eth0")
	p := peersOf("172.30.0.2")
	_, err := syncPeers(t, ns, p)
	errtest.Must(t, err)
	right := ns.Link(t, ipip.PeerDevice(p.Nodes[0]))
	errtest.Must(t, pod.Conn.AddIPIP("mine", right.Tunnel, right.MTU))
	pod.Swap(t, "mine", right.Name)
	if l := ns.Link(t, right.Name); l.Tunnel != right.Tunnel || ipip.IsPeer(l) {
		t.Fatalf("%+v, want the pod's, like %+v", l, right)
	}
	var told string
	ns.Conn.Replaced = func(name, was string) { told += name + " " + was }
	_, err = syncPeers(t, ns, p)
	errtest.Must(t, err)
	wantPeers(t, ns, p)
	if l := ns.Link(t, right.Name); !ipip.IsPeer(l) {
		t.Errorf("%+v", l)
	}
	difftest.Want(t, "told", right.Name+" of kind ipip and of another network namespace", told)
}

// A device that could not be prepared does not receive.
func TestPeersNotPrepared(t *testing.T) {
	ns := newNS(t)
	fails := errors.New("no")
	err := ipip.New(ns.Conn).SyncPeers(t.Context(), nil, peersOf("172.30.0.2"), func([]string) error { return fails })
	if l := ns.Link(t, "tunl0-ac1e0002"); l.Up || !errors.Is(err, fails) {
		t.Errorf("%v, and %+v", err, l)
	}
}

// Packets from a node come in by its device as soon as it is up, else by tunl0; in both cases its pods get answers.
func TestPeersDatapath(t *testing.T) {
	a, b := pair(t, 1500)
	port := netip.AddrPortFrom(b.podAddr(), 7000).String()
	b.pod.EchoUDP(t, port)
	p := ipip.Peers{Local: addr(b.addr), MTU: tunnelMTU, Nodes: []netip.Addr{addr(a.addr)}}
	for i := range 6 {
		if i%2 == 1 {
			_, err := syncPeers(t, b.NS, p)
			errtest.Must(t, err)
		} else {
			_, err := syncPeers(t, b.NS, ipip.Peers{})
			errtest.Must(t, err)
		}
		if got, err := a.pod.AskUDP(t, "", port, "hello", 10*time.Second); err != nil || got != a.podAddr().String()+" hello" {
			t.Errorf("%d: %q, %v", i, got, err)
		}
	}
}
