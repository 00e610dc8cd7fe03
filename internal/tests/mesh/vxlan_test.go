package mesh

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// inSubnets is nodes in two subnets with a pod each, two in the first subnet.
type inSubnets struct {
	*meshtest.Cluster
	nodes []*meshtest.Node
	pods  []*meshtest.Pod
}

// newInSubnets creates the nodes, dual-stack. The network between them has routes to all blocks, as if its routers
// spoke BGP, so that a pool works without encapsulation.
func newInSubnets(t testing.TB, c *meshtest.Cluster) *inSubnets {
	t.Helper()
	c.Dual = true
	s := &inSubnets{Cluster: c}
	c.Fabric.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1")
	})
	for subnet := range 2 {
		c.Fabric.Addr(t, fmt.Sprint("br", subnet), fmt.Sprintf("fd31:%d::ffff/64", subnet+1))
	}
	for i, subnet := range []int{0, 0, 1} {
		n, p := c.NewNodeWithPod(t, subnet, 10+i)
		n.Route(t, "::/0", fmt.Sprintf("fd31:%d::ffff", subnet+1), "eth0")
		c.Fabric.Route(t, fmt.Sprintf("10.90.%d.0/26", 10+i), n.Prefix.Addr().String(), fmt.Sprint("br", subnet))
		c.Fabric.Route(t, fmt.Sprintf("fd90::%x:0/122", 10+i), n.V6.String(), fmt.Sprint("br", subnet))
		s.nodes, s.pods = append(s.nodes, n), append(s.pods, p)
	}
	return s
}

// streams starts traffic within one subnet and between the two.
func (s *inSubnets) streams(t testing.TB) meshtest.Traffic {
	t.Helper()
	return append(meshtest.StartTraffic(t, s.pods[0], s.pods[1]), meshtest.StartTraffic(t, s.pods[0], s.pods[2])...)
}

// repool changes the encapsulation of a pool.
func repool(t testing.TB, c *meshtest.Cluster, name string, ipip, vxlan api.Encapsulation) {
	t.Helper()
	pool := &api.IPPool{Meta: api.Meta{Name: name}}
	errtest.Must(t, c.Store.Get(t.Context(), pool))
	pool.Spec.IPIPMode, pool.Spec.VXLANMode = ipip, vxlan
	errtest.Must(t, c.Store.Update(t.Context(), pool))
}

// end returns a node's VXLAN tunnel address from its annotation.
func end(t testing.TB, n *meshtest.Node, v6 bool) netip.Addr {
	t.Helper()
	obj := &api.Node{Meta: api.Meta{Name: n.Name}}
	errtest.Must(t, n.Store.Get(t.Context(), obj))
	key := api.AnnotationIPv4VXLANAddr
	if v6 {
		key = api.AnnotationIPv6VXLANAddr
	}
	a, _ := netip.ParseAddr(obj.Annotations[key]) // invalid: none
	return a
}

// ways waits for the first node's routes to the blocks of the second, in its subnet, and of the third.
func (s *inSubnets) ways(t testing.TB, near, far string) {
	t.Helper()
	for _, v6 := range []bool{false, true} {
		for i, device := range map[int]string{1: near, 2: far} {
			meshtest.Eventually(t, func() error { return s.way(t, i, v6, device) })
		}
	}
}

func (s *inSubnets) way(t testing.TB, to int, v6 bool, device string) error {
	args := []string{"-4", "route", "show", fmt.Sprintf("10.90.%d.0/26", 10+to)}
	if v6 {
		args[0], args[3] = "-6", fmt.Sprintf("fd90::%x:0/122", 10+to)
	}
	have, err := s.nodes[0].Try("ip", args...)
	want := ""
	switch n := s.nodes[to]; {
	case device == "vxlan" && !end(t, n, v6).IsValid():
		return fmt.Errorf("%s has announced no VXLAN tunnel address", n.Name)
	case device == "vxlan":
		want = fmt.Sprintf(" via %s dev %s proto 84", end(t, n, v6), vxlan.Device(v6))
	case device == "eth0" && v6:
		want = fmt.Sprintf(" via %s dev eth0 proto 84", n.V6)
	case device == "eth0":
		want = fmt.Sprintf(" via %s dev eth0 proto 84", n.Prefix.Addr())
	case have != "":
		return fmt.Errorf("%s has a route to %s: %s", s.nodes[0].Name, args[3], have)
	}
	if err != nil || !strings.Contains(have, want) {
		return fmt.Errorf("%s: %s is %q, %v; want %q", s.nodes[0].Name, args[3], have, err, want)
	}
	return nil
}

// A pool is changed under traffic, from no encapsulation to each VXLAN mode and back; an agent is restarted meanwhile.
// No packet is lost, in either family. In the second tier no VXLAN state is left at the end.
func TestVXLAN(t *testing.T) {
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever), meshtest.NewPool("pods6", "fd90::/48", api.EncapNever))
	s := newInSubnets(t, c)
	begun := time.Now()
	done := func(what string) { t.Logf("%v: %s", time.Since(begun).Round(100*time.Millisecond), what) }
	meshtest.Start(t, s.nodes...)
	meshtest.Settle(t, s.nodes...)
	s.ways(t, "eth0", "")
	done("the nodes know each other")
	both := func(mode api.Encapsulation) {
		repool(t, c, "pods", api.EncapNever, mode)
		repool(t, c, "pods6", api.EncapNever, mode)
	}
	for _, step := range []struct {
		mode      api.Encapsulation
		near, far string
	}{
		{api.EncapAlways, "vxlan", "vxlan"},
		{api.EncapNever, "eth0", "vxlan"}, // the node has no other route at this moment
		{api.EncapCrossSubnet, "eth0", "vxlan"},
	} {
		packets := s.streams(t)
		both(step.mode)
		s.ways(t, step.near, step.far)
		packets.Onward(t, time.Second)
		packets.Intact(t)
		done("VXLAN " + string(step.mode))
	}

	packets := s.streams(t)
	s.nodes[0].Signal(t, syscall.SIGKILL)
	both(api.EncapAlways)
	s.nodes[1].Signal(t, syscall.SIGTERM)
	s.nodes[0].Start(t, meshtest.Build)
	s.nodes[1].Start(t, meshtest.AnotherBuild)
	meshtest.Settle(t, s.nodes...)
	s.ways(t, "vxlan", "vxlan")
	packets.Intact(t)
	done("a change while agents are away")

	for _, h := range vxlanInterventions(t, s) {
		t.Logf("%s: back after %v", h.what, h.repair(t, s.nodes[0]).Round(time.Millisecond))
	}
	done("repaired manual changes")

	packets = s.streams(t)
	both(api.EncapNever)
	s.ways(t, "eth0", tier.Size("vxlan", "")) // without another route, VXLAN is used for half a minute more
	if whole() {                              // and received for two minutes
		for _, n := range s.nodes {
			meshtest.Within(t, 5*time.Minute, func() error { return cleared(t, n) })
		}
	}
	packets.Intact(t)
	s.nodes[0].Running(t)
	done("VXLAN turned off")
}

// cleared returns nil once a node has no VXLAN device, address or rule.
func cleared(t testing.TB, n *meshtest.Node) error {
	for _, v6 := range []bool{false, true} {
		if _, err := n.Conn.LinkByName(vxlan.Device(v6)); !netlinkx.IsNotExist(err) {
			return fmt.Errorf("%s still has %s: %v", n.Name, vxlan.Device(v6), err)
		}
		if a := end(t, n, v6); a.IsValid() {
			return fmt.Errorf("%s still announces %s", n.Name, a)
		}
	}
	for _, handle := range []string{names.VXLANHandle(n.Name), names.VXLANv6Handle(n.Name)} {
		if held, err := ipam.NewClient(n.Store, time.Now).Addresses(t.Context(), handle); err != nil || len(held) > 0 {
			return fmt.Errorf("handle %s still holds %v, %v", handle, held, err)
		}
	}
	if rules, err := n.Try("nft", "list", "table", "inet", "tortie"); err != nil || strings.Contains(rules, "vxlan-from-stranger") {
		return fmt.Errorf("%s still has the guard's rules: %v", n.Name, err)
	}
	return nil
}

// vxlanInterventions returns manual changes of VXLAN.
func vxlanInterventions(t testing.TB, s *inSubnets) []intervention {
	n, peer := s.nodes[0], end(t, s.nodes[1], false)
	mac := vxlan.MACOf(s.nodes[1].Name, false).String()
	shows := func(want string, command ...string) func() error {
		return func() error {
			if text, err := n.Try(command[0], command[1:]...); err != nil || !strings.Contains(text, want) {
				return fmt.Errorf("no %q in %q, %v", want, text, err)
			}
			return nil
		}
	}
	neighbour := shows(fmt.Sprintf("%s lladdr %s PERMANENT", peer, mac), "ip", "neigh", "show", "dev", vxlan.Device4)
	forward := shows(fmt.Sprintf("%s dst %s self permanent", mac, s.nodes[1].Prefix.Addr()), "bridge", "fdb", "show", "dev", vxlan.Device4)
	return []intervention{
		{"a neighbour is removed", []string{"ip", "neigh", "del", peer.String(), "dev", vxlan.Device4}, neighbour},
		{"a neighbour is changed",
			[]string{"ip", "neigh", "change", peer.String(), "lladdr", "66:00:00:00:00:01", "dev", vxlan.Device4}, neighbour},
		{"a forwarding entry is removed", []string{"bridge", "fdb", "del", mac, "dev", vxlan.Device4}, forward},
		{"the device's address is removed", []string{"ip", "addr", "flush", "dev", vxlan.Device4},
			shows(end(t, n, false).String()+"/32", "ip", "addr", "show", "dev", vxlan.Device4)},
		{"the device is removed", []string{"ip", "link", "del", vxlan.Device4}, func() error {
			if err := forward(); err != nil {
				return err
			}
			return s.way(t, 1, false, "vxlan")
		}},
	}
}
