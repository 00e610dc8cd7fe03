// Package cluster starts a Kubernetes cluster of several nodes on this machine, and removes it without remains.
//
// It owns everything with the lab's name: cgroups tortie-LAB, the lab's directory and its entry in RunDir, which has
// its network namespaces. It does not change the machine's own network, cgroups and files.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/cgroup"
	"github.com/tortie-net/tortie/lab/internal/images"
	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/netns"
	"github.com/tortie-net/tortie/lab/internal/node"
	"github.com/tortie-net/tortie/lab/internal/pki"
	"github.com/tortie-net/tortie/lab/internal/plane"
	"github.com/tortie-net/tortie/lab/internal/proc"
	"github.com/tortie-net/tortie/lab/internal/wire"
)

const (
	maxNodes  = 40
	firstNode = 11 // 172.30.0.11
	apiPort   = 6443
)

// Limits for a very busy machine: an idle one takes seconds.
const (
	planeTimeout   = 3 * time.Minute
	nodesTimeout   = 6 * time.Minute
	cleanupTimeout = time.Minute
)

// ControlPlaneName is used in place of a node's name; no node may have it.
const ControlPlaneName = "cp"

// underlays are the subnets between the nodes, with the control plane's address, by family; every lab has them in
// namespaces of its own.
var underlays = []netip.Prefix{netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("fd00:172:30::1/64")}

// DefaultPodCIDRs are the default ranges of pod addresses, by family as underlays.
var DefaultPodCIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fd00:192:168::/48")}

// NodeAddrs returns the addresses of the i-th node in the underlay, in its first families: 172.30.0.11 and
// fd00:172:30::11.
func NodeAddrs(i, families int) []netip.Addr {
	v4, v6 := underlays[0].Addr().As4(), underlays[1].Addr().As16()
	n := firstNode + i
	v4[3] = byte(n)
	v6[15] = byte(n/10<<4 | n%10) // the same digits
	return []netip.Addr{netip.AddrFrom4(v4), netip.AddrFrom16(v6)}[:families]
}

// CoreDNSImage is the image of CoreDNS, which nodes have if DNS is enabled.
const CoreDNSImage = "docker.io/tortie-net/coredns:dev"

// ControlPlane returns the file of the network namespace of a lab's control plane and underlay.
func ControlPlane(lab string) string { return nsPath(lab, ControlPlaneName) }

func nsPath(lab, node string) string { return filepath.Join(nsDir(lab), node) }

// nsDir returns the directory with a lab's network namespaces.
func nsDir(lab string) string { return filepath.Join(stateDir(lab), "netns") }

// Progress is called for every completed stage.
type Progress func(format string, args ...any)

// Cluster is a running cluster, owned by this process.
type Cluster struct {
	state    State
	self     string
	lock     *os.File
	layout   cgroup.Layout
	spawner  *proc.Spawner
	plane    *plane.Plane
	nodes    proc.Group
	progress Progress

	mu      sync.Mutex               // guards the rest, and state once the cluster is up
	running map[string]*proc.Process // the first processes of the nodes, by their names
}

// Up starts a cluster and returns when every node is Ready or lacks only the pod network. After an error nothing is
// left. It first removes the remains of a cluster of that name with a killed owner. self is the program that is run as
// node.EnterName.
func Up(ctx context.Context, spec Spec, self string, progress Progress) (_ *Cluster, err error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	held, err := takeLock(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	c := &Cluster{self: self, lock: held, spawner: proc.NewSpawner(), progress: progress, running: map[string]*proc.Process{},
		state: State{Spec: spec, Supervisor: os.Getpid(), Started: time.Now()}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Down(context.WithoutCancel(ctx)))
		}
	}()
	return c, c.up(ctx)
}

func (c *Cluster) up(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return err
	}
	c.progress("namespaces, cgroups and links made; starting etcd, kube-apiserver and %d nodes", len(c.state.Nodes))
	if err := c.startNodes(); err != nil {
		return err
	}
	if err := c.startPlane(ctx); err != nil {
		return err
	}
	c.progress("control plane ready at %s", c.server())
	if err := c.joinNodes(); err != nil {
		return err
	}
	c.progress("nodes import %d images, then start kubelet and kube-proxy", len(c.state.Images))
	if err := c.waitNodes(ctx); err != nil {
		return err
	}
	c.state.Ready = true
	return c.state.write()
}

func (c *Cluster) server() string {
	return netip.AddrPortFrom(c.underlays()[0].Addr(), apiPort).String()
}

// underlays returns the underlays of the cluster's families.
func (c *Cluster) underlays() []netip.Prefix { return underlays[:len(c.state.PodCIDRs)] }

func (c *Cluster) planeDir() string        { return filepath.Join(c.state.Dir, ControlPlaneName) }
func (c *Cluster) nodeDir(n string) string { return filepath.Join(c.state.Dir, n) }

// prepare creates directories, namespaces and cgroups. The state is written first, so that remains can always be
// removed.
func (c *Cluster) prepare() error {
	s := &c.state
	layout, err := cgroup.Detect()
	if err != nil {
		return err
	}
	c.layout = layout
	s.Kubeconfig = filepath.Join(c.planeDir(), "admin.kubeconfig")
	if err := s.write(); err != nil {
		return err
	}
	if err := c.makeDir(); err != nil {
		return fmt.Errorf("make the lab's directory: %w", err)
	}
	if err := c.writeImages(); err != nil {
		return err
	}
	cp := ControlPlane(s.Name)
	if err := netns.Create(cp); err != nil {
		return err
	}
	if err := wire.Bridge(cp, c.underlays()); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if err := c.prepareNode(n); err != nil {
			return err
		}
	}
	// The API server calls webhooks and proxies requests to pods. The control plane is no node and has no pod network, but
	// every node's agent has routes to all pods: packets are routed through the first node.
	if err := wire.Routes(cp, s.PodCIDRs, s.Nodes[0].Addrs); err != nil {
		return err
	}
	return s.write()
}

// makeDir creates the lab's directory, which must be new, as it will be removed with its content. A directory of this
// name below DataDir belongs to a lab that a reboot ended.
func (c *Cluster) makeDir() error {
	dir := c.state.Dir
	if filepath.Dir(dir) == DataDir {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Mkdir(c.planeDir(), 0o700)
}

// writeImages writes the archives of the images that every node needs.
func (c *Cluster) writeImages() error {
	own, err := c.images()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.state.Dir, "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	var files []string
	for i, image := range own {
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.tar", i)))
		if err := image.Write(files[i]); err != nil {
			return err
		}
	}
	c.state.Images = append(files, c.state.Images...)
	return nil
}

func (c *Cluster) images() ([]images.Image, error) {
	debug, err := images.Debug()
	if err != nil {
		return nil, err
	}
	all := []images.Image{debug}
	for _, of := range []struct {
		program string
		image   func(program string) (images.Image, error)
	}{
		{c.state.Pause, func(program string) (images.Image, error) { return images.Program(node.PauseImage, program) }},
		{c.state.CoreDNS, func(program string) (images.Image, error) { return images.Program(CoreDNSImage, program) }},
		{c.state.Agnhost, images.Agnhost},
	} {
		if of.program == "" {
			continue
		}
		image, err := of.image(of.program)
		if err != nil {
			return nil, err
		}
		all = append(all, image)
	}
	return all, nil
}

func (c *Cluster) prepareNode(n Node) error {
	if err := c.makeHardware(n); err != nil {
		return err
	}
	disk := node.DiskDir(c.nodeDir(n.Name))
	if err := os.MkdirAll(disk, 0o700); err != nil {
		return fmt.Errorf("make the directory of node %s: %w", n.Name, err)
	}
	if onOverlay(disk) {
		if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", disk, err)
		}
	}
	return c.nodeConfig(n).Write()
}

// makeHardware creates, at each start, a node's parts other than its disk: a network with its uplink, and cgroups.
func (c *Cluster) makeHardware(n Node) error {
	ns := nsPath(c.state.Name, n.Name)
	if err := netns.Create(ns); err != nil {
		return err
	}
	if err := wire.Attach(c.wireNode(ns, n)); err != nil {
		return err
	}
	enabled, err := c.layout.Create(c.state.Name, n.Name)
	c.state.Controllers = append(c.state.Controllers, enabled...)
	return err
}

func (c *Cluster) wireNode(ns string, n Node) wire.Node {
	w := wire.Node{Hub: ControlPlane(c.state.Name), NetNS: ns, Port: n.Name}
	for i, underlay := range c.underlays() {
		w.Addrs = append(w.Addrs, netip.PrefixFrom(n.Addrs[i], underlay.Bits()))
		w.Gateways = append(w.Gateways, underlay.Addr())
	}
	return w
}

func (c *Cluster) nodeConfig(n Node) node.Config {
	hosts := map[string][]netip.Addr{}
	for _, other := range c.state.Nodes {
		hosts[other.Name] = other.Addrs
	}
	return node.Config{
		Lab: c.state.Name, Name: n.Name, Addrs: n.Addrs, Dir: c.nodeDir(n.Name), Hyperkube: c.state.Hyperkube, Containerd: c.state.Containerd,
		Images: c.state.Images, PodCIDRs: c.state.PodCIDRs, Hosts: hosts, MachineID: pki.Token(),
	}
}

func onOverlay(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// startNodes starts containerd and the import of images on the nodes while the control plane starts.
func (c *Cluster) startNodes() error {
	for i := range c.state.Nodes {
		if err := c.startNode(&c.state.Nodes[i]); err != nil {
			return err
		}
	}
	return c.state.write()
}

func (c *Cluster) startNode(n *Node) error {
	p, err := c.spawner.Start(proc.Spec{
		Name: node.EnterName, Path: c.self, Args: []string{node.ConfigPath(c.nodeDir(n.Name))},
		Log:   filepath.Join(c.nodeDir(n.Name), "node.log"),
		NetNS: nsPath(c.state.Name, n.Name),
		Attr:  syscall.SysProcAttr{Cloneflags: node.CloneFlags},
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	c.nodes.Add(p)
	c.running[n.Name] = p
	n.PID = p.PID
	return nil
}

func (c *Cluster) startPlane(ctx context.Context) error {
	var names []string
	for _, n := range c.state.Nodes {
		names = append(names, n.Name)
	}
	p, err := plane.Start(ctx, plane.Config{
		Dir: c.planeDir(), Hyperkube: c.state.Hyperkube, Spawner: c.spawner, NetNS: ControlPlane(c.state.Name),
		Address: c.underlays()[0].Addr(), Port: apiPort, Nodes: names, ControllerManager: true, Scheduler: true,
		IPv6Services: len(c.underlays()) > 1,
		Timeout:      c.state.scaled(planeTimeout),
	})
	c.plane = p
	return err
}

// joinNodes writes each node's certificate and kubeconfigs, for which its kubelet waits.
func (c *Cluster) joinNodes() error {
	for _, n := range c.state.Nodes {
		dir := c.nodeDir(n.Name)
		cert := filepath.Join(c.planeDir(), "kubelet-"+n.Name)
		if err := c.plane.Authority().Server("kubelet-"+n.Name, []string{n.Name}, n.Addrs); err != nil {
			return err
		}
		proxy, kubelet := node.Kubeconfigs(dir)
		files := [][2]string{
			{c.plane.Authority().CAFile(), filepath.Join(dir, "ca.crt")},
			{cert + ".crt", filepath.Join(dir, "kubelet.crt")},
			{cert + ".key", filepath.Join(dir, "kubelet.key")},
			{c.plane.Kubeconfig("proxy"), proxy},
			{c.plane.Kubeconfig(plane.NodeUser(n.Name)), kubelet},
		}
		for _, f := range files {
			if err := copyFile(f[0], f[1]); err != nil {
				return fmt.Errorf("give node %s its files: %w", n.Name, err)
			}
		}
	}
	return nil
}

// copyFile copies by renaming, so that a file is complete when it appears.
func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

func (c *Cluster) waitNodes(ctx context.Context) error {
	limit := c.state.scaled(nodesTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the nodes were not up within %s", limit))
	defer cancel()
	seen := map[string]bool{}
	err := kubeapi.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		if err := c.Check(); err != nil {
			return kubeapi.Fatal{Err: err}
		}
		return c.allUp(ctx, seen)
	})
	if err != nil {
		return c.withNodeLogs(err)
	}
	return kubeapi.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		// No Pod is admitted before the controller manager has created it.
		ok, err := c.plane.Client.Exists(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
		if err == nil && !ok {
			err = errors.New("no ServiceAccount default/default yet")
		}
		return err
	})
}

func (c *Cluster) allUp(ctx context.Context, seen map[string]bool) error {
	nodes, err := c.plane.Client.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if ready, message := n.Ready(); !n.OnlyNetworkMissing() {
			return fmt.Errorf("node %s is not ready: %s", n.Name, message)
		} else if !seen[n.Name] {
			seen[n.Name] = true
			c.progress("node %s up at %s (%s, %s, ready=%v)", n.Name, n.Addresses, n.Kubelet, n.Runtime, ready)
		}
	}
	if len(nodes) < len(c.state.Nodes) {
		return fmt.Errorf("%d of %d nodes have registered", len(nodes), len(c.state.Nodes))
	}
	return nil
}

func (c *Cluster) withNodeLogs(err error) error {
	for _, n := range c.state.Nodes {
		err = withLogs(err, n.Name, c.nodeDir(n.Name))
	}
	return err
}

// withLogs adds the end of a node's logs.
func withLogs(err error, name, dir string) error {
	for _, log := range []string{"node", "import", "kubelet"} {
		path := filepath.Join(dir, log+".log")
		if st, statErr := os.Stat(path); statErr == nil && st.Size() > 0 {
			err = fmt.Errorf("%w\n%s of node %s ends:\n%s", err, filepath.Base(path), name, proc.Tail(path))
		}
	}
	return err
}

// Check returns an error when a part of the cluster has exited, with the tail of its log.
func (c *Cluster) Check() error {
	if dead := c.nodes.Dead(); dead != nil {
		return c.withNodeLogs(errors.New("a node has ended"))
	}
	if c.plane == nil {
		return nil
	}
	return c.plane.Check()
}

// Fail records in the state that a part has exited.
func (c *Cluster) Fail(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Failure = cause.Error()
	return c.state.write()
}

// Down kills the cluster and removes all of its parts.
func (c *Cluster) Down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.state.scaled(cleanupTimeout))
	defer cancel()
	err := c.nodes.Kill(ctx)
	if c.plane != nil {
		err = errors.Join(err, c.plane.Stop(ctx))
	}
	err = errors.Join(err, c.state.remove(ctx))
	return errors.Join(err, c.lock.Close())
}
