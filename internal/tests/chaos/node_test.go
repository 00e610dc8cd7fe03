package chaos

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const (
	network        = "chaos-net"
	kubeconfigPath = "/etc/cni/net.d/calico-kubeconfig"
	nodenamePath   = "/var/lib/calico/nodename"
	logPath        = "/var/log/calico/cni/cni.log"
	journalPath    = "/var/lib/calico/tortie/journal"
	netnsPath      = "/var/run/netns"
)

// node is one node of the cluster.
type node struct {
	*cnitest.Host
	*cluster
	name string
	conf map[string]any
	env  []string // of the plugins, in addition to that of a runtime
	ours []string // files that it may have, in addition to ownFiles
	pods []*pod
}

// shape is the configuration of a node.
type shape struct {
	pods     int
	dual     bool              // both families
	ipam     string            // ipam.type
	programs *cnitest.Programs // nil: release builds
}

func (c *cluster) newNode(t testing.TB, name string, s shape) *node {
	t.Helper()
	return c.newNodeOn(t, cnitest.NewHost(t, cmp.Or(s.programs, programs)), name, s)
}

func (c *cluster) newNodeOn(t testing.TB, host *cnitest.Host, name string, s shape) *node {
	t.Helper()
	n := &node{Host: host, cluster: c, name: name}
	n.Write(t, nodenamePath, name+"\n")
	ipam := map[string]any{"type": s.ipam}
	if s.dual {
		ipam["assign_ipv4"], ipam["assign_ipv6"] = "true", "true"
	}
	n.conf = map[string]any{
		"name": network, "cniVersion": "1.0.0", "type": "calico", "log_level": "info", "log_file_path": logPath,
		"nodename": name, "mtu": 1440, "ipam": ipam,
	}
	maps.Copy(n.conf, c.equip(t, n))
	for i := range s.pods {
		p := &pod{node: n, name: fmt.Sprintf("%s-pod-%d", name, i)}
		p.args = c.newPod(t, p)
		n.pods = append(n.pods, p)
	}
	return n
}

// pod is a pod of a node, with one sandbox at a time.
type pod struct {
	*node
	name    string
	args    string // CNI_ARGS of its containers
	made    int
	sandbox *sandbox // nil while there is none, or one is created or ended
}

// containerID returns a container ID of the pod. It begins with a hash, as plugins name links by its first characters.
func (p *pod) containerID(number int) string {
	name := fmt.Sprintf("%s-%d", p.name, number)
	return fmt.Sprintf("%.6x-%s", sha256.Sum256([]byte(name)), name)
}

// had reports whether a container belongs to the pod.
func (p *pod) had(containerID string) bool {
	return strings.HasPrefix(containerID[min(len(containerID), 13):], p.name+"-")
}

// sandbox is one attempt of the runtime to start a pod: a container ID and a network namespace.
type sandbox struct {
	*pod
	container string
	ns        *netlinkx.Namespace
	path      string
	addrs     []netip.Addr // once an ADD has succeeded
}

func (p *pod) newSandbox() (*sandbox, error) {
	p.made++
	s := &sandbox{pod: p, container: p.containerID(p.made)}
	s.path = filepath.Join(netnsPath, s.container)
	var err error
	if s.ns, err = netnstest.NewNamespace(); err != nil {
		return nil, err
	}
	return s, p.Try(func() error {
		if err := os.MkdirAll(netnsPath, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(s.path, nil, 0o600); err != nil {
			return err
		}
		return unix.Mount(s.ns.Path(), s.path, "", unix.MS_BIND, "")
	})
}

// end removes the namespace, after a successful DEL.
func (s *sandbox) end() error {
	if err := s.ns.Close(); err != nil {
		return err
	}
	return s.Try(func() error {
		if err := unix.Unmount(s.path, unix.MNT_DETACH); err != nil {
			return err
		}
		return os.Remove(s.path)
	})
}

func (s *sandbox) handle() string { return names.PodHandle(network, s.container) }

// answer is the result of a process: what a runtime sees of it.
type answer struct {
	stdout, stderr    string
	exit              int
	killed            bool
	called, completed time.Duration
}

func (a answer) String() string {
	if a.killed {
		return "killed"
	}
	return fmt.Sprintf("exit %d after %v: %s%s", a.exit, (a.completed - a.called).Round(time.Millisecond), a.stdout, a.stderr)
}

// execTimeout is longer than the plugins' own deadline; reaching it is a bug.
const execTimeout = 3 * time.Minute

// call executes the plugin for a sandbox as containerd does. When kill delivers, which may be never (nil), the plugin
// and its child processes are killed.
func (s *sandbox) call(command string, h *history, kill <-chan time.Time) (answer, error) {
	conf, err := json.Marshal(s.conf)
	if err != nil {
		return answer{}, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(cnitest.BinDir, "calico"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &stdout, &stderr
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + s.container, "CNI_NETNS=" + s.path, "CNI_IFNAME=eth0", "CNI_PATH=" + cnitest.BinDir,
		"CNI_ARGS=IgnoreUnknown=1;" + s.args,
	}
	cmd.Env = append(cmd.Env, s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // own process group: a kill includes the delegated IPAM plugin
	a := answer{called: h.now()}
	if err := s.Try(cmd.Start); err != nil { // a process inherits the namespaces of the thread that starts it
		return a, err
	}
	stop := make(chan struct{})
	expired := make(chan bool, 1)
	go func() {
		timeout := time.NewTimer(execTimeout)
		defer timeout.Stop()
		select {
		case <-kill:
			expired <- false
		case <-timeout.C:
			expired <- true
		case <-stop:
			expired <- false
			return
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}()
	err = cmd.Wait()
	close(stop)
	a.completed, a.stdout, a.stderr = h.now(), stdout.String(), stderr.String()
	if cmd.ProcessState == nil {
		return a, err
	}
	a.exit = cmd.ProcessState.ExitCode()
	a.killed = cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if <-expired {
		return a, fmt.Errorf("%s of %s did not end within %v", command, s.container, execTimeout)
	}
	return a, nil
}

// code is the code of a plugin's error; 0 if it has printed none.
func (a answer) code() uint {
	var e types.Error
	_ = json.Unmarshal([]byte(a.stdout), &e) // no JSON: no code
	return e.Code
}

// addresses decodes the result of ADD.
func (a answer) addresses() ([]netip.Addr, error) {
	var res types100.Result
	if err := json.Unmarshal([]byte(a.stdout), &res); err != nil {
		return nil, fmt.Errorf("result of ADD %q: %w", a.stdout, err)
	}
	var addrs []netip.Addr
	for _, ip := range res.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, addr.Unmap())
	}
	return addrs, nil
}

// collect runs GC with the attachments of the node's sandboxes.
func (n *node) collect() error {
	conf := maps.Clone(n.conf)
	conf["cniVersion"] = "1.1.0"
	attachments := []map[string]string{}
	for _, p := range n.pods {
		if p.sandbox != nil {
			attachments = append(attachments, map[string]string{"containerID": p.sandbox.container, "ifname": "eth0"})
		}
	}
	conf["cni.dev/valid-attachments"] = attachments
	text, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(cnitest.BinDir, "calico"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &out, &out
	cmd.Env = append([]string{"CNI_COMMAND=GC", "CNI_PATH=" + cnitest.BinDir}, n.env...)
	if err := n.Try(cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("GC on %s: %w: %s", n.name, err, &out)
	}
	return nil
}

// journalled reports whether the journal has an entry for the sandbox.
func (s *sandbox) journalled() (found bool, err error) {
	err = s.Try(func() error {
		_, err := os.Stat(filepath.Join(journalPath, s.handle()+".json"))
		if os.IsNotExist(err) {
			return nil
		}
		found = err == nil
		return err
	})
	return found, err
}

// leftovers lists links, routes and files that a node without sandboxes must not have.
func (n *node) leftovers(t testing.TB) []string {
	t.Helper()
	var found []string
	links, err := n.Conn.Links()
	errtest.Must(t, err)
	for _, l := range links {
		if l.Kind == "veth" && l.Name != "eth0" {
			found = append(found, fmt.Sprintf("%s: link %s", n.name, l.Name))
		}
	}
	for _, family := range []netlinkx.Family{netlinkx.IPv4, netlinkx.IPv6} {
		routes, err := n.Conn.Routes(netlinkx.RouteFilter{Family: family})
		errtest.Must(t, err)
		for _, r := range routes {
			if inPools(r.Dst.Addr()) && r.Protocol != agentRoutes {
				found = append(found, fmt.Sprintf("%s: route %s", n.name, r))
			}
		}
	}
	n.On(t, func() error {
		files, err := n.unexpectedFiles()
		for _, f := range files {
			found = append(found, fmt.Sprintf("%s: file %s", n.name, f))
		}
		return err
	})
	return found
}

// ownFiles are the expected files in the directories of Calico and Tortie. The journal's directory stays, empty.
var ownFiles = []string{kubeconfigPath, etcdCAPath, etcdCertPath, etcdKeyPath, nodenamePath, logPath, "/run/calico/ipam.lock",
	"/run/calico/tortie/facts.json", "/run/calico/tortie/cooldown", "/run/calico/tortie/block-v4.json", "/run/calico/tortie/block-v6.json",
	"/run/calico/tortie/api-group", "/run/calico/tortie/api-group-arrived"}

// agentRoutes is the protocol number of agents' routes, which stay when an agent ends.
const agentRoutes = 84

func (n *node) unexpectedFiles() ([]string, error) {
	var found []string
	for _, dir := range []string{"/etc", "/run", "/var"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.Type().IsRegular() && !slices.Contains(ownFiles, path) && !slices.Contains(n.ours, path) {
				found = append(found, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
