package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/netlinkx"
)

// Lab is a real cluster of a test's own: nodes with containerd, kubelet and kube-proxy, which have no pod network until a chart
// brings it.
type Lab struct {
	// Name tells it apart from other labs of the machine.
	Name       string
	program    string
	kubeconfig string
}

// NewLab starts a lab with that many nodes (master, node1, node2, ...); options are more of `lab up`. It ends with the test, also when
// the test is killed.
func NewLab(t testing.TB, nodes int, options ...string) *Lab {
	t.Helper()
	program, err := labBinary(config.OS())
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{Name: fmt.Sprintf("test%d", os.Getpid()), program: program}
	args := append([]string{"up", "-attached", "-name", l.Name, "-nodes", strconv.Itoa(nodes)}, options...)
	if l.kubeconfig, err = launchFor(t, args...).ready(); err != nil {
		t.Fatal(err)
	}
	return l
}

// Do runs a command of the lab, such as kubectl, helm, exec or restart, on this lab and returns what it wrote. An error holds what it said.
func (l *Lab) Do(ctx context.Context, command string, args ...string) (string, error) {
	return l.do(ctx, nil, command, args...)
}

// Put writes a file onto a node.
func (l *Lab) Put(ctx context.Context, node, path string, mode os.FileMode, content []byte) error {
	_, err := l.do(ctx, content, "exec", node, "sh", "-c", `cat > "$0" && chmod "$1" "$0"`, path, fmt.Sprintf("%o", mode))
	return err
}

func (l *Lab) do(ctx context.Context, input []byte, command string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, l.program, append([]string{command, "-name", l.Name}, args...)...)
	var out, diag bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("lab %s %q: %w: %s", command, args, err, bytes.TrimSpace(diag.Bytes()))
	}
	return out.String(), nil
}

// RESTConfig returns client-go's configuration of the administrator, by way of a port of this machine's loopback.
func (l *Lab) RESTConfig(t testing.TB) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig)
	if err != nil {
		t.Fatalf("read the lab's kubeconfig: %v", err)
	}
	server, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netlinkx.OpenNamespace(filepath.Join("/run/netns", "tortie-"+l.Name+"-cp"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { door.Close() })
	go forward(door, func() (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = net.Dial("tcp", server.Host) // a literal address: it needs no other thread
			return err
		})
		return conn, err
	})
	cfg.Host = "https://" + door.Addr().String()
	return cfg
}

// PodNamespace is the path of a running pod's network namespace, found by the cgroups of its processes.
func (l *Lab) PodNamespace(uid string) (string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // a process that has ended meanwhile has no file
		if bytes.Contains(text, []byte("/tortie-"+l.Name+"/")) && bytes.Contains(text, []byte("/pod"+uid+"/")) {
			return filepath.Join(filepath.Dir(file), "ns", "net"), nil
		}
	}
	return "", errors.New("no process of pod " + uid)
}
