// Package e2e runs the README's first command as a new user would: from a fresh clone, with an empty cache of the lab's
// programs. It has no other code.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/lab"
	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/demo"
	"github.com/tortie-net/tortie/lab/internal/probe"
)

// TestDemo interrupts `make demo` at four points, looks for what it left, and runs it through on this machine's own
// kernel. The demo asserts all that it shows.
//
// The interruptions with IPIP come first. On a kernel that has none it runs in a virtual machine, where nothing can be
// built: what was not built before it boots is missing there, and only an empty cache shows it.
func TestDemo(t *testing.T) {
	u := newUser(t)
	for _, point := range []string{
		`packages to compile`,                 // while Kubernetes is built
		`namespaces, cgroups and links made;`, // and while the control plane starts, in the virtual machine where there is one
	} {
		u.interrupt(t, regexp.MustCompile(point), ipip)
	}
	u.onlyItsPrograms(t)
	u.here(t, native(t)...)
}

// TestDemoIPIP runs the demo through with IPIP, in a virtual machine that counts instructions, which no other program
// makes slow; the transcript has the shape of docs/demo.md.
func TestDemoIPIP(t *testing.T) {
	u := newUser(t)
	u.beside = true
	u.demo(t, ipip, "COUNT=1", "RECORD="+u.record).wait(t)
	u.nothingLeft(t)
	got := read(t, u.record)
	want := read(t, filepath.Join(u.clone, "docs", "demo.md"))
	if diff := cmp.Diff(demo.Shape(want), demo.Shape(got)); diff != "" {
		t.Errorf("docs/demo.md shows another demo (-page +now); make demo ENCAP=ipip RECORD=docs/demo.md writes it again:\n%s", diff)
	}
}

const ipip = "ENCAP=ipip"

// here interrupts a demo while nodes start, and when a pod is there with all that belongs to it, and runs it through.
func (u user) here(t *testing.T, args ...string) {
	u.interrupt(t, regexp.MustCompile(`control plane ready at`), args...)
	u.interrupt(t, regexp.MustCompile(`^## 3\. `), args...)
	u.kept(t, args...)
}

// native returns make's arguments to show on this machine's own kernel what has not been shown yet: none, as for a new
// user, if that kernel has no IPIP.
func native(t *testing.T) []string {
	t.Helper()
	err := probe.IPIP(t.Context())
	if err != nil && !errors.Is(err, probe.ErrNoIPIP) {
		t.Fatal(err)
	}
	if err == nil {
		return []string{"ENCAP=vxlan"}
	}
	return nil
}

// kept completes a demo with VXLAN and leaves the cluster running, looks around there as the end of the demo suggests,
// and takes it down.
func (u user) kept(t *testing.T, args ...string) {
	t.Helper()
	u.demo(t, append(args, "KEEP=1", "RECORD="+u.record)...).wait(t)
	transcript := read(t, u.record)
	for _, want := range []string{"\n## 15. VXLAN on the wire\n", "\n    node2# tcpdump -nn -t -c 4 -i eth0 'udp port 4789' ",
		"\nAll 17 steps showed what they should, in "} {
		if !strings.Contains(transcript, want) {
			t.Errorf("the transcript has no %q", want)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"kubectl", "-name", u.lab, "exec", "debug", "--", "ip", "route"}, "default via 169.254.1.1 dev eth0"},
		{[]string{"exec", "-name", u.lab, "node1", "ip", "route"}, "dev vxlan.calico"},
		{[]string{"down", "-name", u.lab}, ""},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(u.clone, "bin", "lab"), c.args...)
		cmd.Dir, cmd.Env, cmd.Stderr = u.clone, u.env, t.Output()
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("lab %q: %v; want %q in:\n%s", c.args, err, c.want, out)
		}
	}
	u.nothingLeft(t)
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// user is somebody who has just cloned the repository.
type user struct {
	clone, cache, temp, record string
	lab                        string // the name of the demo's lab: somebody may be looking at another demo's
	env                        []string
	beside                     bool // other suites run meanwhile, and have the processors first
}

// newUser has an empty cache; Go's own caches are the machine's.
func newUser(t *testing.T) user {
	t.Helper()
	dir := t.TempDir()
	u := user{clone: filepath.Join(dir, "tortie"), cache: filepath.Join(dir, "cache"), temp: filepath.Join(dir, "tmp"),
		record: filepath.Join(dir, "record", "demo.md"), lab: fmt.Sprintf("e2e%d", os.Getpid())}
	for _, d := range []string{u.cache, u.temp, filepath.Dir(u.record)} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	module, err := binaries.FindModule(".")
	if err != nil {
		t.Fatal(err)
	}
	clone(t, filepath.Dir(module), u.clone)
	gocache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	u.env = append(os.Environ(), "XDG_CACHE_HOME="+u.cache, "TMPDIR="+u.temp, "GOCACHE="+strings.TrimSpace(string(gocache)))
	return u
}

// clone clones a repository and copies over what is not committed yet.
func clone(t *testing.T, from, to string) {
	t.Helper()
	command(t, "", "git", "clone", "-q", from, to)
	for _, name := range strings.Split(command(t, from, "git", "ls-files", "-z", "-m", "-o", "--exclude-standard"), "\x00") {
		b, err := os.ReadFile(filepath.Join(from, name))
		if name == "" || os.IsNotExist(err) {
			continue // a file that was removed
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func command(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return string(out)
}

// running is a `make demo` that runs, in a process group of its own as on a terminal.
type running struct {
	cmd    *exec.Cmd
	output *bufio.Reader
}

// firstLine is how long make may be silent, if it does not run beside other suites.
const firstLine = 5 * time.Second

// demo starts `make demo` and returns at its first output.
func (u user) demo(t *testing.T, args ...string) running {
	t.Helper()
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-30*time.Second))
		t.Cleanup(cancel)
	}
	cmd := exec.CommandContext(ctx, "make", append([]string{"--no-print-directory", "demo", "NAME=" + u.lab}, args...)...)
	cmd.Dir, cmd.Env = u.clone, u.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return ctrlC(cmd) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := running{cmd, bufio.NewReader(io.TeeReader(out, t.Output()))}
	// The reader detects an end without output.
	if _, err := r.output.Peek(1); err == nil && time.Since(start) > firstLine && !u.beside {
		t.Errorf("make demo said nothing for %v", time.Since(start))
	}
	return r
}

// ctrlC is what a terminal does.
func ctrlC(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }

func (r running) wait(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, r.output); err != nil {
		t.Error(err)
	}
	if err := r.cmd.Wait(); err != nil {
		t.Fatalf("make demo: %v", err)
	}
}

// interrupt starts a demo, presses Ctrl-C when it prints a line, and looks for what is left when it has ended.
func (u user) interrupt(t *testing.T, at *regexp.Regexp, args ...string) {
	t.Helper()
	r := u.demo(t, args...)
	for {
		line, err := r.output.ReadString('\n')
		if at.MatchString(strings.TrimRight(line, "\r\n")) {
			break
		}
		if err != nil {
			t.Fatalf("make demo ended before it printed %q: %v, %v", at, err, r.cmd.Wait())
		}
	}
	if err := ctrlC(r.cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r.output); err != nil {
		t.Error(err)
	}
	if err := r.cmd.Wait(); err == nil {
		t.Errorf("make demo was interrupted at %q and says that all is well", at)
	}
	u.nothingLeft(t)
}

// nothingLeft fails if anything of a demo that has ended is still there. Its processes have this user's cache in their
// environment.
func (u user) nothingLeft(t *testing.T) {
	t.Helper()
	left := u.traces(t)
	tick := time.Tick(200 * time.Millisecond)
	for end := time.Now().Add(5 * time.Minute); len(left) > 0 && time.Now().Before(end); left = u.traces(t) {
		<-tick // the supervisor outlives its caller by what it has to remove
	}
	if len(left) > 0 {
		t.Errorf("the demo has left: %q", left)
	}
}

func (u user) traces(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		u.temp + "/*", u.cache + "/tortie/building-*", u.cache + "/tortie/fetching-*",
		"/run/tortie-lab/" + u.lab, "/var/lib/tortie-lab/" + u.lab, "/sys/fs/cgroup/*tortie-" + u.lab,
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, environ := range processes {
		// One that has ended meanwhile can't be read.
		if b, err := os.ReadFile(environ); err == nil && bytes.Contains(b, []byte("XDG_CACHE_HOME="+u.cache+"\x00")) {
			found = append(found, environ)
		}
	}
	return found
}

// onlyItsPrograms fails unless the cache holds just what a lab opens, and vminit where there was a virtual machine.
func (u user) onlyItsPrograms(t *testing.T) {
	t.Helper()
	var got []string
	for _, target := range binaries.Targets {
		built, err := filepath.Glob(filepath.Join(u.cache, "tortie", target.Name+"-*", target.Name))
		if err != nil {
			t.Fatal(err)
		}
		if len(built) > 0 && target.Name != "vminit" {
			got = append(got, target.Name)
		}
	}
	want := slices.Clone(lab.DefaultPrograms)
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programs that were built for the demo (-what a lab opens +built):\n%s", diff)
	}
}
