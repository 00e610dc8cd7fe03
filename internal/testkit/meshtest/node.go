package meshtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Node is a namespace in which an agent may run.
type Node struct {
	*netnstest.NS
	*Cluster
	Name   string
	Prefix netip.Prefix // its IPv4 address
	// V6 is the IPv6 address in a dual-stack cluster.
	V6   netip.Addr
	Wire *labtest.Wire // between the agent and the API server
	Dir  string
	http *http.Client // from inside the namespace
	Cmd  *exec.Cmd    // nil while no agent runs
	done chan error   // result of Cmd.Wait
	pods int
}

// NewNode adds a node to a subnet and creates its Node object. host is the last part of its address.
func (c *Cluster) NewNode(t testing.TB, name string, subnet, host int) *Node {
	t.Helper()
	base := subnets[subnet].Addr().As4()
	base[3] = byte(host)
	n := &Node{NS: netnstest.New(t), Cluster: c, Name: name,
		Prefix: netip.PrefixFrom(netip.AddrFrom4(base), subnets[subnet].Bits()), Dir: t.TempDir()}
	port := fmt.Sprintf("p%d-%d", subnet, host)
	netnstest.Cable(t, n.NS, "eth0", c.Fabric, port)
	c.Fabric.Run(t, "ip", "link", "set", port, "master", bridgeName(subnet))
	n.Addr(t, "eth0", n.Prefix.String())
	n.Route(t, "0.0.0.0/0", subnets[subnet].Addr().Next().String(), "eth0")
	if c.Dual {
		n.V6 = netip.MustParseAddr(fmt.Sprintf("fd31:%d::%x", subnet+1, host))
		n.Addr(t, "eth0", n.V6.String()+"/64")
	}
	n.http = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dial}}
	n.declare(t)
	n.connect(t)
	t.Cleanup(func() { n.End(t) })
	return n
}

// declare creates the Node object, as a kubelet does.
func (n *Node) declare(t testing.TB) {
	t.Helper()
	obj := &api.Node{Meta: api.Meta{Name: n.Name, Labels: n.Labels}}
	n.Create(t, obj)
	addresses := []api.NodeAddress{{Type: "InternalIP", Address: n.Prefix.Addr().String()}}
	if n.V6.IsValid() {
		addresses = append(addresses, api.NodeAddress{Type: "InternalIP", Address: n.V6.String()})
	}
	patch := kubernetes.Patch{Status: map[string]any{"addresses": addresses}}
	errtest.Must(t, n.Store.PatchStatus(t.Context(), obj, patch, false))
}

// connect gives the agent access to the API server at the node's loopback address, over a Wire that a test can
// interrupt.
func (n *Node) connect(t testing.TB) {
	t.Helper()
	var wired *rest.Config
	n.Wire, wired = labtest.NewWire(t, labtest.OnNode(t, n.Admin, "tortie-node", n.Name))
	labtest.WriteKubeconfig(t, n.Dir, labtest.Inside(t, n.NS, wired))
}

// Claim creates a block with an affinity to the node. An API server that has just started may refuse it for half a
// minute: its admission, which does not know the definition of pools yet, asks for it that often.
func (n *Node) Claim(t testing.TB, cidr string) {
	t.Helper()
	Eventually(t, func() error { return n.Store.Create(t.Context(), NewAffinity(n.Name, cidr)) })
}

func (n *Node) env() []string {
	v6 := "none"
	if n.V6.IsValid() {
		v6 = "autodetect"
	}
	return append([]string{
		"IP6=" + v6, "NODENAME=" + n.Name, "KUBECONFIG=" + filepath.Join(n.Dir, "kubeconfig"), "NAMESPACE=kube-system", "NO_DEFAULT_POOLS=true",
		"TORTIE_STATE_DIR=" + filepath.Join(n.Dir, "state"), "TORTIE_RUN_DIR=" + filepath.Join(n.Dir, "run"),
	}, n.Env...)
}

// Start starts an agent of a build and returns at once. Its log is appended to the earlier agent's.
func (n *Node) Start(t testing.TB, build string) {
	t.Helper()
	log, err := os.OpenFile(n.logPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	errtest.Must(t, err)
	defer log.Close()
	command := append(slices.Clone(n.Launcher), Program(t, build))
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env(), log, log
	n.Within(t, cmd.Start)
	n.Cmd, n.done = cmd, make(chan error, 1)
	go func() { n.done <- cmd.Wait() }()
}

func (n *Node) logPath() string { return filepath.Join(n.Dir, "agent.log") }

// Signal sends a signal that ends the agent, and returns when it has ended.
func (n *Node) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	errtest.Must(t, n.Cmd.Process.Signal(s))
	select {
	case <-n.done:
		n.Cmd = nil
	case <-time.After(20 * time.Second * TimeScale):
		t.Fatalf("%s: the agent does not end at %s", n.Name, s)
	}
}

// End kills the agent with the test, and logs the end of its log if the test failed.
func (n *Node) End(t testing.TB) {
	if n.Cmd != nil {
		_ = n.Cmd.Process.Kill()
		<-n.done
	}
	if t.Failed() {
		t.Logf("end of the log of %s:\n%s", n.Name, n.Tail(4000))
	}
}

// Tail returns the end of the log of the node's agents.
func (n *Node) Tail(size int) string {
	text, _ := os.ReadFile(n.logPath()) // an agent that never ran has no log
	return string(text[max(0, len(text)-size):])
}

// dial connects from inside the namespace.
func (n *Node) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Probe requests a health endpoint of the agent, as the kubelet does.
func (n *Node) Probe(path string) error {
	_, err := n.get(path)
	return err
}

func (n *Node) get(path string) ([]byte, error) {
	resp, err := n.http.Get("http://127.0.0.1:9099" + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, bytes.TrimSpace(text))
	}
	return text, err
}

// Status returns the agent's status report.
func (n *Node) Status() (r nodestatus.Report, err error) {
	text, err := n.get("/status")
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// Metrics returns the agent's metrics.
func (n *Node) Metrics() (string, error) {
	text, err := n.get("/metrics")
	return string(text), err
}

// Settled returns nil once the agent has this number of established sessions, has removed the stale routes of an
// earlier agent, and reports no error.
func (n *Node) Settled(peers int) error {
	r, err := n.Status()
	if err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	up := 0
	for _, p := range r.Peers {
		if p.State == "Established" {
			up++
		}
	}
	switch {
	case up != peers:
		return fmt.Errorf("%s: %d sessions of %d are up: %+v", n.Name, up, peers, r.Peers)
	case r.Routes.Starting:
		return fmt.Errorf("%s: still holding routes of an earlier agent", n.Name)
	case r.LastError != "":
		return fmt.Errorf("%s: %s", n.Name, r.LastError)
	}
	return nil
}

// Settle waits until all nodes have sessions with each other.
func Settle(t testing.TB, nodes ...*Node) {
	t.Helper()
	sessions := len(nodes) - 1
	if nodes[0].Dual {
		sessions *= 2
	}
	Eventually(t, func() error {
		for _, n := range nodes {
			if err := n.Settled(sessions); err != nil {
				return err
			}
		}
		return nil
	})
}

// Routes returns the agent's routes in the kernel.
func (n *Node) Routes(t testing.TB) string {
	t.Helper()
	return n.Run(t, "ip", "route", "show", "proto", "84")
}

// Has returns nil if the kernel has a route of the agent that starts with this text.
func (n *Node) Has(t testing.TB, route string) error {
	t.Helper()
	for line := range strings.Lines(n.Routes(t)) {
		if strings.HasPrefix(line, route) {
			return nil
		}
	}
	return fmt.Errorf("%s has no route %q", n.Name, route)
}

// Pod is a namespace connected to a node by the plugin's code.
type Pod struct {
	*netnstest.NS
	V4, V6  netip.Addr // V6 is invalid without IPv6
	streams int        // number of streams received
}

// NewPod connects a pod with one address of the block, or one of each family, by the plugin's code.
func (n *Node) NewPod(t testing.TB, addrs ...string) *Pod {
	t.Helper()
	return n.NewFloatingPod(t, nil, addrs...)
}

// NewFloatingPod is NewPod with floating addresses, which the plugin notes after IPAM has assigned them.
func (n *Node) NewFloatingPod(t testing.TB, floating []netip.Addr, addrs ...string) *Pod {
	t.Helper()
	p := &Pod{NS: netnstest.New(t), V4: netip.MustParseAddr(addrs[0])}
	all := []netip.Addr{p.V4}
	if len(addrs) > 1 {
		p.V6 = netip.MustParseAddr(addrs[1])
		all = append(all, p.V6)
	}
	n.pods++
	n.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), podnet.Config{
			Netns: p.Path(), IfName: "eth0", HostVeth: podnet.HostVethName(podnet.DefaultVethPrefix, "mesh", fmt.Sprint(n.Name, n.pods)),
			Addresses: all, MTU: 1400, Floating: floating,
		})
		return err
	})
	return p
}

// Running fails the test if the agent has exited.
func (n *Node) Running(t testing.TB) {
	t.Helper()
	select {
	case err := <-n.done:
		n.Cmd = nil
		t.Errorf("%s: the agent has exited: %v", n.Name, err)
	default:
	}
}

// RemoveState removes the state that the agents of this node persist across restarts.
func (n *Node) RemoveState(t testing.TB) {
	t.Helper()
	errtest.Must(t, os.RemoveAll(filepath.Join(n.Dir, "run")))
}
