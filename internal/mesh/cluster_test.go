package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/labtest"
	"github.com/tortie-net/tortie/internal/netlinkx/netnstest"
	"github.com/tortie-net/tortie/internal/sysctl"
)

// patience is how long a test waits for what must happen. It says nothing of how long that should take: see the benchmarks.
// An emulated processor is ten times slower.
const patience = 90 * time.Second

// subnets are the nodes', each on a bridge of its own behind one router.
var subnets = []netip.Prefix{netip.MustParsePrefix("172.31.1.0/24"), netip.MustParsePrefix("172.31.2.0/24")}

// cluster is some nodes, what joins them, and the API server of their own.
type cluster struct {
	server *labtest.Server
	admin  *rest.Config
	agents *rest.Config // what the agents may
	store  *kubernetes.Store
	fabric *netnstest.NS // bridges and the router between them
	dual   bool          // nodes and pods of pairs have an IPv6 address beside the other
}

// newCluster makes a cluster without nodes. It ends with the test.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{server: labtest.NewServer(t), fabric: newFabric(t)}
	var err error
	if c.admin, err = clientcmd.BuildConfigFromFlags("", c.server.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	c.agents = labtest.AsOn(t, c.admin, "tortie-node")
	cfg, err := kubernetes.LoadKubeconfig(c.server.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if c.store, err = kubernetes.New(cfg); err != nil {
		t.Fatal(err)
	}
	return c
}

// newFabric makes a namespace with a bridge for each subnet, which it routes between.
func newFabric(t testing.TB) *netnstest.NS {
	t.Helper()
	fabric := netnstest.New(t)
	for i, subnet := range subnets {
		bridge := bridgeName(i)
		fabric.Run(t, "ip", "link", "add", bridge, "type", "bridge")
		fabric.Up(t, bridge)
		fabric.Addr(t, bridge, netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits()).String())
	}
	fabric.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	return fabric
}

func bridgeName(subnet int) string { return fmt.Sprint("br", subnet) }

// create makes objects of the cluster.
func (c *cluster) create(t testing.TB, objects ...api.Resource) {
	t.Helper()
	for _, obj := range objects {
		if err := c.store.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *cluster) remove(t testing.TB, obj api.Resource) {
	t.Helper()
	err := c.store.Get(t.Context(), obj)
	if err == nil {
		err = c.store.Delete(t.Context(), obj)
	}
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		t.Fatal(err)
	}
}

func newPool(name, cidr string, mode api.Encapsulation) *api.IPPool {
	size := 26
	if strings.Contains(cidr, ":") {
		size = 122
	}
	return &api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{
		CIDR: cidr, BlockSize: size, IPIPMode: mode, VXLANMode: api.EncapNever, NATOutgoing: true, NodeSelector: "all()",
		AllowedUses: []api.AllowedUse{api.UseWorkload, api.UseTunnel},
	}}
}

// newAffinity is a confirmed claim of a node.
func newAffinity(node, cidr string) *api.BlockAffinity {
	return &api.BlockAffinity{
		Meta: api.Meta{Name: node + "-" + strings.NewReplacer(".", "-", "/", "-", ":", "-").Replace(cidr)},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, CIDR: cidr, Type: api.AffinityHost, Deleted: "false"},
	}
}

// start starts nodes at the same time, and returns when all of them are ready.
func start(t testing.TB, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		n.start(t, build)
	}
	eventually(t, func() error {
		for _, n := range nodes {
			if err := n.probe("/readyz"); err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
		}
		return nil
	})
}

// eventually waits until check returns nil.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	within(t, patience, check)
}

func within(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	limit *= timeScale
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		if t.Context().Err() != nil {
			t.Fatal(context.Cause(t.Context()))
		}
	}
}

// timeScale is how much slower than usual this machine is.
var timeScale = func() time.Duration {
	if os.Getenv("TORTIE_LAB_TIMESCALE") != "" {
		return 10
	}
	return 1
}()
