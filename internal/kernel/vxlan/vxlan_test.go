package vxlan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

var addr = netip.MustParseAddr

// host is a namespace that stands for a node with an address of each family.
func host(t testing.TB) *netnstest.NS {
	t.Helper()
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "eth0", ns, "far")
	ns.Addr(t, "eth0", "172.30.0.1/24")
	ns.Addr(t, "eth0", "fd30::1/64")
	return ns
}

// tunnel returns the tunnel of node n1 with so many peers.
func tunnel(v6 bool, peers int) vxlan.Tunnel {
	t := vxlan.Tunnel{Local: addr("172.30.0.1"), Parent: "eth0", MAC: vxlan.MACOf("n1", v6), MTU: 1450, Addr: addr("10.244.1.0")}
	if v6 {
		t.Local, t.MTU, t.Addr = addr("fd30::1"), 1430, addr("fd44::1:0")
	}
	for i := range peers {
		p := vxlan.Peer{Addr: netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}),
			Node: netip.AddrFrom4([4]byte{172, 30, byte(1 + i>>8), byte(i)})}
		if v6 {
			p.Addr, p.Node = addr(fmt.Sprintf("fd45::%x:0", i+1)), addr(fmt.Sprintf("fd30::%x", i+2))
		}
		p.MAC = vxlan.MACOf(fmt.Sprint("peer", i), v6)
		t.Peers = append(t.Peers, p)
	}
	return t
}

// syncTunnel is Merge with its Prune.
func syncTunnel(t testing.TB, ns *netnstest.NS, tun vxlan.Tunnel) error {
	m, err := vxlan.New(ns.Conn).Merge(t.Context(), tun)
	return errors.Join(err, m.Prune())
}

func sync(t testing.TB, ns *netnstest.NS, tun vxlan.Tunnel) {
	t.Helper()
	errtest.Must(t, syncTunnel(t, ns, tun))
}

// entries returns the listing of a device's entries by ip and bridge, in order.
func entries(t testing.TB, ns *netnstest.NS, device string) []string {
	t.Helper()
	var all []string
	for _, args := range [][]string{{"ip", "-4", "neigh", "show", "dev", device, "nud", "permanent"},
		{"ip", "-6", "neigh", "show", "dev", device, "nud", "permanent"}, {"bridge", "fdb", "show", "dev", device}} {
		for line := range strings.Lines(ns.Run(t, args[0], args[1:]...)) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	slices.Sort(all)
	return all
}

// wanted returns a peer's entries in that form.
func wanted(peers ...vxlan.Peer) []string {
	var all []string
	for _, p := range peers {
		all = append(all, fmt.Sprintf("%s lladdr %s PERMANENT", p.Addr, p.MAC), fmt.Sprintf("%s dst %s self permanent", p.MAC, p.Node))
	}
	slices.Sort(all)
	return all
}

func wantEntries(t testing.TB, ns *netnstest.NS, tun vxlan.Tunnel) {
	t.Helper()
	difftest.Want(t, "entries", wanted(tun.Peers...), entries(t, ns, vxlan.Device(tun.Local.Is6())))
}

func both(t *testing.T, test func(t *testing.T, v6 bool)) {
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) { test(t, v6) })
	}
}

// The device is Calico's, to the letter.
func TestDevice(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		ns, tun := host(t), tunnel(v6, 2)
		sync(t, ns, tun)
		shown := ns.Run(t, "ip", "-d", "link", "show", vxlan.Device(v6))
		for _, want := range []string{
			fmt.Sprintf("mtu %d ", tun.MTU), ",UP", "link/ether " + tun.MAC.String(), "vxlan id 4096 ", fmt.Sprintf("local %s dev eth0", tun.Local),
			"dstport 4789 ", "nolearning",
		} {
			if !strings.Contains(shown, want) {
				t.Errorf("no %q in\n%s", want, shown)
			}
		}
		wantAddress(t, ns, v6, tun.Addr)
		wantEntries(t, ns, tun)

		errtest.Must(t, vxlan.New(ns.Conn).Remove(t.Context(), v6))
		if _, err := ns.Conn.LinkByName(vxlan.Device(v6)); !netlinkx.IsNotExist(err) {
			t.Errorf("the device is still there: %v", err)
		}
		if err := vxlan.New(ns.Conn).Remove(t.Context(), v6); err != nil {
			t.Errorf("nothing to remove: %v", err)
		}
	})
}

func wantAddress(t testing.TB, ns *netnstest.NS, v6 bool, want ...netip.Addr) {
	t.Helper()
	have, err := ns.Conn.Addrs(ns.Link(t, vxlan.Device(v6)).Index, netlinkx.FamilyAll)
	errtest.Must(t, err)
	var got []netip.Addr
	for _, a := range have {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			got = append(got, a.Prefix.Addr())
			if !a.Prefix.IsSingleIP() || a.Tentative {
				t.Errorf("address %s, tentative %t", a.Prefix, a.Tentative)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
}

// A node's MAC is Calico's, derived from the node's name. The values are from sha1sum.
func TestMAC(t *testing.T) {
	for name, got := range map[string]string{"66:b3:68:28:39:8e": vxlan.MACOf("node-1", false).String(),
		"66:24:ac:63:df:6c": vxlan.MACOf("node-1", true).String()} {
		if got != name {
			t.Errorf("got %s, want %s", got, name)
		}
	}
	for _, text := range []string{"", "66:11", "01:00:5e:00:00:01", "00:00:00:00:00:00", "66:11:22:33:44:55:66:77"} {
		if m, err := vxlan.ParseMAC(text); err == nil {
			t.Errorf("%q is taken for %s", text, m)
		}
	}
	if m, err := vxlan.ParseMAC("66-11-22-33-44-55"); err != nil || m.String() != "66:11:22:33:44:55" {
		t.Errorf("%v, %v", m, err)
	}
}

// watched returns a function that fails the test if anything that Sync writes was written since its last call.
func watched(t *testing.T, ns *netnstest.NS) (quiet func()) {
	t.Helper()
	writes := ns.Writes(t)
	return func() {
		t.Helper()
		if n := writes(); n > 0 {
			t.Errorf("%d events: a link, an address, a route, a neighbour or a forwarding entry was written", n)
		}
	}
}

func TestSteadyWritesNothing(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		ns, tun := host(t), tunnel(v6, 20)
		sync(t, ns, tun)
		quiet := watched(t, ns)
		for range 3 {
			m, err := vxlan.New(ns.Conn).Merge(t.Context(), tun)
			if err != nil || m.Anew || len(m.Was)+len(m.Written) != 0 || m.Prune() != nil {
				t.Fatalf("%+v, %v", m, err)
			}
		}
		quiet()
	})
}

// Manual changes of the device are undone, and nothing else is touched.
func TestDrift(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		ns, tun := host(t), tunnel(v6, 3)
		dev, p := vxlan.Device(v6), tun.Peers[0]
		family, stray, strayNode := "-4", "10.245.9.9", "172.30.9.9"
		if v6 {
			family, stray, strayNode = "-6", "fd45::9:9", "fd30::9:9"
		}
		sync(t, ns, tun)
		index := ns.Link(t, dev).Index
		for _, command := range []string{
			fmt.Sprintf("ip %s neigh del %s dev %s", family, p.Addr, dev),
			fmt.Sprintf("ip %s neigh change %s lladdr 66:00:00:00:00:01 dev %s", family, p.Addr, dev),
			fmt.Sprintf("ip %s neigh change %s lladdr %s dev %s nud stale", family, p.Addr, p.MAC, dev),
			fmt.Sprintf("ip %s neigh flush dev %s nud permanent", family, dev),
			fmt.Sprintf("ip %s neigh add %s lladdr 66:00:00:00:00:02 dev %s nud permanent", family, stray, dev),
			fmt.Sprintf("bridge fdb del %s dev %s", p.MAC, dev),
			fmt.Sprintf("bridge fdb replace %s dev %s dst %s", p.MAC, dev, strayNode),
			fmt.Sprintf("bridge fdb replace %s dev %s dst %s port 4790", p.MAC, dev, p.Node),
			fmt.Sprintf("bridge fdb add 66:00:00:00:00:03 dev %s dst %s", dev, strayNode),
			fmt.Sprintf("bridge fdb append 00:00:00:00:00:00 dev %s dst %s", dev, strayNode),
			fmt.Sprintf("ip link set %s mtu 1300", dev),
			fmt.Sprintf("ip link set %s down", dev),
			fmt.Sprintf("ip link set %s address 66:00:00:00:00:04", dev),
			fmt.Sprintf("ip %s addr del %s dev %s", family, tun.Addr, dev),
			fmt.Sprintf("ip %s addr add %s dev %s", family, stray, dev),
			fmt.Sprintf("ip link set %s type vxlan learning", dev),
		} {
			args := strings.Fields(command)
			ns.Run(t, args[0], args[1:]...)
			sync(t, ns, tun)
			sync(t, ns, tun) // a port of another's is found at the second look
			if after := ns.Link(t, dev); after.Index != index || !after.Up || after.MTU != tun.MTU ||
				after.HardwareAddr.String() != tun.MAC.String() || after.VXLAN.Learning {
				t.Errorf("%s: the device is now %+v", command, after)
			}
			wantAddress(t, ns, v6, tun.Addr)
			if t.Failed() {
				t.Fatal(command)
			}
			wantEntries(t, ns, tun)
		}
		ns.Run(t, "ip", "link", "del", dev)
		sync(t, ns, tun)
		wantEntries(t, ns, tun)
	})
}

// A Merge returns the differences that it found.
func TestWhatWasOtherwise(t *testing.T) {
	ns, tun := host(t), tunnel(false, 3)
	s := vxlan.New(ns.Conn)
	merge := func(command, was string, written ...vxlan.Peer) {
		t.Helper()
		if args := strings.Fields(command); len(args) > 0 {
			ns.Run(t, args[0], args[1:]...)
		}
		m, err := s.Merge(t.Context(), tun)
		errtest.Must(t, err)
		difftest.Want(t, command, was, strings.Join(m.Was, ", "))
		difftest.Want(t, command+": peers", fmt.Sprint(written), fmt.Sprint(m.Written))
	}
	merge("", "was missing", tun.Peers...)
	merge("", "")
	merge("ip link set vxlan.calico mtu 1300", "had MTU 1300")
	merge("ip link set vxlan.calico address 66:00:00:00:00:04", "had MAC 66:00:00:00:00:04", tun.Peers...) // the kernel forgets neighbours
	merge("ip link set vxlan.calico down", "was down", tun.Peers...)
	merge("ip addr del 10.244.1.0 dev vxlan.calico", "lacked address 10.244.1.0/32", tun.Peers...) // as with the last address
	merge("ip addr add 192.0.2.9/24 dev vxlan.calico", "had address 192.0.2.9/24")
	merge("ip link set vxlan.calico type vxlan learning", "had other options of VXLAN")
	merge("ip link set vxlan.calico type vxlan local 172.30.7.7", "had local address 172.30.7.7")
	merge("bridge fdb del "+tun.Peers[1].MAC.String()+" dev vxlan.calico", "", tun.Peers[1])
	merge("ip neigh del "+tun.Peers[2].Addr.String()+" dev vxlan.calico", "", tun.Peers[2])
	merge("ip link del vxlan.calico", "was missing", tun.Peers...)
	tun.VNI, tun.Port = 7, 8472
	merge("", "had VNI 4096, had port 4789", tun.Peers...)
}

// Two entries of one MAC are one too many: packets go to both.
func TestFramesGoToOneNode(t *testing.T) {
	ns, tun := host(t), tunnel(false, 1)
	sync(t, ns, tun)
	// The kernel refuses a second entry of a unicast MAC from ip and bridge, but another program can make one.
	moved := tun
	moved.Peers = slices.Clone(tun.Peers)
	moved.Peers[0].Node = addr("172.30.7.7")
	sync(t, ns, moved)
	wantEntries(t, ns, moved)
	moved.Peers[0].MAC = vxlan.MACOf("another", false)
	sync(t, ns, moved)
	wantEntries(t, ns, moved)
	moved.Peers[0].Addr = addr("10.245.3.3")
	sync(t, ns, moved)
	wantEntries(t, ns, moved)
	moved.Peers = nil
	sync(t, ns, moved)
	wantEntries(t, ns, moved)
}

// The entries of a removed node stay until its routes are removed: therefore Prune is separate.
func TestPruneIsLast(t *testing.T) {
	ns, tun := host(t), tunnel(false, 3)
	sync(t, ns, tun)
	less := tun
	less.Peers = tun.Peers[:1]
	m, err := vxlan.New(ns.Conn).Merge(t.Context(), less)
	errtest.Must(t, err)
	wantEntries(t, ns, tun)
	errtest.Must(t, m.Prune())
	wantEntries(t, ns, less)
	if err := m.Prune(); err != nil {
		t.Errorf("what is gone is gone: %v", err)
	}
}

// An entry that the kernel refuses does not prevent others, and is made when the kernel accepts it.
func TestPartialFailure(t *testing.T) {
	ns, tun := host(t), tunnel(true, 300)
	less := tun
	less.Peers = tun.Peers[:100]
	sync(t, ns, less)
	off := func(value string) {
		ns.Within(t, func() error {
			return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", vxlan.Device6, "disable_ipv6"}, value)
		})
	}
	off("1")
	err := syncTunnel(t, ns, tun)
	if err == nil || !strings.Contains(err.Error(), vxlan.Device6) || strings.Count(err.Error(), "\n") > 20 {
		t.Errorf("the error: %v", err)
	}
	have := ns.Run(t, "bridge", "fdb", "show", "dev", vxlan.Device6)
	for _, p := range tun.Peers {
		if !strings.Contains(have, p.MAC.String()+" dst "+p.Node.String()) {
			t.Fatalf("no forwarding entry of %s", p.Node)
		}
	}
	off("0")
	sync(t, ns, tun)
	wantEntries(t, ns, tun)
	wantAddress(t, ns, true, tun.Addr)
}

// Bad input is an error that names it, and nothing is made.
func TestRefused(t *testing.T) {
	for part, change := range map[string]func(*vxlan.Tunnel){
		`local "invalid IP"`: func(t *vxlan.Tunnel) { t.Local = netip.Addr{} },
		"fd00::1 172.30.0.1": func(t *vxlan.Tunnel) { t.Addr = addr("fd00::1") },
		"mtu 20":             func(t *vxlan.Tunnel) { t.MTU = 20 },
		"vni 16777216":       func(t *vxlan.Tunnel) { t.VNI = 1 << 24 },
		"MAC":                func(t *vxlan.Tunnel) { t.MAC = vxlan.MAC{} },
		"peer 172.30.1.0":    func(t *vxlan.Tunnel) { t.Peers = append(t.Peers, t.Peers[0]) },
		"peer fd00::1":       func(t *vxlan.Tunnel) { t.Peers[0].Node = addr("fd00::1") },
		"nowhere":            func(t *vxlan.Tunnel) { t.Parent = "nowhere" },
	} {
		ns, tun := host(t), tunnel(false, 1)
		change(&tun)
		if err := syncTunnel(t, ns, tun); !errtest.Names(err, part) {
			t.Errorf("%s: %v", part, err)
		}
		if _, err := ns.Conn.LinkByName(vxlan.Device4); !netlinkx.IsNotExist(err) {
			t.Errorf("%s: a device was made", part)
		}
	}
}

// The error names an obstacle with its remedy.
func TestInTheWay(t *testing.T) {
	ns, tun := host(t), tunnel(false, 1)
	ns.Run(t, "ip", "link", "add", "flannel.1", "type", "vxlan", "id", "4096", "dstport", "4789")
	if err := syncTunnel(t, ns, tun); !errtest.Names(err, "flannel.1 4096 4789 spec.vxlanVNI spec.vxlanPort") {
		t.Errorf("%v", err)
	}
	ns.Run(t, "ip", "link", "del", "flannel.1")
	ns.Run(t, "ip", "link", "add", vxlan.Device4, "type", "bridge")
	if err := vxlan.New(ns.Conn).Remove(t.Context(), false); err != nil {
		t.Error(err)
	}
	ns.Link(t, vxlan.Device4) // not a device of ours: it stays where there is none
	errtest.Must(t, syncTunnel(t, ns, tun))
	wantEntries(t, ns, tun)
}

// A pod with CAP_NET_ADMIN replaces the node's device by one of its own, which differs only in the namespace of its
// socket: ours is restored, and the replacement reported.
func TestMovedDevice(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		ns, pod, tun := host(t), netnstest.New(t), tunnel(v6, 2)
		netnstest.Cable(t, ns, "cali1", pod, "eth0")
		sync(t, ns, tun)
		parent := ns.Link(t, "eth0").Index
		if _, err := pod.Conn.LinkByIndex(parent); err != nil {
			pod.Run(t, "ip", "link", "add", "up0", "index", fmt.Sprint(parent), "type", "bridge")
		}
		right := ns.Link(t, vxlan.Device(v6))
		errtest.Must(t, pod.Conn.AddVXLAN("mine", tun.MAC, tun.MTU, right.VXLAN))
		pod.Swap(t, "mine", right.Name)
		if l := ns.Link(t, right.Name); l.VXLAN != right.VXLAN || vxlan.Is(l, v6) {
			t.Fatalf("%+v, want the pod's, like %+v", l, right)
		}
		var told string
		ns.Conn.Replaced = func(name, was string) { told += name + " " + was }
		sync(t, ns, tun)
		wantEntries(t, ns, tun)
		if l := ns.Link(t, right.Name); !vxlan.Is(l, v6) || l.VXLAN != right.VXLAN {
			t.Errorf("%+v", l)
		}
		difftest.Want(t, "told", right.Name+" of kind vxlan and of another network namespace", told)
	})
}

// felixDevice is the device as Felix leaves it.
func felixDevice(t testing.TB, ns *netnstest.NS, tun vxlan.Tunnel) {
	t.Helper()
	dev := vxlan.Device(tun.Local.Is6())
	ns.Run(t, "ip", "link", "add", dev, "address", tun.MAC.String(), "mtu", fmt.Sprint(tun.MTU), "type", "vxlan", "id", "4096", "local",
		tun.Local.String(), "dev", "eth0", "dstport", "4789", "nolearning")
	ns.Run(t, "ip", "addr", "add", netip.PrefixFrom(tun.Addr, tun.Addr.BitLen()).String(), "dev", dev, "nodad")
	ns.Run(t, "ip", "link", "set", dev, "up")
	for _, p := range tun.Peers {
		ns.Run(t, "ip", "neigh", "add", p.Addr.String(), "lladdr", p.MAC.String(), "dev", dev, "nud", "permanent")
		ns.Run(t, "bridge", "fdb", "add", p.MAC.String(), "dev", dev, "dst", p.Node.String(), "self", "permanent")
	}
}

// A device that Felix has left is used as it is: not one thing is written.
func TestFelixDeviceIsAdopted(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		ns, tun := host(t), tunnel(v6, 5)
		felixDevice(t, ns, tun)
		quiet := watched(t, ns)
		sync(t, ns, tun)
		quiet()
	})
}

// Changeable parameters are changed on the existing device, which keeps its entries; others require a new one.
func TestParametersChange(t *testing.T) {
	ns, tun := host(t), tunnel(false, 4)
	netnstest.Cable(t, ns, "eth1", ns, "far1")
	ns.Addr(t, "eth1", "172.30.0.2/24")
	sync(t, ns, tun)
	index := ns.Link(t, vxlan.Device4).Index
	tun.Local, tun.Parent = addr("172.30.0.2"), "eth1"
	sync(t, ns, tun)
	wantEntries(t, ns, tun)
	if l := ns.Link(t, vxlan.Device4); l.Index != index || l.VXLAN.Local != tun.Local || l.VXLAN.Parent != ns.Link(t, "eth1").Index {
		t.Errorf("the device is %+v, its index was %d", l, index)
	}
	for _, change := range []func(){func() { tun.Port = 8472 }, func() { tun.VNI = 5 }} {
		change()
		m, err := vxlan.New(ns.Conn).Merge(t.Context(), tun)
		if err != nil || !m.Anew {
			t.Fatalf("%+v, %v; want a new device", m, err)
		}
		wantEntries(t, ns, tun)
		wantAddress(t, ns, false, tun.Addr)
	}
	ns.Run(t, "ip", "link", "del", "eth1") // takes the device with it
	tun.Local, tun.Parent = addr("172.30.0.1"), "eth0"
	sync(t, ns, tun)
	wantEntries(t, ns, tun)
}

// On kernels with wrong checksums of translated packets, the device leaves them to the kernel.
func TestSoftChecksums(t *testing.T) {
	ns, tun := host(t), tunnel(false, 0)
	sync(t, ns, tun)
	if on, err := ns.Conn.TxChecksum(vxlan.Device4); err != nil || !on {
		t.Fatalf("checksums by the device: %t, %v", on, err)
	}
	tun.SoftChecksums = true
	sync(t, ns, tun)
	if on, err := ns.Conn.TxChecksum(vxlan.Device4); err != nil || on {
		t.Errorf("checksums by the device: %t, %v", on, err)
	}
	quiet := watched(t, ns)
	sync(t, ns, tun)
	quiet()
}

// One packet in each direction, both families, between two nodes and their pods' blocks, with no other help than
// routes.
func TestDatapath(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		a, b := netnstest.New(t), netnstest.New(t)
		netnstest.Cable(t, a, "eth0", b, "eth0")
		ends := []struct {
			ns                *netnstest.NS
			local, inside, ip string
		}{{a, "172.30.0.1", "10.244.1.0", "10.244.1.5"}, {b, "172.30.0.2", "10.244.2.0", "10.244.2.5"}}
		bits, block := "/24", 26
		if v6 {
			bits, block = "/64", 122
			ends[0].local, ends[0].inside, ends[0].ip = "fd30::1", "fd44::1:0", "fd44::1:5"
			ends[1].local, ends[1].inside, ends[1].ip = "fd30::2", "fd44::2:0", "fd44::2:5"
		}
		for i, e := range ends {
			o := ends[1-i]
			e.ns.Addr(t, "eth0", e.local+bits)
			e.ns.Addr(t, "lo", netip.PrefixFrom(addr(e.ip), addr(e.ip).BitLen()).String())
			tun := tunnel(v6, 0)
			tun.Local, tun.Addr, tun.MAC = addr(e.local), addr(e.inside), vxlan.MACOf(fmt.Sprint("n", i), v6)
			tun.Peers = []vxlan.Peer{{Addr: addr(o.inside), MAC: vxlan.MACOf(fmt.Sprint("n", 1-i), v6), Node: addr(o.local)}}
			sync(t, e.ns, tun)
			e.ns.Run(t, "ip", "route", "add", netip.PrefixFrom(addr(o.ip), block).Masked().String(), "via", o.inside, "dev",
				vxlan.Device(v6), "onlink")
		}
		b.EchoUDP(t, netip.AddrPortFrom(addr(ends[1].ip), 7000).String())
		answer, err := a.AskUDP(t, netip.AddrPortFrom(addr(ends[0].ip), 0).String(),
			netip.AddrPortFrom(addr(ends[1].ip), 7000).String(), "hello", 5*time.Second)
		if err != nil || !strings.Contains(answer, "hello") {
			t.Errorf("%q, %v", answer, err)
		}
	})
}

// Entries of 5,000 nodes. Steady is the cost of each pass of the agent.
func BenchmarkPeers(b *testing.B) {
	const peers = 5000
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			ns, tun := host(b), tunnel(false, peers)
			b.StartTimer()
			sync(b, ns, tun)
			b.StopTimer()
			vxlan.New(ns.Conn).Remove(b.Context(), false)
			b.StartTimer()
		}
	})
	for name, v6 := range map[string]bool{"steady/v4": false, "steady/v6": true} {
		b.Run(name, func(b *testing.B) {
			ns, tun := host(b), tunnel(v6, peers)
			sync(b, ns, tun)
			for b.Loop() {
				sync(b, ns, tun)
			}
		})
	}
	b.Run("one more", func(b *testing.B) {
		ns, tun := host(b), tunnel(false, peers)
		less := tun
		less.Peers = tun.Peers[1:]
		for b.Loop() {
			sync(b, ns, tun)
			sync(b, ns, less)
		}
	})
}
