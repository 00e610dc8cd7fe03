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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// TimeScale multiplies timeouts on slow machines.
var TimeScale = func() time.Duration {
	if scale, _ := config.OS()("TORTIE_LAB_TIMESCALE"); scale != "" {
		return 10
	}
	return 1
}()

// labPatience is the limit for operations of many containers on a busy machine, releasePatience Helm's limit until a
// release is ready.
var labPatience, releasePatience = 12 * time.Minute * TimeScale, 10 * time.Minute * TimeScale

// DebugImage has a shell and a few programs.
const DebugImage = "docker.io/tortie-net/debug:dev"

// Lab is a real cluster of one test: nodes with containerd, kubelet and kube-proxy, without a pod network until a chart
// is installed.
type Lab struct {
	// Name identifies the lab on this machine.
	Name       string
	program    string
	kubeconfig string
	group      groups.Group // that Release installs the chart for
}

// labs counts the labs of this process, of which several may run at once.
var labs atomic.Int32

// NewLab starts a lab with this number of nodes (master, node1, node2, ...); options are passed to `lab up`. It ends
// with the test, also when the test is killed.
func NewLab(t testing.TB, nodes int, options ...string) *Lab {
	t.Helper()
	l := &Lab{Name: fmt.Sprintf("test%dn%d", os.Getpid(), labs.Add(1)), program: Binary(t), group: Group(t)}
	args := append([]string{"up", "-attached", "-name", l.Name, "-nodes", strconv.Itoa(nodes)}, options...)
	var err error
	if l.kubeconfig, err = launchFor(t, args...).ready(); err != nil {
		t.Fatal(err)
	}
	return l
}

// Do runs a command of the lab, such as kubectl, helm, exec or restart, and returns its standard output. An error
// contains its standard error. Arguments of kubectl are written for crd.projectcalico.org/v1, as for InGroupText.
func (l *Lab) Do(ctx context.Context, command string, args ...string) (string, error) {
	return l.do(ctx, nil, command, args...)
}

// InGroupText is the function of that name, for this lab.
func (l *Lab) InGroupText(text string) string { return textIn(l.group, text) }

// Manifest returns the path of a file with objects, which are written as for InGroupText, until the test ends.
func (l *Lab) Manifest(t testing.TB, text string) string {
	t.Helper()
	file, err := os.CreateTemp("", "objects-*.yaml") // kubectl ends a path at a comma, which a part's directory may have
	errtest.Must(t, err)
	t.Cleanup(func() { _ = os.Remove(file.Name()) })
	_, err = file.WriteString(l.InGroupText(text))
	errtest.Must(t, errors.Join(err, file.Close()))
	return file.Name()
}

// Command returns the beginning of a shell command that runs a program of the lab, such as kubectl, from a script.
func (l *Lab) Command(command string) string {
	return fmt.Sprintf("%s %s -name %s", l.program, command, l.Name)
}

// Run is Do with the output trimmed. The test fails if the command fails or exceeds its time.
func (l *Lab) Run(t testing.TB, command string, args ...string) string {
	t.Helper()
	return l.run(t, nil, command, args...)
}

// Kubectl runs kubectl as the administrator.
func (l *Lab) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return l.Run(t, "kubectl", args...)
}

// On runs a shell command on a node.
func (l *Lab) On(t testing.TB, node, line string) string {
	t.Helper()
	return l.Run(t, "exec", node, "sh", "-c", line)
}

// Put writes a file on a node, and creates its directory.
func (l *Lab) Put(t testing.TB, node, path string, mode os.FileMode, content []byte) {
	t.Helper()
	l.run(t, content, "exec", node, "sh", "-c", `mkdir -p "${0%/*}" && cat > "$0" && chmod "$1" "$0"`, path, fmt.Sprintf("%o", mode))
}

func (l *Lab) run(t testing.TB, input []byte, command string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labPatience)
	defer cancel()
	out, err := l.do(ctx, input, command, args...)
	errtest.Must(t, err)
	return strings.TrimSpace(out)
}

func (l *Lab) do(ctx context.Context, input []byte, command string, args ...string) (string, error) {
	all := []string{command, "-name", l.Name}
	for _, arg := range args {
		if command == "kubectl" {
			arg = l.InGroupText(arg)
		}
		all = append(all, arg)
	}
	cmd := exec.CommandContext(ctx, l.program, all...)
	var out, diag bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("lab %s %q: %w: %s", command, args, err, bytes.TrimSpace(diag.Bytes()))
	}
	return out.String(), nil
}

// RESTConfig returns the administrator's client-go configuration, by a port of this machine's loopback.
func (l *Lab) RESTConfig(t testing.TB) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig)
	if err != nil {
		t.Fatalf("read the lab's kubeconfig: %v", err)
	}
	server, err := url.Parse(cfg.Host)
	errtest.Must(t, err)
	ns := openNamespace(t, l.namespace("cp"))
	door, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { door.Close() })
	go forward(door, func() (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = net.Dial("tcp", server.Host) // a literal address: no resolver, no other thread
			return err
		})
		return conn, err
	})
	cfg.Host = "https://" + door.Addr().String()
	return cfg
}

// LogDiagnostics logs, if the test has failed, the state of Kubernetes and the agents' logs, and the output of more
// commands of the lab. Call it at the end of a test, or in a Cleanup.
func (l *Lab) LogDiagnostics(t testing.TB, more ...[]string) {
	if !t.Failed() {
		return
	}
	for _, args := range append([][]string{
		{"kubectl", "get", "nodes"},
		{"kubectl", "get", "pods", "-A", "-o", "wide"},
		{"kubectl", "get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"kubectl", "-n", chartNamespace, "logs", "-l", "app.kubernetes.io/name=tortie", "--all-containers", "--prefix", "--tail=20"},
	}, more...) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // t.Context is canceled in a Cleanup
		out, err := l.Do(ctx, args[0], args[1:]...)
		cancel()
		t.Logf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// StartPod runs an idle pod on a node, and returns once it is ready. Every node has its image.
func (l *Lab) StartPod(t testing.TB, name, node string) {
	t.Helper()
	where := fmt.Sprintf(`{"spec":{"nodeName":%q,"terminationGracePeriodSeconds":0}}`, node)
	l.Kubectl(t, "run", name, "--image="+DebugImage, "--overrides", where, "--", "sleep", "1d")
	l.Kubectl(t, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=5m")
}

// Pod opens the network namespace of a running pod, until the test ends.
func (l *Lab) Pod(t testing.TB, uid string) *netnstest.NS {
	t.Helper()
	path, err := l.podNamespace(uid)
	errtest.Must(t, err)
	return &netnstest.NS{Namespace: openNamespace(t, path)}
}

// Node opens the network namespace of a node, until the test ends.
func (l *Lab) Node(t testing.TB, name string) *netnstest.NS {
	t.Helper()
	return &netnstest.NS{Namespace: openNamespace(t, l.namespace(name))}
}

// namespace returns the path of a node's network namespace.
func (l *Lab) namespace(node string) string {
	return filepath.Join("/run/tortie-lab", l.Name, "netns", node)
}

func openNamespace(t testing.TB, path string) *netlinkx.Namespace {
	t.Helper()
	ns, err := netlinkx.OpenNamespace(path)
	errtest.Must(t, err)
	t.Cleanup(func() { ns.Close() })
	return ns
}

// podNamespace returns the path of a running pod's network namespace, found by the cgroup of its processes.
func (l *Lab) podNamespace(uid string) (string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // the process may have exited
		if bytes.Contains(text, []byte("/tortie-"+l.Name+"/")) && bytes.Contains(text, []byte("/pod"+uid+"/")) {
			return filepath.Join(filepath.Dir(file), "ns", "net"), nil
		}
	}
	return "", errors.New("no process of pod " + uid)
}
