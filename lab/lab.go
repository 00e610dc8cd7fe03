// Package lab runs real Kubernetes clusters of several nodes on one Linux machine, for tests and for the demo.
//
// The control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler) runs in its own network namespace,
// each node in its own namespaces with containerd, kubelet and kube-proxy. Nodes have no pod network: the chart under
// test installs it. The machine's own network, cgroups and files are not changed, and a lab leaves nothing behind, even
// when the process that started it is killed.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/cluster"
	"github.com/tortie-net/tortie/lab/internal/deps"
	"github.com/tortie-net/tortie/lab/internal/enter"
	"github.com/tortie-net/tortie/lab/internal/images"
	"github.com/tortie-net/tortie/lab/internal/netns"
	"github.com/tortie-net/tortie/lab/internal/node"
	"github.com/tortie-net/tortie/lab/internal/preflight"
	"github.com/tortie-net/tortie/lab/internal/supervisor"
)

// DebugImage is imported on every node: a shell with ping, wget, httpd, ip and nc.
const DebugImage = images.DebugImage

// DefaultPodCIDR is the default range of pods' IPv4 addresses.
var DefaultPodCIDR = cluster.DefaultPodCIDRs[0]

// DefaultPodCIDR6 is the default range of pods' IPv6 addresses.
var DefaultPodCIDR6 = cluster.DefaultPodCIDRs[1]

// ErrNotRunning is returned for a lab that does not exist.
var ErrNotRunning = cluster.ErrNotRunning

// Config is the configuration of a lab. Every field but Name has a usable zero value.
type Config struct {
	// Name identifies a lab on one machine: 1 to 20 of a-z and 0-9.
	Name string
	// Nodes are the nodes' names; by default master, node1 and node2.
	Nodes []string
	// Images are archives that are imported on every node.
	Images []string
	// Containerd is the major release of containerd: by default the machine's; 2 is built from Go modules.
	Containerd int
	// PodCIDR is the range of pod addresses, by default DefaultPodCIDR. kube-proxy is configured with it, and the API
	// server reaches it.
	PodCIDR netip.Prefix
	// IPv6 gives nodes and Services addresses of both families.
	IPv6 bool
	// PodCIDR6 is the same for IPv6, by default DefaultPodCIDR6.
	PodCIDR6 netip.Prefix
	// DNS installs CoreDNS, which starts once a pod network is installed.
	DNS bool
	// Agnhost puts the image for pods of conformance suites on the nodes.
	Agnhost bool
	// Dir is the parent of the lab's directory, by default below /var/lib.
	Dir string
	// Log takes a line for each stage.
	Log io.Writer
	// Detach keeps the lab running when this process ends.
	Detach bool
	// TimeScale multiplies all deadlines, for slow machines.
	TimeScale float64
}

// DefaultNodes returns the names of n nodes: master, node1, node2 and so on.
func DefaultNodes(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("node%d", i)
	}
	if n > 0 {
		names[0] = "master"
	}
	return names
}

// Lab is a running lab.
type Lab struct {
	state  cluster.State
	launch *supervisor.Launch // nil if another process started it, or it was detached
	cache  *binaries.Cache
}

var initialised bool

// Init must be the first call of main, or of TestMain, in every program that calls Start: a lab's processes are this
// same program, started under another name. It does not return in these.
func Init() {
	initialised = true
	var err error
	switch os.Args[0] {
	case supervisor.Name:
		os.Exit(supervisor.Main())
	case node.EnterName:
		err = node.Enter(os.Args[1])
	case node.InitName:
		err = node.Init(context.Background(), os.Args[1])
	default:
		return
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Start starts a lab and returns when the API server is ready and every node is Ready or lacks only the pod network.
// The lab is stopped by Stop, and when this process ends unless it is detached. After an error nothing is left.
func Start(ctx context.Context, cfg Config) (*Lab, error) {
	if !initialised {
		return nil, errors.New("start a lab: lab.Init was not called first in main or TestMain")
	}
	cfg = cfg.withDefaults()
	spec, err := cfg.shape()
	if err == nil {
		err = preflight.Check(cfg.needs())
	}
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", cfg.Name, err)
	}
	start := time.Now()
	progress := func(text string) {
		fmt.Fprintf(cfg.Log, "%6.1f s  %s\n", time.Since(start).Seconds(), text)
	}
	cache, err := binaries.Open(cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("start a lab: %w", err)
	}
	if err := cfg.resolve(ctx, cache, &spec); err != nil {
		return nil, fmt.Errorf("start lab %q: %w", cfg.Name, err)
	}
	launch, err := supervisor.Start(spec)
	if err != nil {
		return nil, fmt.Errorf("start lab %q: %w", cfg.Name, err)
	}
	if err := launch.WaitReady(ctx, progress); err != nil {
		return nil, fmt.Errorf("start lab %q: %w", cfg.Name, err)
	}
	l := &Lab{launch: launch, cache: cache}
	l.state, err = cluster.ReadState(cfg.Name)
	if err == nil && cfg.DNS {
		err = l.startDNS(ctx)
	}
	if err == nil && cfg.Detach {
		err = launch.Detach()
		l.launch = nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start lab %q: %w", cfg.Name, err), l.Stop(context.WithoutCancel(ctx)))
	}
	progress("lab " + cfg.Name + " is up")
	return l, nil
}

func (c Config) withDefaults() Config {
	if len(c.Nodes) == 0 {
		c.Nodes = DefaultNodes(3)
	}
	if !c.PodCIDR.IsValid() {
		c.PodCIDR = DefaultPodCIDR
	}
	if !c.PodCIDR6.IsValid() {
		c.PodCIDR6 = DefaultPodCIDR6
	}
	if c.Dir == "" {
		c.Dir = cluster.DataDir
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	return c
}

// Measured needs of a lab in MB, without a chart's: memory of the control plane and each node, disk of etcd and each
// node. A node stores an image's archive and its content.
const (
	planeMemory, nodeMemory = 500, 150
	planeDisk, nodeDisk     = 200, 100
	unpacked                = 3
)

func (c Config) needs() preflight.Needs {
	nodes := len(c.Nodes)
	var images int64
	for _, name := range c.Images {
		if st, err := os.Stat(name); err == nil { // a missing file is reported later
			images += st.Size()
		}
	}
	return preflight.Needs{
		What: fmt.Sprintf("a lab of %d nodes", nodes), Root: "makes namespaces and mounts", Packages: deps.Lab,
		Memory: planeMemory + nodes*nodeMemory, Less: ", or ask for fewer nodes",
		Space: []preflight.Space{{
			Dir: c.Dir, MB: planeDisk + nodes*(nodeDisk+unpacked*int(images/preflight.MB)),
			Elsewhere: "name a directory of another one with -dir",
		}},
	}
}

// DefaultPrograms are the names of all programs of a lab with the machine's containerd: the nodes' programs, and tools.
var DefaultPrograms = []string{"hyperkube", "kubectl", "helm", "pause"}

// Programs returns the names of all programs that the lab uses.
func (c Config) Programs() ([]string, error) {
	names := slices.Clone(DefaultPrograms)
	if c.DNS {
		names = append(names, "coredns")
	}
	if c.Agnhost {
		names = append(names, "agnhost")
	}
	switch c.Containerd {
	case 0:
		return names, nil
	case 2:
		return append(names, "containerd"), nil
	default:
		return nil, fmt.Errorf("containerd %d: there are 0, the machine's, and 2, built from Go modules", c.Containerd)
	}
}

// spec returns the cluster's specification without resolved paths.
func (c Config) shape() (cluster.Spec, error) {
	s := cluster.Spec{Name: c.Name, PodCIDRs: []netip.Prefix{c.PodCIDR}, TimeScale: c.TimeScale}
	if c.IPv6 {
		s.PodCIDRs = append(s.PodCIDRs, c.PodCIDR6)
	}
	for i, name := range c.Nodes {
		s.Nodes = append(s.Nodes, cluster.Node{Name: name, Addrs: cluster.NodeAddrs(i, len(s.PodCIDRs))})
	}
	if _, err := c.Programs(); err != nil {
		return s, err
	}
	return s, s.Validate()
}

// resolve returns absolute paths of programs and files, as the supervisor runs in another directory and environment.
func (c Config) resolve(ctx context.Context, cache *binaries.Cache, s *cluster.Spec) error {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	s.Dir = filepath.Join(dir, c.Name)
	if err := c.programs(ctx, cache, s); err != nil {
		return err
	}
	for _, image := range c.Images {
		abs, err := filepath.Abs(image)
		if err != nil {
			return err
		}
		if _, err := os.Stat(abs); err != nil {
			return fmt.Errorf("image archive: %w", err)
		}
		s.Images = append(s.Images, abs)
	}
	return nil
}

// programs resolves all programs of the lab at once, including tools, so that nothing is built later.
func (c Config) programs(ctx context.Context, cache *binaries.Cache, s *cluster.Spec) error {
	names, err := c.Programs()
	if err != nil {
		return err
	}
	paths, err := cache.Paths(ctx, names...)
	if err != nil {
		return err
	}
	for i, name := range names {
		switch name {
		case "hyperkube":
			s.Hyperkube = paths[i]
		case "pause":
			s.Pause = paths[i]
		case "containerd":
			s.Containerd = filepath.Dir(paths[i])
		case "coredns":
			s.CoreDNS = paths[i]
		case "agnhost":
			s.Agnhost = paths[i]
		}
	}
	return nil
}

// Open returns a lab that runs.
func Open(name string) (*Lab, error) {
	state, err := cluster.ReadState(name)
	if err != nil {
		return nil, err
	}
	cache, err := binaries.Open(os.Stderr)
	if err != nil {
		return nil, err
	}
	return &Lab{state: state, cache: cache}, nil
}

// Stop stops the lab and removes all of its parts. It is idempotent.
func (l *Lab) Stop(ctx context.Context) error {
	if l.launch != nil {
		err := l.launch.Stop()
		l.launch = nil
		return err
	}
	err := cluster.Stop(ctx, l.state.Name)
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	return err
}

// Kubeconfig returns the path of the administrator's kubeconfig; its server is reachable from the namespace NetNS.
func (l *Lab) Kubeconfig() string { return l.state.Kubeconfig }

// NetNS returns the file of the network namespace with the control plane and the bridge between the nodes.
func (l *Lab) NetNS() string { return cluster.ControlPlane(l.state.Name) }

// tool runs kubectl or helm as the administrator and returns its standard output; input may be nil.
func (l *Lab) tool(ctx context.Context, input io.Reader, name string, args ...string) (string, error) {
	cmd, err := l.Command(ctx, name, args...)
	if err != nil {
		return "", err
	}
	cmd.Stdin = input
	return output(name, args, cmd, func() error { return netns.Do(l.NetNS(), cmd.Run) })
}

// Suites are the programs that Command prepares besides kubectl and helm: conformance suites of other projects. Their
// pods need Config.Agnhost.
var Suites = []string{"networkpolicy", "clusternetworkpolicy"}

// Command prepares kubectl, helm or a suite with the administrator's kubeconfig. It must be started inside the
// namespace NetNS.
func (l *Lab) Command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	path, err := l.cache.Path(ctx, name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.state.Kubeconfig)
	return cmd, nil
}

// Shell prepares a program with KUBECONFIG and PATH for this lab, so that kubectl, helm and other clients use it. It
// must be started inside the namespace NetNS.
func (l *Lab) Shell(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	tools, err := l.cache.Paths(ctx, "kubectl", "helm")
	if err != nil {
		return nil, err
	}
	var path []string
	for _, tool := range tools {
		path = append(path, filepath.Dir(tool))
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.state.Kubeconfig, "PATH="+strings.Join(append(path, os.Getenv("PATH")), ":"))
	return cmd, cmd.Err
}

// Exec runs a program in a node's namespaces and returns its standard output.
func (l *Lab) Exec(ctx context.Context, node string, args ...string) (string, error) {
	var cmd exec.Cmd
	return output(node+": "+args[0], args[1:], &cmd, func() error {
		return l.Attach(ctx, node, args, func(c *exec.Cmd) { c.Stdout, c.Stderr = cmd.Stdout, cmd.Stderr })
	})
}

// Attach runs a program in a node's namespaces; prepare may connect its input and output.
func (l *Lab) Attach(ctx context.Context, node string, args []string, prepare func(*exec.Cmd)) error {
	if len(args) == 0 {
		return errors.New("no program to run")
	}
	// Read again: a restarted node has another process.
	state, err := cluster.ReadState(l.state.Name)
	if err != nil {
		return err
	}
	n, _, err := state.Node(node)
	if err != nil {
		return err
	}
	return enter.Run(ctx, n.PID, args[0], args[1:], func(c *exec.Cmd) {
		c.Env = nodeEnvironment
		prepare(c)
	})
}

var nodeEnvironment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb"}

// output calls run and returns the standard output of the command; an error contains its standard error.
func output(name string, args []string, cmd *exec.Cmd, run func() error) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %q: %w: %s", name, args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
