package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/lab/internal/cgroup"
	"github.com/tortie-net/tortie/lab/internal/probe"
)

// machine is a shell command that removes something from the machine, in mount and other namespaces of its own.
type machine struct {
	prepare string
	flags   uintptr
	env     []string
}

// command is a command of the lab on that machine.
func (m machine) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	line := `set -e; ` + m.prepare + `; exec "$0" "$@"`
	cmd := exec.Command("sh", append([]string{"-c", line, self}, args...)...)
	cmd.Env = append(append(os.Environ(), runVariable+"=1"), m.env...)
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | m.flags}
	return cmd
}

// refuses runs a command that must fail with one line that contains these words.
func (m machine) refuses(t *testing.T, args []string, words ...string) {
	t.Helper()
	var said strings.Builder
	cmd := m.command(t, args...)
	cmd.Stdout, cmd.Stderr = io.Discard, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("lab %q: %v: %s", args, err, said.String())
		return
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	last := lines[len(lines)-1]
	// The lines before are progress.
	if slices.ContainsFunc(lines[:len(lines)-1], func(l string) bool { return strings.HasPrefix(l, "lab: ") }) ||
		!strings.HasPrefix(last, "lab: ") {
		t.Errorf("lab %q prints more than a line:\n%s", args, said.String())
	}
	for _, w := range words {
		if !strings.Contains(last, w) {
			t.Errorf("lab %q: want %q in: %s", args, w, last)
		}
	}
}

// overlay mounts overlays on directories of the machine, so that removals affect only the command.
func overlay(t *testing.T, dirs ...string) string {
	t.Helper()
	lines := []string{"o=" + t.TempDir(), "mount -t tmpfs none $o"}
	for _, d := range dirs {
		lines = append(lines,
			fmt.Sprintf("mkdir -p $o%[1]s/u $o%[1]s/w; mount -t overlay none -o lowerdir=%[1]s,upperdir=$o%[1]s/u,workdir=$o%[1]s/w %[1]s", d))
	}
	return strings.Join(lines, "; ")
}

func TestWithoutRoot(t *testing.T) {
	// A directory from which another user can execute it.
	dir, err := os.MkdirTemp("", "lab-no-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "lab")
	self, err := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(program, self, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"up"}, {"demo"}, {"vm", "true"}} {
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", runVariable + "=1"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if said := strings.TrimSpace(string(out)); err == nil || strings.Contains(said, "\n") ||
			!strings.Contains(said, "must be run as root, and this is uid 65534: put sudo before the command") {
			t.Errorf("lab %q as nobody: %v: %s", args, err, said)
		}
	}
}

// A limit of two gigabytes in a real cgroup.
func TestLittleMemory(t *testing.T) {
	group, file := memoryCgroup(t)
	if err := os.WriteFile(filepath.Join(group, file), []byte("2147483648"), 0o644); err != nil {
		t.Fatal(err)
	}
	m := machine{prepare: "echo $$ > " + group + "/cgroup.procs"}
	m.refuses(t, []string{"vm", "-mem", "4096", "--", "true"}, "the virtual machine needs 4296 MB of memory",
		"the cgroup "+group+" has 20", "-mem")
	m.refuses(t, []string{"up", "-nodes", "12"}, "a lab of 12 nodes needs 2300 MB of memory", group, "ask for fewer nodes")
}

// memoryCgroup creates a cgroup for the test, and returns the name of its limit file.
func memoryCgroup(t *testing.T) (dir, file string) {
	t.Helper()
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	file = "memory.limit_in_bytes"
	i := slices.IndexFunc(layout.Hierarchies, func(h cgroup.Hierarchy) bool { return slices.Contains(h.Options, "memory") })
	if layout.V2 {
		i, file = 0, "memory.max"
		// Labs do the same.
		if err := os.WriteFile(filepath.Join(layout.Hierarchies[0].Mount, "cgroup.subtree_control"), []byte("+memory"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if i < 0 {
		t.Fatal("no cgroup has the memory controller")
	}
	dir = filepath.Join(layout.Hierarchies[i].Mount, fmt.Sprintf("lab-preflight-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, file
}

func TestFullDisk(t *testing.T) {
	tiny := t.TempDir()
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	caches := strings.Fields(string(out))
	m := machine{prepare: "mount -t tmpfs -o size=8m none " + tiny, env: []string{"XDG_CACHE_HOME=" + tiny, "GOCACHE=" + caches[0]}}
	m.refuses(t, []string{"up", "-nodes", "1", "-dir", tiny + "/labs"},
		"a lab of 1 nodes needs 300 MB in "+tiny+"/labs, whose file system has 8 MB free", "-dir")
	m.refuses(t, []string{"api", "-dir", tiny + "/api"}, "lab api needs 150 MB in "+tiny+"/api", "-dir")
	m.refuses(t, []string{"build", "pause"}, "the build needs ", " MB in "+tiny+"/tortie, whose file system has ", "set XDG_CACHE_HOME")
	m.env = []string{"XDG_CACHE_HOME=" + t.TempDir(), "GOCACHE=" + tiny}
	m.refuses(t, []string{"build", "pause"}, "the build needs 50 MB in "+tiny, "set GOCACHE")
	m.env = []string{"XDG_CACHE_HOME=" + t.TempDir(), "GOCACHE=" + caches[0], "GOMODCACHE=" + tiny,
		"GOPROXY=file://" + caches[1] + "/cache/download"}
	m.refuses(t, []string{"build", "vminit"}, "build vminit: the disk is full", "GOMODCACHE", "no space left on device")
	m.prepare += "; mount -o remount,ro " + tiny
	m.refuses(t, []string{"api", "-dir", tiny + "/api"}, "cannot write to "+tiny+"/api (read-only file system)", "-dir")
}

func TestNoDebian(t *testing.T) {
	m := machine{prepare: overlay(t, "/usr") + "; rm -f /usr/bin/apt-get /usr/bin/containerd"}
	for _, args := range [][]string{{"up", "-nodes", "1"}, {"deps"}, {"deps", "-install"}} {
		m.refuses(t, args, "has no apt-get", "/usr/bin/containerd (Debian's containerd)")
	}
	m.prepare = overlay(t, "/usr") + "; rm -f /usr/bin/containerd"
	m.refuses(t, []string{"up", "-nodes", "1"}, "type (as root): apt-get install --no-install-recommends containerd")
}

// The needs of a virtual machine are checked only where one will be used.
func TestNoQEMU(t *testing.T) {
	m := machine{prepare: overlay(t, "/usr") + "; rm -f /usr/bin/qemu-system-x86_64"}
	if errors.Is(probe.IPIP(t.Context()), probe.ErrNoIPIP) {
		for _, args := range [][]string{{"deps"}, {"deps", "-encap", "ipip"}} {
			m.refuses(t, args, "apt-get install --no-install-recommends qemu-system-x86")
		}
	}
	for _, encap := range []string{"auto", "vxlan"} {
		if err := m.command(t, "deps", "-encap", encap).Run(); err != nil {
			t.Errorf("for make demo ENCAP=%s: %v", encap, err)
		}
	}
}

func TestNoNetwork(t *testing.T) {
	cache := t.TempDir()
	retries := filepath.Join(cache, "apt.conf") // each retry would take seconds
	if err := os.WriteFile(retries, []byte("Acquire::Retries \"0\";\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	apt := machine{flags: syscall.CLONE_NEWNET,
		prepare: overlay(t, "/usr", "/var", "/etc") + "; dpkg --remove --force-depends tcpdump > /dev/null 2>&1; apt-get clean",
		env:     []string{"APT_CONFIG=" + retries}}
	apt.refuses(t, []string{"deps", "-install"}, "cannot be downloaded", "run this once with network")
	modules := machine{flags: syscall.CLONE_NEWNET, prepare: "true",
		env: []string{"GOMODCACHE=" + filepath.Join(cache, "mod"), "XDG_CACHE_HOME=" + cache}}
	modules.refuses(t, []string{"build", "vminit"}, "build vminit: Go modules cannot be downloaded",
		"run this once with network", "GOMODCACHE")
}
