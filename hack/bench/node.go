package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/thread"
)

// Paths on a node, as Calico's plugins use them.
const (
	cniBin         = cnitest.BinDir
	kubeconfigPath = "/etc/cni/net.d/calico-kubeconfig"
	nodenamePath   = "/var/lib/calico/nodename"
	logPath        = "/var/log/calico/cni/cni.log"
	netnsDir       = "/var/run/netns"
)

// apiAddress is the API server's address on the underlay, to which every node has a link.
const apiAddress = "10.250.0.1"

// underlay is the network between the nodes and the API server.
type underlay struct{ *thread.Thread }

func newUnderlay() (*underlay, error) {
	t, err := thread.New(func() error {
		if err := thread.OwnNetwork(); err != nil {
			return err
		}
		return ip("link set lo up\naddr add " + apiAddress + "/32 dev lo\n")
	})
	return &underlay{t}, err
}

// ip runs commands of iproute2 in the namespace of the calling thread.
func ip(commands string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w\n%s%s", err, commands, out)
	}
	return nil
}

// node is a host for plugins: a network namespace, and a mount namespace with files of its own.
type node struct {
	*thread.Thread
	name  string
	index int
	slots []slot
}

// slot is one pod's network namespace, reused after DEL: creating and deleting it is the runtime's work, and would
// disturb measurements.
type slot struct {
	index int
	ns    *netlinkx.Namespace
	path  string // on the node
	uid   string // of the pod
}

// newNode creates a node with the programs of a directory and this number of slots.
func newNode(u *underlay, index int, bin string, slots int) (*node, error) {
	t, err := thread.New(func() error { return errors.Join(thread.OwnNetwork(), cnitest.Mount(bin)) })
	if err != nil {
		return nil, fmt.Errorf("make a node: %w", err)
	}
	n := &node{Thread: t, name: fmt.Sprintf("bench-%d", index), index: index}
	if err := n.connect(u); err != nil {
		return nil, err
	}
	for i := range slots {
		if err := n.addSlot(i); err != nil {
			return nil, fmt.Errorf("make a pod's namespace: %w", err)
		}
	}
	return n, n.write(nodenamePath, n.name+"\n")
}

// connect connects the node to the underlay by a link of its own.
func (n *node) connect(u *underlay) error {
	subnet := fmt.Sprintf("10.250.%d", n.index+1)
	link := fmt.Sprintf("node%d", n.index)
	err := u.Do(func() error {
		return ip(fmt.Sprintf("link add %[1]s type veth peer name eth0 netns %[2]s\naddr add %[3]s.1/24 dev %[1]s\nlink set %[1]s up\n",
			link, n.NetNS(), subnet))
	})
	if err != nil {
		return err
	}
	return n.Do(func() error {
		return ip(fmt.Sprintf("link set lo up\nlink set eth0 up\naddr add %[1]s.2/24 dev eth0\nroute add default via %[1]s.1\n", subnet))
	})
}

func (n *node) addSlot(i int) error {
	ns, err := netnstest.NewNamespace()
	if err != nil {
		return err
	}
	s := slot{index: i, ns: ns, path: fmt.Sprintf("%s/pod%d", netnsDir, i)}
	n.slots = append(n.slots, s)
	if err := n.write(s.path, ""); err != nil {
		return err
	}
	return n.Do(func() error {
		return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), s.path, "", unix.MS_BIND, "")
	})
}

// write writes a file on the node.
func (n *node) write(path, text string) error {
	return n.Do(func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), 0o600)
	})
}

// end removes the node and its namespaces.
func (n *node) end() {
	n.Close()
	for _, s := range n.slots {
		_ = s.ns.Close()
	}
}

// cost is the wall time of one process, and the CPU time of it and its children.
type cost struct{ wall, cpu time.Duration }

// execution is one process as libcni starts it: environment, and the configuration on standard input.
type execution struct {
	program string // on the node
	args    []string
	env     []string
	stdin   []byte
}

// run executes a program on the node and measures it from start to exit. A program that fails is an error, as its cost
// is not comparable.
func (n *node) run(e execution) (cost, []byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(e.program, e.args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = e.env, bytes.NewReader(e.stdin), &stdout, &stderr
	var start time.Time
	err := n.Do(func() error {
		start = time.Now()
		return cmd.Start()
	})
	if err != nil {
		return cost{}, nil, fmt.Errorf("start %s: %w", e.program, err)
	}
	err = cmd.Wait()
	took := time.Since(start)
	if err != nil {
		return cost{}, nil, fmt.Errorf("%s %v: %w\n%s%s", e.program, e.env, err, &stdout, &stderr)
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return cost{}, nil, errors.New("no resource usage of the process")
	}
	return cost{wall: took, cpu: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}, stdout.Bytes(), nil
}
