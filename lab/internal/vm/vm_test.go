package vm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/probe"
	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// machine returns a virtual machine that runs a shell script.
func machine(t *testing.T, script string) (Machine, *bytes.Buffer) {
	t.Helper()
	if probe.IPIP(t.Context()) == nil {
		t.Skip("this machine's kernel has IPIP: nothing needs a virtual machine, and qemu is not installed for it")
	}
	cache, err := binaries.Open(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	init, err := cache.Path(t.Context(), "vminit")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := FetchKernel(t.Context(), cache.Dir, Stable, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	kvm, err := FindKVM(t.Context(), cache.Dir, kernel, init, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	console := new(bytes.Buffer)
	return Machine{
		Config: vmproto.Config{Program: "/bin/busybox", Args: []string{"sh", "-c", script}, Env: []string{"WORD=passed on"}, Dir: "/work"},
		Kernel: kernel, Init: init, KVM: kvm, Files: map[string]string{"/bin/busybox": "/bin/busybox"},
		MemoryMB: 512, Timeout: 5 * time.Minute, Console: console,
	}, console
}

func TestProgramAndItsExitCode(t *testing.T) {
	m, console := machine(t,
		`echo "$WORD in $(busybox pwd)"; busybox ip link show tunl0 && busybox ls /modules/order && echo "exit 0"; exit 7`)
	code, err := m.Run(t.Context())
	if err != nil || code != 7 {
		t.Fatalf("exit code %d, %v; console:\n%s", code, err, console)
	}
	for _, want := range []string{"passed on in /work\n", "tunl0", "/modules/order\n"} {
		if !strings.Contains(console.String(), want) {
			t.Errorf("the console lacks %q:\n%s", want, console)
		}
	}
	if strings.Contains(console.String(), "Power down") {
		t.Errorf("the kernel's power-off message is on the console:\n%s", console)
	}
}

func TestProgramThatDoesNotEnd(t *testing.T) {
	m, _ := machine(t, `busybox sleep 1000`)
	m.Timeout = 4 * time.Second
	m.Console = io.Discard
	if _, err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "longer than 4s") {
		t.Errorf("a machine that runs too long: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	m.Timeout = time.Minute
	if _, err := m.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cancelled machine: %v", err)
	}
}

func TestProgramThatCannotRun(t *testing.T) {
	m, console := machine(t, "")
	m.Program = "/no/such/program"
	code, err := m.Run(t.Context())
	if err != nil || code == 0 || !strings.Contains(console.String(), "/no/such/program") {
		t.Errorf("exit code %d, %v; console:\n%s", code, err, console)
	}
}

func TestTempDirsOfKilledRunsGo(t *testing.T) {
	base := t.TempDir()
	living, remove, err := tempDir(base)
	if err != nil {
		t.Fatal(err)
	}
	dead := base + "/" + tempPrefix + "dead"
	for _, dir := range []string{dead, living} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/initrd", nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, removeOther, err := tempDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the directory of a killed run is left: %v", err)
	}
	if _, err := os.Stat(living + "/initrd"); err != nil {
		t.Errorf("the directory of another run is gone: %v", err)
	}
	if err := errors.Join(remove(), removeOther()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(base); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The launcher's files are readable, one directory is writable, and nothing else on the machine changes.
func TestSharedRoot(t *testing.T) {
	out, other := t.TempDir(), t.TempDir()
	m, console := machine(t,
		`echo written > `+out+`/file && echo lost > `+other+`/file && cat /etc/debian_version && cat /sys/fs/cgroup/cgroup.controllers`)
	m.SharedRoot, m.Dir, m.Files = true, "/", nil
	m.Program, m.Args = "/bin/sh", m.Args[1:]
	m.Env = []string{"PATH=/usr/bin:/bin"}
	m.Shares = map[string]string{"out": out}
	m.MemoryMB = 1024
	code, err := m.Run(t.Context())
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v; console:\n%s", code, err, console)
	}
	if b, err := os.ReadFile(out + "/file"); err != nil || string(b) != "written\n" {
		t.Errorf("the shared directory holds %q, %v", b, err)
	}
	if _, err := os.Stat(other + "/file"); !os.IsNotExist(err) {
		t.Errorf("a file outside of the shared directory reached the machine: %v", err)
	}
	if !strings.Contains(console.String(), "memory") {
		t.Errorf("no cgroup v2 with its controllers:\n%s", console)
	}
}
