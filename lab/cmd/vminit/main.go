// Command vminit is the first process of a test's virtual machine. It mounts file systems, loads modules, runs one
// program, reports its exit code to the launcher and powers the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// noResult is the exit code when the program could not be run.
const noResult = 125

func main() {
	code, err := live()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vminit:", err)
		code = noResult
	}
	if err := tell(code); err != nil {
		fmt.Fprintln(os.Stderr, "vminit:", err)
	}
	// The kernel logs its power-off as an emergency message on the console, where it would be part of the program's
	// output.
	if err := os.WriteFile("/proc/sys/kernel/printk", []byte("0 4 0 7"), 0); err != nil {
		fmt.Fprintln(os.Stderr, "vminit:", err)
	}
	unix.Sync()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Fprintln(os.Stderr, "vminit: power off:", err) // the exit of init then panics the kernel, and ends the machine
}

func live() (int, error) {
	b, err := os.ReadFile(vmproto.ConfigFile)
	if err != nil {
		return 0, err
	}
	var c vmproto.Config
	if err := json.Unmarshal(b, &c); err != nil {
		return 0, fmt.Errorf("parse %s: %w", vmproto.ConfigFile, err)
	}
	if err := mountKernel(""); err != nil {
		return 0, err
	}
	// /tmp is not mounted: the launcher's directory may be below it, and the initramfs has a copy of that directory.
	if err := errors.Join(os.MkdirAll("/tmp", 0o755), os.Chmod("/tmp", 0o777|os.ModeSticky)); err != nil {
		return 0, err
	}
	if err := loadModules(); err != nil {
		return 0, err
	}
	if c.SharedRoot {
		if err := sharedRoot(c); err != nil {
			return 0, fmt.Errorf("make the launcher's root the root: %w", err)
		}
	}
	if err := errors.Join(loopbackUp(), unix.Sethostname([]byte("vm"))); err != nil {
		return 0, err
	}
	return runProgram(c)
}

type mount struct{ kind, name, options string }

func mountAll(root string, mounts []mount) error {
	for _, m := range mounts {
		dir := root + m.name
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, dir, m.kind, 0, m.options); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.name, err)
		}
	}
	return nil
}

// mountKernel mounts the kernel's file systems below a root.
func mountKernel(root string) error {
	err := mountAll(root, []mount{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""}, {"devpts", "/dev/pts", "ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "mode=1777"}, {"tmpfs", "/run", "mode=755"},
		{"cgroup2", "/sys/fs/cgroup", ""}, {"bpf", "/sys/fs/bpf", ""},
	})
	if err != nil {
		return err
	}
	// devtmpfs has only devices; <(...) of a shell needs /dev/fd.
	links := map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, "/dev", name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func loadModules() error {
	b, err := os.ReadFile(vmproto.ModuleOrder)
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(b)) {
		if err := load(filepath.Join(vmproto.ModulesDir, name)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// sharedRoot mounts an overlay in memory on the launcher's root directory and makes it the root, as switch_root(8)
// does.
func sharedRoot(c vmproto.Config) error {
	const lower, rw, root = "/lower", "/rw", "/root"
	for _, dir := range []string{lower, rw, root} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(vmproto.RootTag, lower, "virtiofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount the shared root: %w", err)
	}
	if err := unix.Mount("tmpfs", rw, "tmpfs", 0, "mode=755,size=75%"); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(rw+"/upper", 0o755), os.Mkdir(rw+"/work", 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+lower+",upperdir="+rw+"/upper,workdir="+rw+"/work"); err != nil {
		return fmt.Errorf("lay the layer in memory over it: %w", err)
	}
	if err := mountKernel(root); err != nil {
		return err
	}
	for tag, dir := range c.Shares {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(tag, root+dir, "virtiofs", 0, ""); err != nil {
			return fmt.Errorf("mount the shared directory %s: %w", dir, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return os.Chdir("/")
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

func runProgram(c vmproto.Config) (int, error) {
	if c.Program == "" {
		return 0, nil
	}
	limit := &unix.Rlimit{Cur: 1 << 16, Max: 1 << 16}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, limit); err != nil {
		return 0, fmt.Errorf("raise the limit of open files: %w", err)
	}
	cmd := exec.Cmd{
		Path: c.Program, Args: append([]string{c.Program}, c.Args...), Env: c.Env, Dir: c.Dir,
		Stdout: os.Stdout, Stderr: os.Stderr,
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, ok := exit.Sys().(syscall.WaitStatus)
		if ok && status.Signaled() {
			return 128 + int(status.Signal()), nil // as in a shell
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

func tell(code int) error {
	f, err := os.OpenFile(vmproto.ResultDevice, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, vmproto.ResultFormat, code)
	return err
}
