package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// host is a node as plugins see it.
type host struct{ *cnitest.Host }

func newHost(t testing.TB) *host {
	t.Helper()
	return &host{cnitest.NewHost(t, programs)}
}

func (h *host) remove(t testing.TB, path string) {
	t.Helper()
	h.On(t, func() error { return os.Remove(path) })
}

// pod makes a pod's network namespace and mounts it at /var/run/netns/name on the node, as container runtimes do.
func (h *host) pod(t testing.TB, name string) (ns *netnstest.NS, path string) {
	t.Helper()
	ns, path = netnstest.New(t), "/var/run/netns/"+name
	h.Write(t, path, "")
	h.On(t, func() error { return unix.Mount(ns.Path(), path, "", unix.MS_BIND, "") })
	return ns, path
}

// forget takes a pod's namespace away as runtimes do before they call DEL a last time. The file may stay behind.
func (h *host) forget(t testing.TB, path string) {
	t.Helper()
	h.On(t, func() error { return unix.Unmount(path, unix.MNT_DETACH) })
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
	if err := h.Try(cmd.Start); err != nil { // a process is in the namespaces of the thread that starts it
		t.Errorf("start %s: %v", program, err)
		return answer{exit: -1}
	}
	guard := time.AfterFunc(execTimeout, func() { _ = cmd.Process.Kill() })
	defer guard.Stop()
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Errorf("%s: %v", program, err)
	}
	a := answer{stdout: stdout.String(), stderr: stderr.String(), exit: cmd.ProcessState.ExitCode()}
	t.Logf("%s %v: exit %d in %v\nstdout: %s\nstderr: %s", filepath.Base(program), cmd.Env, a.exit,
		time.Since(start).Round(time.Millisecond), a.stdout, a.stderr)
	return a
}

// ok fails the test unless the execution succeeded.
func (a answer) ok(t testing.TB) answer {
	t.Helper()
	if a.exit != 0 {
		t.Fatalf("exit %d: %s%s", a.exit, a.stdout, a.stderr)
	}
	return a
}

// pastDeadline is in the errors of plugins that a deadline ended.
var pastDeadline = context.DeadlineExceeded.Error()

// undelayed fails the test if the execution's messages name a deadline that ended it or a part of it: it must have
// ended by what it met, at once or after a few tries. The time that it took would depend more on the machine than on
// the plugin.
func (a answer) undelayed(t testing.TB) answer {
	t.Helper()
	for _, words := range []string{pastDeadline, os.ErrDeadlineExceeded.Error()} {
		if strings.Contains(a.stdout+a.stderr, words) {
			t.Errorf("it went on until a deadline: %s%s", a.stdout, a.stderr)
		}
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
		t.Fatalf("exit %d, want 1: %s%s", a.exit, a.stdout, a.stderr)
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
