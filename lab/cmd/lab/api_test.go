package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/lab"
	"github.com/tortie-net/tortie/lab/internal/kubeapi"
)

// runVariable makes this test binary run as the program.
const runVariable = "TORTIE_LAB_TEST_MAIN"

func TestMain(m *testing.M) {
	lab.Init()
	if os.Getenv(runVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "lab"
	cmd.Env = append(os.Environ(), runVariable+"=1")
	cmd.Stderr = t.Output()
	return cmd
}

type api struct {
	cmd        *exec.Cmd
	stdin      io.WriteCloser
	stdout     *bufio.Reader
	kubeconfig string
}

func startAPI(t *testing.T, args ...string) api {
	t.Helper()
	return ready(t, start(t, program(t, append([]string{"api"}, args...)...)))
}

// ready waits until the API server is.
func ready(t *testing.T, a api) api {
	t.Helper()
	line := a.listen(t)
	kubeconfig, ok := strings.CutPrefix(line, "ready KUBECONFIG=")
	if !ok {
		t.Fatalf("lab api printed %q", line)
	}
	a.kubeconfig = kubeconfig
	return a
}

// start starts a command that runs until its standard input is closed.
func start(t *testing.T, cmd *exec.Cmd) api {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // no effect unless the test has failed
	return api{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
}

// send writes a command to standard input and returns the reply.
func (a api) send(t *testing.T, command string) string {
	t.Helper()
	if _, err := io.WriteString(a.stdin, command+"\n"); err != nil {
		t.Fatal(err)
	}
	return a.listen(t)
}

func (a api) listen(t *testing.T) string {
	t.Helper()
	line, err := a.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("lab api printed %q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (a api) wait(t *testing.T) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- a.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("lab api: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("lab api does not end")
	}
}

// inDirectory returns the processes with a working directory below a directory, as the processes of lab api have.
func inDirectory(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil && strings.HasPrefix(target, dir) {
			found = append(found, filepath.Dir(l))
		}
	}
	return found
}

func TestAPIEndsWithItsInput(t *testing.T) {
	dir := t.TempDir()
	a := startAPI(t, "-dir", dir)
	if a.kubeconfig != filepath.Join(dir, "admin.kubeconfig") {
		t.Errorf("kubeconfig at %s", a.kubeconfig)
	}
	client, err := kubeapi.New(a.kubeconfig, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ok, err := client.Exists(t.Context(), "/api/v1/namespaces/kube-system"); err != nil || !ok {
		t.Errorf("namespace kube-system: %v, %v", ok, err)
	}
	if len(inDirectory(t, dir)) != 2 {
		t.Errorf("processes: %q, want etcd and kube-apiserver", inDirectory(t, dir))
	}
	if err := a.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	a.wait(t)
	if left, _ := os.ReadDir(dir); len(left) > 0 || len(inDirectory(t, dir)) > 0 {
		t.Errorf("left: %v, %q", left, inDirectory(t, dir))
	}
	if err := client.Ready(t.Context()); err == nil {
		t.Error("the API server still responds")
	}
}

// Two instances, one of them with a controller manager, on a machine without /dev/shm: neither port nor socket
// collides. They also end at a signal, and when the launcher is killed.
func TestAPITwice(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	noShm := machine{prepare: "mount -t tmpfs -o ro,size=4k none /dev/shm"}
	a, b := startAPI(t, "-dir", one), ready(t, start(t, noShm.command(t, "api", "-dir", two, "-kcm")))
	client, err := kubeapi.New(b.kubeconfig, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = kubeapi.Poll(t.Context(), 100*time.Millisecond, func(ctx context.Context) error {
		ok, err := client.Exists(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
		if err == nil && !ok {
			err = errors.New("not yet")
		}
		return err
	})
	if err != nil {
		t.Errorf("the controller manager makes no ServiceAccount: %v", err)
	}
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.wait(t)
	if _, err := os.Stat(one); !os.IsNotExist(err) {
		t.Errorf("the directory that it made is left: %v", err)
	}
	if err := b.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = b.cmd.Wait() // killed
	deadline := time.Now().Add(2 * time.Minute)
	for tick := time.Tick(20 * time.Millisecond); len(inDirectory(t, two)) > 0 && time.Now().Before(deadline); <-tick {
	}
	if left := inDirectory(t, two); len(left) > 0 {
		t.Errorf("processes of a killed lab api: %q", left)
	}
}

// A server that is killed and restarted keeps its port, data and credentials.
func TestAPIServerIsKilledAndStarted(t *testing.T) {
	a := startAPI(t)
	client, err := kubeapi.New(a.kubeconfig, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if reply := a.send(t, "kill"); reply != "killed" {
			t.Fatalf("after kill it prints %q", reply)
		}
		if err := client.Ready(t.Context()); err == nil {
			t.Error("a killed API server responds")
		}
		if reply := a.send(t, "start"); reply != "ready KUBECONFIG="+a.kubeconfig {
			t.Fatalf("after start it prints %q", reply)
		}
		if ok, err := client.Exists(t.Context(), "/api/v1/namespaces/kube-system"); err != nil || !ok {
			t.Errorf("namespace kube-system: %v, %v", ok, err)
		}
	}
	if err := a.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	a.wait(t)
}

func TestAPIRefusesADirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := program(t, "api", "-dir", dir).Output()
	if err == nil {
		t.Errorf("it took a directory that is not empty: %s", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
		t.Error(err)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"help"}, 0, ""},
		{[]string{"nonsense"}, 2, "no command"},
		{[]string{"up", "-nodes", "0"}, 2, "at least one"},
		{[]string{"up", "-name", "a-b"}, 1, "lab name"},
		{[]string{"down", "-name", "nosuchlab"}, 1, "no such lab"},
		{[]string{"exec", "node1"}, 2, "NODE CMD"},
		{[]string{"kubectl", "-name"}, 2, "name of a lab"},
		{[]string{"status", "extra"}, 2, "takes no argument"},
		{[]string{"build", "nosuchprogram"}, 1, "no program"},
	} {
		var stderr strings.Builder
		cmd := program(t, c.args...)
		cmd.Stderr = &stderr
		_ = cmd.Run() // the exit code is checked below
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("lab %q: exit code %d, want %d; stderr %q, want %q in it", c.args, code, c.code, stderr.String(), c.says)
		}
	}
}
