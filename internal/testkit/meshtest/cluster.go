package meshtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// Patience is the limit for a condition that must become true. It is no expectation of speed (the benchmarks measure
// that): an emulated processor is ten times slower.
const Patience = 90 * time.Second

// subnets holds the subnets of the nodes. Each is a bridge behind one router.
var subnets = []netip.Prefix{netip.MustParsePrefix("172.31.1.0/24"), netip.MustParsePrefix("172.31.2.0/24")}

// Cluster is a set of nodes, the network between them, and an API server of its own for the test.
type Cluster struct {
	Server *labtest.Server
	Admin  *rest.Config
	Store  *kubernetes.Store
	Fabric *netnstest.NS // bridges and the router between them
	Dual   bool          // nodes and pods also have an IPv6 address
	Env    []string      // additional environment of the agents
	// Launcher is a program that starts the agent, such as setpriv with its options. It must exec the program that
	// follows.
	Launcher []string
	// Labels are set on Nodes that are created.
	Labels map[string]string
}

// NewCluster returns a cluster without nodes, on a server that an earlier test may have used. It is removed with the
// test.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	if TimeScale > 1 { // in a virtual machine, where reading a server's objects takes longer and no other test follows
		return NewClusterOn(t, labtest.NewServer(t))
	}
	return newCluster(t, labtest.TakeServer(t, labtest.Kind{Group: labtest.Group(t), Fenced: true}))
}

// NewClusterOn is NewCluster with an API server that the test started.
func NewClusterOn(t testing.TB, server *labtest.Server) *Cluster {
	t.Helper()
	c := newCluster(t, server)
	labtest.Fence(t, c.Admin)
	return c
}

func newCluster(t testing.TB, server *labtest.Server) *Cluster {
	t.Helper()
	c := &Cluster{Server: server, Fabric: newFabric(t)}
	var err error
	if c.Admin, err = clientcmd.BuildConfigFromFlags("", c.Server.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	c.Store = labstore.At(t, c.Server.Kubeconfig())
	return c
}

// newFabric returns a namespace with a bridge for each subnet and routing between them.
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

// Create creates objects in the cluster.
func (c *Cluster) Create(t testing.TB, objects ...api.Resource) {
	t.Helper()
	for _, obj := range objects {
		errtest.Must(t, c.Store.Create(t.Context(), obj))
	}
}

// Remove deletes an object, if it exists.
func (c *Cluster) Remove(t testing.TB, obj api.Resource) {
	t.Helper()
	err := c.Store.Get(t.Context(), obj)
	if err == nil {
		err = c.Store.Delete(t.Context(), obj)
	}
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		t.Fatal(err)
	}
}

// NewPool returns a pool with outgoing NAT.
func NewPool(name, cidr string, mode api.Encapsulation) *api.IPPool {
	size := 26
	if strings.Contains(cidr, ":") {
		size = 122
	}
	return &api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{
		CIDR: cidr, BlockSize: size, IPIPMode: mode, VXLANMode: api.EncapNever, NATOutgoing: true, NodeSelector: "all()",
		AllowedUses: []api.AllowedUse{api.UseWorkload, api.UseTunnel},
	}}
}

// NewAffinity returns a confirmed affinity of a node.
func NewAffinity(node, cidr string) *api.BlockAffinity {
	return &api.BlockAffinity{
		Meta: api.Meta{Name: node + "-" + strings.NewReplacer(".", "-", "/", "-", ":", "-").Replace(cidr)},
		Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, CIDR: cidr, Type: api.AffinityHost},
	}
}

// Start starts nodes concurrently, and returns when all of them are ready.
func Start(t testing.TB, nodes ...*Node) {
	t.Helper()
	for _, n := range nodes {
		n.Start(t, Build)
	}
	Eventually(t, func() error {
		for _, n := range nodes {
			if err := n.Probe("/readyz"); err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
		}
		return nil
	})
}

// Eventually waits until check returns nil.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	Within(t, Patience, check)
}

// Within is Eventually with another limit.
func Within(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	waittest.For(t, limit, func() error {
		err := check()
		if err != nil && t.Context().Err() != nil {
			t.Fatal(context.Cause(t.Context()))
		}
		return err
	})
}

// TimeScale multiplies timeouts on slow machines.
var TimeScale = labtest.TimeScale
