package mesh

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// felixNode is a node with the state of a stopped Felix: its VXLAN device with entries, and routes of protocol 80.
type felixNode struct {
	*meshtest.Node
	pod   *meshtest.Pod
	block string
	end   netip.Addr
}

func newFelixNode(t testing.TB, c *meshtest.Cluster, subnet, host int) *felixNode {
	t.Helper()
	return withFelix(t, c, c.NewNode(t, fmt.Sprintf("felix-%d", host), subnet, host), fmt.Sprintf("10.90.%d.0/26", host))
}

// withFelix adds Felix's state, with a block of a VXLAN pool, to a node that may have other state.
func withFelix(t testing.TB, c *meshtest.Cluster, node *meshtest.Node, block string) *felixNode {
	t.Helper()
	n := &felixNode{Node: node, block: block}
	n.Claim(t, n.block)
	n.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	first := netip.MustParsePrefix(block).Addr()
	n.pod = n.NewPod(t, strings.TrimSuffix(first.String(), ".0")+".5")
	c.AssignBorrowed(t, n.block, n.Node, 5, n.Node) // its own
	wide, err := first.Prefix(16)
	errtest.Must(t, err)
	pool := []netip.Prefix{wide}
	keeper := duties.NewTunnel(ipam.NewClient(c.Store, time.Now), duties.VXLAN, n.Name, time.Now)
	if n.end, err = keeper.Address(t.Context(), duties.TunnelInput{Ranges: duties.Ranges{Assign: pool, Keep: pool}}); err != nil {
		t.Fatal(err)
	}
	obj := &api.Node{Meta: api.Meta{Name: n.Name}}
	errtest.Must(t, c.Store.Get(t.Context(), obj))
	if obj.Annotations == nil {
		obj.Annotations = map[string]string{}
	}
	obj.Annotations[api.AnnotationIPv4Address], obj.Annotations[api.AnnotationIPv4VXLANAddr] = n.Prefix.String(), n.end.String()
	errtest.Must(t, c.Store.Update(t.Context(), obj))
	n.Run(t, "ip", "link", "add", vxlan.Device4, "address", vxlan.MACOf(n.Name, false).String(), "mtu", "1450", "type", "vxlan",
		"id", "4096", "local", n.Prefix.Addr().String(), "dev", "eth0", "dstport", "4789", "nolearning")
	n.Run(t, "ip", "addr", "add", n.end.String()+"/32", "dev", vxlan.Device4)
	n.Run(t, "ip", "link", "set", vxlan.Device4, "up")
	n.Run(t, "ip", "route", "add", "blackhole", n.block, "proto", "80")
	return n
}

// knows programs another node as Felix does.
func (n *felixNode) knows(t testing.TB, other *meshtest.Node, end netip.Addr, block string) {
	t.Helper()
	mac := vxlan.MACOf(other.Name, false).String()
	n.Run(t, "ip", "neigh", "replace", end.String(), "lladdr", mac, "dev", vxlan.Device4, "nud", "permanent")
	n.Run(t, "bridge", "fdb", "replace", mac, "dev", vxlan.Device4, "dst", other.Prefix.Addr().String(), "self", "permanent")
	n.Run(t, "ip", "route", "replace", block, "via", end.String(), "dev", vxlan.Device4, "proto", "80", "onlink")
}

// A cluster without BGP is being migrated: agents among Felix nodes, in one subnet and in two. All pods reach each
// other, and an agent that takes over a node uses Felix's device and loses no packet.
func TestAmongFelixNodes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Env = []string{"CALICO_NETWORKING_BACKEND=vxlan"}
	pool := meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever)
	pool.Spec.VXLANMode = api.EncapAlways
	c.Create(t, pool)
	near, far := newFelixNode(t, c, 0, 30), newFelixNode(t, c, 1, 31)
	first, pod := c.NewNodeWithPod(t, 0, 20)
	second, other := c.NewNodeWithPod(t, 1, 21)
	ours := []*meshtest.Node{first, second}
	meshtest.Start(t, ours...)
	for i, n := range ours {
		meshtest.Eventually(t, func() error { return n.Settled(0) })
		meshtest.Eventually(t, func() error {
			if !end(t, n, false).IsValid() {
				return fmt.Errorf("%s has announced no end", n.Name)
			}
			return nil
		})
		for _, f := range []*felixNode{near, far} {
			f.knows(t, n, end(t, n, false), fmt.Sprintf("10.90.%d.0/26", 20+i))
		}
	}
	near.knows(t, far.Node, far.end, far.block)
	far.knows(t, near.Node, near.end, near.block)
	streams := func() (all meshtest.Traffic) {
		for _, to := range []*meshtest.Pod{near.pod, far.pod, other} {
			all = append(all, meshtest.StartTraffic(t, pod, to)...)
		}
		return append(all, meshtest.StartTraffic(t, near.pod, far.pod)...)
	}

	packets := streams()
	first.Signal(t, syscall.SIGTERM)
	first.Start(t, meshtest.Build)
	meshtest.Eventually(t, func() error { return first.Settled(0) })
	packets.Intact(t)
	if text := first.Run(t, "ss", "-Htln", "sport", "=", ":179"); text != "" {
		t.Errorf("BGP is disabled, but a socket listens: %s", text)
	}

	packets = streams()
	device := near.Link(t, vxlan.Device4).Index
	near.Start(t, meshtest.Build)
	meshtest.Eventually(t, func() error { return near.Settled(0) })
	meshtest.Eventually(t, func() error {
		if left := near.Run(t, "ip", "route", "show", "proto", "80"); left != "" {
			return fmt.Errorf("routes of Felix's are left: %s", left)
		}
		return near.Has(t, fmt.Sprintf("%s via %s dev vxlan.calico onlink", far.block, far.end))
	})
	packets.Intact(t)
	if now := near.Link(t, vxlan.Device4).Index; now != device {
		t.Errorf("the device was recreated: index %d became %d", device, now)
	}
	if now := end(t, near.Node, false); now != near.end {
		t.Errorf("the tunnel endpoint %s became %s", near.end, now)
	}
	meshtest.Eventually(t, func() error { // a busy API server may be slow, which is a transient problem
		status, err := near.Status()
		if err == nil && (len(status.Problems) > 0 || !strings.Contains(fmt.Sprint(status.Tunnels), "vxlan.calico")) {
			err = fmt.Errorf("problems %q, tunnels %+v", status.Problems, status.Tunnels)
		}
		return err
	})
}
