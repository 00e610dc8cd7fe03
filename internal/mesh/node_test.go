package mesh

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
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/labtest"
	"github.com/tortie-net/tortie/internal/netlinkx/netnstest"
	"github.com/tortie-net/tortie/internal/nodestatus"
	"github.com/tortie-net/tortie/internal/podnet"
)

// node is a namespace with an agent's process in it, or without.
type node struct {
	*netnstest.NS
	*cluster
	name string
	addr netip.Prefix
	// addr6 is the IPv6 address, if the cluster has two families.
	addr6 netip.Addr
	wire  *labtest.Wire // between the agent and the API server
	dir   string
	http  *http.Client // from inside the namespace
	cmd   *exec.Cmd    // nil: no agent runs
	done  chan error   // what became of cmd
	pods  int
}

// newNode makes a node in a subnet, and its Node. Its address ends with host.
func (c *cluster) newNode(t testing.TB, name string, subnet, host int) *node {
	t.Helper()
	base := subnets[subnet].Addr().As4()
	base[3] = byte(host)
	n := &node{NS: netnstest.New(t), cluster: c, name: name, addr: netip.PrefixFrom(netip.AddrFrom4(base), subnets[subnet].Bits()), dir: t.TempDir()}
	port := fmt.Sprintf("p%d-%d", subnet, host)
	netnstest.Cable(t, n.NS, "eth0", c.fabric, port)
	c.fabric.Run(t, "ip", "link", "set", port, "master", bridgeName(subnet))
	n.Addr(t, "eth0", n.addr.String())
	n.Route(t, "0.0.0.0/0", subnets[subnet].Addr().Next().String(), "eth0")
	if c.dual {
		n.addr6 = netip.MustParseAddr(fmt.Sprintf("fd31:%d::%x", subnet+1, host))
		n.Addr(t, "eth0", n.addr6.String()+"/64")
	}
	n.http = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dial}}
	n.connect(t)
	n.declare(t)
	t.Cleanup(func() { n.end(t) })
	return n
}

// declare creates the Node, as a kubelet does.
func (n *node) declare(t testing.TB) {
	t.Helper()
	obj := &api.Node{Meta: api.Meta{Name: n.name}}
	n.create(t, obj)
	addresses := []api.NodeAddress{{Type: "InternalIP", Address: n.addr.Addr().String()}}
	if n.addr6.IsValid() {
		addresses = append(addresses, api.NodeAddress{Type: "InternalIP", Address: n.addr6.String()})
	}
	patch := kubernetes.Patch{Status: map[string]any{"addresses": addresses}}
	if err := n.store.PatchStatus(t.Context(), obj, patch, false); err != nil {
		t.Fatal(err)
	}
}

// connect lets the agent reach the API server at the node's loopback, by a wire that can be cut.
func (n *node) connect(t testing.TB) {
	t.Helper()
	var wired *rest.Config
	n.wire, wired = labtest.NewWire(t, n.agents)
	var l net.Listener
	n.Within(t, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	t.Cleanup(func() { l.Close() })
	go labtest.Forward(l, strings.TrimPrefix(wired.Host, "https://"))
	named := func(key string, value map[string]any) []any { return []any{map[string]any{"name": "mesh", key: value}} }
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "mesh",
		"contexts": named("context", map[string]any{"cluster": "mesh", "user": "mesh"}),
		"users":    named("user", map[string]any{"token": wired.BearerToken}),
		"clusters": named("cluster", map[string]any{
			"server": "https://" + l.Addr().String(), "certificate-authority-data": wired.CAData, "certificate-authority": wired.CAFile,
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "kubeconfig"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// claim makes a block the node's.
func (n *node) claim(t testing.TB, cidr string) {
	t.Helper()
	n.create(t, newAffinity(n.name, cidr))
}

func (n *node) env() []string {
	v6 := "none"
	if n.addr6.IsValid() {
		v6 = "autodetect"
	}
	return []string{
		"IP6=" + v6, "NODENAME=" + n.name, "KUBECONFIG=" + filepath.Join(n.dir, "kubeconfig"), "NAMESPACE=kube-system", "NO_DEFAULT_POOLS=true",
		"TORTIE_STATE_DIR=" + filepath.Join(n.dir, "state"), "TORTIE_RUN_DIR=" + filepath.Join(n.dir, "run"),
	}
}

// start starts an agent of that build and returns at once. Its log goes on where that of the agent before has ended.
func (n *node) start(t testing.TB, build string) {
	t.Helper()
	log, err := os.OpenFile(n.logPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program(t, build))
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env(), log, log
	n.Within(t, cmd.Start)
	n.cmd, n.done = cmd, make(chan error, 1)
	go func() { n.done <- cmd.Wait() }()
}

func (n *node) logPath() string { return filepath.Join(n.dir, "agent.log") }

// signal ends the agent and returns when it has ended.
func (n *node) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.done:
		n.cmd = nil
	case <-time.After(20 * time.Second * timeScale):
		t.Fatalf("%s: the agent does not end at %s", n.name, s)
	}
}

// end kills the agent with the test, and shows what it said if that failed.
func (n *node) end(t testing.TB) {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		<-n.done
	}
	if t.Failed() {
		t.Logf("%s said last:\n%s", n.name, n.tail(4000))
	}
}

func (n *node) tail(size int) string {
	text, _ := os.ReadFile(n.logPath()) // nothing to show of an agent that never ran
	return string(text[max(0, len(text)-size):])
}

// dial connects from inside the namespace.
func (n *node) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// probe asks the agent's server as the kubelet does.
func (n *node) probe(path string) error {
	_, err := n.get(path)
	return err
}

func (n *node) get(path string) ([]byte, error) {
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

func (n *node) status() (r nodestatus.Report, err error) {
	text, err := n.get("/status")
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// settled returns nil once the agent has sessions with these peers, and no others that are not established, knows all that
// BGP has to tell, and has removed what is left of an earlier agent.
func (n *node) settled(peers int) error {
	r, err := n.status()
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	up := 0
	for _, p := range r.Peers {
		if p.State == "Established" {
			up++
		}
	}
	switch {
	case up != peers:
		return fmt.Errorf("%s: %d sessions of %d are up: %+v", n.name, up, peers, r.Peers)
	case r.Routes.Starting:
		return fmt.Errorf("%s: still holding routes of an earlier agent", n.name)
	case r.LastError != "":
		return fmt.Errorf("%s: %s", n.name, r.LastError)
	}
	return nil
}

// settle waits until all nodes have sessions with each other.
func settle(t testing.TB, nodes ...*node) {
	t.Helper()
	sessions := len(nodes) - 1
	if nodes[0].dual {
		sessions *= 2
	}
	eventually(t, func() error {
		for _, n := range nodes {
			if err := n.settled(sessions); err != nil {
				return err
			}
		}
		return nil
	})
}

// routes are the agent's, as the kernel has them.
func (n *node) routes(t testing.TB) string {
	t.Helper()
	return n.Run(t, "ip", "route", "show", "proto", "84")
}

// has returns nil if the kernel has a route of the agent's that begins so.
func (n *node) has(t testing.TB, route string) error {
	t.Helper()
	for line := range strings.Lines(n.routes(t)) {
		if strings.HasPrefix(line, route) {
			return nil
		}
	}
	return fmt.Errorf("%s has no route %q", n.name, route)
}

// pod is a namespace that is wired to a node as the plugin wires a pod.
type pod struct {
	*netnstest.NS
	addr    netip.Addr
	addr6   netip.Addr // invalid: none
	streams int        // that it has received
}

// newPod makes a pod with an address of the block, or one of each family, by the plugin's own code.
func (n *node) newPod(t testing.TB, addrs ...string) *pod {
	t.Helper()
	p := &pod{NS: netnstest.New(t), addr: netip.MustParseAddr(addrs[0])}
	all := []netip.Addr{p.addr}
	if len(addrs) > 1 {
		p.addr6 = netip.MustParseAddr(addrs[1])
		all = append(all, p.addr6)
	}
	n.pods++
	n.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), podnet.Config{
			Netns: p.Path(), IfName: "eth0", HostVeth: podnet.HostVethName(podnet.DefaultVethPrefix, "mesh", fmt.Sprint(n.name, n.pods)),
			Addresses: all, MTU: 1400,
		})
		return err
	})
	return p
}

// running fails the test if the agent has ended by itself.
func (n *node) running(t testing.TB) {
	t.Helper()
	select {
	case err := <-n.done:
		n.cmd = nil
		t.Errorf("%s: the agent has ended: %v", n.name, err)
	default:
	}
}
