package cni_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/netlinkx/netnstest"
)

// host is a node as plugins see it: a network namespace with a default route, and a mount namespace in which Calico's paths
// hold what the test puts there and the machine's own are out of reach.
type host struct {
	*netnstest.NS
	jobs chan func() // run by the thread that is in both namespaces
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{NS: netnstest.New(t), jobs: make(chan func())}
	underlay := netnstest.New(t)
	netnstest.Cable(t, h.NS, "eth0", underlay, "node")
	h.Addr(t, "eth0", "10.250.9.9/16")
	h.Route(t, "0.0.0.0/0", "10.250.0.1", "eth0")
	entered := make(chan error)
	go h.live(plugins(t), entered)
	if err := <-entered; err != nil {
		t.Fatalf("make a node (tests of the plugins need root): %v", err)
	}
	t.Cleanup(func() { close(h.jobs) })
	return h
}

func (h *host) live(bin string, entered chan<- error) {
	// Never unlocked: the thread ends with the goroutine, and the mount namespace with the thread.
	runtime.LockOSThread()
	err := h.enter(bin)
	entered <- err
	if err != nil {
		return
	}
	for job := range h.jobs {
		job()
	}
}

func (h *host) enter(bin string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Setns(h.Fd(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("detach from the machine's mounts: %w", err)
	}
	// The directory of the programs may lie below one that is about to be hidden.
	if err := mountTmpfs("/opt"); err != nil {
		return err
	}
	const cniBin = "/opt/cni/bin"
	if err := os.MkdirAll(cniBin, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(bin, cniBin, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", cniBin, err)
	}
	for _, dir := range []string{"/etc", "/run", "/var"} {
		if err := mountTmpfs(dir); err != nil {
			return err
		}
	}
	return os.Symlink("/run", "/var/run")
}

func mountTmpfs(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// on runs fn on the node.
func (h *host) on(t testing.TB, fn func() error) {
	t.Helper()
	if err := h.try(fn); err != nil {
		t.Fatal(err)
	}
}

func (h *host) try(fn func() error) error {
	done := make(chan error)
	h.jobs <- func() { done <- fn() }
	return <-done
}

func (h *host) write(t testing.TB, path, text string) {
	t.Helper()
	h.on(t, func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), 0o600)
	})
}

func (h *host) remove(t testing.TB, path string) {
	t.Helper()
	h.on(t, func() error { return os.Remove(path) })
}

// read returns a file's content, and nothing if there is none.
func (h *host) read(t testing.TB, path string) string {
	t.Helper()
	var text []byte
	h.on(t, func() (err error) {
		if text, err = os.ReadFile(path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	return string(text)
}

// listen opens a TCP socket on the node's loopback; who holds it may be anywhere.
func (h *host) listen(t testing.TB) net.Listener {
	t.Helper()
	var l net.Listener
	h.on(t, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	return l
}

// pod makes a pod's network namespace and mounts it at /var/run/netns/name on the node, as container runtimes do.
func (h *host) pod(t testing.TB, name string) (ns *netnstest.NS, path string) {
	t.Helper()
	ns, path = netnstest.New(t), "/var/run/netns/"+name
	h.write(t, path, "")
	h.on(t, func() error { return unix.Mount(ns.Path(), path, "", unix.MS_BIND, "") })
	return ns, path
}

// forget takes a pod's namespace away as runtimes do before they call DEL a last time. The file may stay behind.
func (h *host) forget(t testing.TB, path string) {
	t.Helper()
	h.on(t, func() error { return unix.Unmount(path, unix.MNT_DETACH) })
}

// call is one execution of a plugin, in the terms of the CNI specification. Empty variables are left out.
type call struct {
	plugin    string
	command   string
	container string
	netns     string
	ifName    string
	args      string
	path      string
	stdin     string
}

func (c call) env() []string {
	var env []string
	for _, v := range [][2]string{
		{"CNI_COMMAND", c.command}, {"CNI_CONTAINERID", c.container}, {"CNI_NETNS", c.netns},
		{"CNI_IFNAME", c.ifName}, {"CNI_ARGS", c.args}, {"CNI_PATH", c.path},
	} {
		if v[1] != "" {
			env = append(env, v[0]+"="+v[1])
		}
	}
	return env
}

// answer is what a runtime sees of an execution.
type answer struct {
	stdout, stderr string
	exit           int
	took           time.Duration
}

// call executes a plugin on the node.
func (h *host) call(t testing.TB, c call) answer {
	t.Helper()
	return h.exec(t, "/opt/cni/bin/"+c.plugin, c.env(), c.stdin)
}

// execTimeout is longer than the plugins' own deadline: to reach it is a bug.
const execTimeout = 3 * time.Minute

func (h *host) exec(t testing.TB, program string, env []string, stdin string, args ...string) answer {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewBufferString(stdin), &stdout, &stderr
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would pass on the environment of the test
	}
	start := time.Now()
	if err := h.try(cmd.Start); err != nil { // a process is in the namespaces of the thread that starts it
		t.Errorf("start %s: %v", program, err)
		return answer{exit: -1}
	}
	guard := time.AfterFunc(execTimeout, func() { _ = cmd.Process.Kill() })
	defer guard.Stop()
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Errorf("%s: %v", program, err)
	}
	a := answer{stdout: stdout.String(), stderr: stderr.String(), exit: cmd.ProcessState.ExitCode(), took: time.Since(start)}
	t.Logf("%s %v: exit %d in %v\nstdout: %s\nstderr: %s", filepath.Base(program), cmd.Env, a.exit, a.took.Round(time.Millisecond), a.stdout, a.stderr)
	return a
}

// ok fails the test unless the execution succeeded.
func (a answer) ok(t testing.TB) answer {
	t.Helper()
	if a.exit != 0 {
		t.Fatalf("exit %d: %s", a.exit, a.stdout)
	}
	return a
}

// result decodes what ADD printed: nothing but a result.
func (a answer) result(t testing.TB) *types100.Result {
	t.Helper()
	a.ok(t)
	res := &types100.Result{}
	strict(t, a.stdout, res)
	return res
}

// failure decodes what a plugin printed when it failed: nothing but an error, as the specification wants it.
func (a answer) failure(t testing.TB) types.Error {
	t.Helper()
	if a.exit != 1 {
		t.Fatalf("exit %d, want 1: %s", a.exit, a.stdout)
	}
	var e types.Error
	strict(t, a.stdout, &e)
	return e
}

// strict decodes text, which must be one JSON value of exactly that shape.
func strict(t testing.TB, text string, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewBufferString(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("standard output %q: %v", text, err)
	}
	if d.More() {
		t.Fatalf("standard output holds more than one value: %q", text)
	}
}

// address returns the one address of a result.
func address(t testing.TB, res *types100.Result) netip.Addr {
	t.Helper()
	if len(res.IPs) != 1 {
		t.Fatalf("%d addresses, want 1: %v", len(res.IPs), res)
	}
	a, _ := netip.AddrFromSlice(res.IPs[0].Address.IP)
	return a.Unmap()
}
