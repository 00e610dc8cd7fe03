// Package vm runs one program in a virtual machine with Debian's kernel, for machines with a kernel that lacks IPIP.
//
// It starts qemu, with KVM where the kernel comes up on it, and virtiofsd, and owns a temporary directory. It needs no
// image, no network and, unless the machine's files are shared, no root.
package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/proc"
	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// Machine is the configuration of a virtual machine.
type Machine struct {
	vmproto.Config
	Kernel *Kernel
	// Init is the vminit program.
	Init string
	// Files are copied into the initial file system: path there, file or directory here.
	Files map[string]string
	// Links are symbolic links in the initial file system and their targets.
	Links map[string]string
	// Counting makes time in the machine the number of instructions of its one processor, in nanoseconds: other load of
	// this machine does not affect measured times. Caches do not count.
	Counting bool
	// KVM uses this machine's processors instead of emulated ones, unless Counting: see FindKVM.
	KVM bool
	// MemoryMB is the machine's memory.
	MemoryMB int
	// Timeout is the limit of the run.
	Timeout time.Duration
	// Console receives the program's output.
	Console io.Writer
}

// Errors of Run: qemu ended before the program, and the Timeout is over.
var (
	errNoResult = errors.New("the virtual machine ended without a result")
	errTooLong  = errors.New("the virtual machine ran too long")
)

// Run boots the machine and returns the program's exit code after the power-off.
func (m Machine) Run(ctx context.Context) (code int, err error) {
	dir, remove, err := tempDir(os.TempDir())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, m.Timeout, fmt.Errorf("%w: longer than %s", errTooLong, m.Timeout))
	defer cancel()
	r := &runner{Machine: m, dir: dir, spawner: proc.NewSpawner()}
	defer func() { err = errors.Join(err, r.helpers.Kill(context.WithoutCancel(ctx))) }()
	if err := r.writeInitrd(); err != nil {
		return 0, fmt.Errorf("write the initial file system: %w", err)
	}
	if err := r.share(ctx); err != nil {
		return 0, fmt.Errorf("share the machine's files: %w", err)
	}
	if err := r.boot(ctx); err != nil {
		return 0, err
	}
	return r.result()
}

// ownGroup keeps a terminal's Ctrl-C from the helpers: they end when ctx does.
var ownGroup = syscall.SysProcAttr{Setpgid: true}

// runner is one run of a machine.
type runner struct {
	Machine
	dir     string
	spawner *proc.Spawner
	helpers proc.Group
}

func (r *runner) path(name string) string { return filepath.Join(r.dir, name) }

func (r *runner) writeInitrd() error {
	f, err := os.Create(r.path("initrd"))
	if err != nil {
		return err
	}
	defer f.Close()
	a, err := newArchive(f)
	if err != nil {
		return err
	}
	if err := r.fill(a); err != nil {
		return err
	}
	if err := a.close(); err != nil {
		return err
	}
	return f.Close()
}

func (r *runner) fill(a *archive) error {
	config, err := json.Marshal(r.Config)
	if err != nil {
		return err
	}
	a.file(vmproto.ConfigFile, 0o644, config)
	if err := a.copyFile(r.Init, "init"); err != nil {
		return err
	}
	modules := NetworkModules
	if r.SharedRoot {
		modules = append(sharedRootModules, modules...)
	}
	if err := a.modules(vmproto.ModulesDir, modules, r.Kernel); err != nil {
		return err
	}
	for dst, src := range r.Files {
		if err := a.tree(src, dst); err != nil {
			return err
		}
	}
	for name, target := range r.Links {
		a.link(name, target)
	}
	if r.Dir != "" && !r.SharedRoot {
		a.mkdir(r.Dir)
	}
	return nil
}

// share starts a virtiofsd for the root and for every shared directory.
func (r *runner) share(ctx context.Context) error {
	if !r.SharedRoot {
		return nil
	}
	if err := r.serve(ctx, vmproto.RootTag, "/", "always"); err != nil {
		return err
	}
	for tag, dir := range r.Shares {
		if err := r.serve(ctx, tag, dir, "auto"); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) serve(ctx context.Context, tag, dir, cache string) error {
	program, args, err := virtiofsd(r.path(tag+".sock"), dir, cache)
	if err != nil {
		return err
	}
	p, err := r.spawner.Start(proc.Spec{Name: "virtiofsd", Path: program, Args: args, Log: r.path(tag + ".log"), Attr: ownGroup})
	if err != nil {
		return err
	}
	r.helpers.Add(p)
	return kubeapi.Poll(ctx, 10*time.Millisecond, func(context.Context) error {
		select {
		case <-p.Done():
			return kubeapi.Fatal{Err: p.Err()}
		default:
		}
		_, err := os.Stat(r.path(tag + ".sock"))
		return err
	})
}

// virtiofsd returns the command that shares a directory. Debian 12 has it in qemu's package; from Debian 13 on it is a
// package of its own, with other flags.
func virtiofsd(socket, dir, cache string) (string, []string, error) {
	const part = "/usr/lib/qemu/virtiofsd"
	if _, err := os.Stat(part); err == nil {
		return part, []string{"--socket-path=" + socket, "-o", "source=" + dir, "-o", "cache=" + cache, "-o",
			"sandbox=chroot", "-o", "xattr"}, nil
	}
	for _, own := range []string{"/usr/libexec/virtiofsd", "/usr/bin/virtiofsd"} {
		if _, err := os.Stat(own); err == nil {
			return own, []string{"--socket-path=" + socket, "--shared-dir=" + dir, "--cache=" + cache, "--sandbox=chroot", "--xattr"}, nil
		}
	}
	return "", nil, errors.New("no virtiofsd: lab deps -install")
}

func (r *runner) boot(ctx context.Context) error {
	qemu, err := findQEMU()
	if err != nil {
		return err
	}
	console, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer console.Close()
	p, err := r.spawner.Start(proc.Spec{Name: "qemu-system-x86_64", Path: qemu, Args: r.qemuArgs(), Stdout: out,
		Log: r.path("qemu.log"), Attr: ownGroup})
	out.Close()
	if err != nil {
		return err
	}
	r.helpers.Add(p)
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(&lineEnds{w: r.Console}, console)
		copied <- err
	}()
	select {
	case <-p.Done():
	case <-ctx.Done():
		err = errors.Join(context.Cause(ctx), p.Kill(context.WithoutCancel(ctx)))
	}
	return errors.Join(err, <-copied)
}

func (r *runner) qemuArgs() []string {
	memory := strconv.Itoa(r.MemoryMB) + "M"
	args := append(r.processors(),
		// The default CPU model lacks instructions without which Go programs are slow.
		"-M", "q35", "-cpu", "max", "-m", memory, "-nodefaults", "-display", "none", "-no-reboot",
		"-serial", "stdio", "-serial", "file:"+r.path("result"),
		"-kernel", r.Kernel.Image, "-initrd", r.path("initrd"),
		"-append", "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off random.trust_cpu=on no_timer_check")
	if !r.SharedRoot {
		return args
	}
	// virtiofsd accesses the machine's memory, which must be shared.
	args = append(args, "-object", "memory-backend-memfd,id=mem,share=on,size="+memory, "-numa", "node,memdev=mem")
	args = append(args, r.shareArgs(vmproto.RootTag)...)
	for tag := range r.Shares {
		args = append(args, r.shareArgs(tag)...)
	}
	return args
}

// processors are qemu's options for the machine's processors.
func (m Machine) processors() []string {
	switch {
	case m.Counting:
		return []string{"-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0,sleep=off",
			// The guest's randomness and date are the same in each run: a hash table's collisions are instructions, too.
			"-seed", "1", "-rtc", "base=2026-01-01T00:00:00,clock=vm"}
	case m.KVM:
		return []string{"-accel", "kvm", "-smp", "2"}
	}
	return []string{"-accel", "tcg,thread=multi", "-smp", "2"}
}

func (r *runner) shareArgs(tag string) []string {
	return []string{"-chardev", "socket,id=" + tag + ",path=" + r.path(tag+".sock"), "-device",
		"vhost-user-fs-pci,chardev=" + tag + ",tag=" + tag}
}

// result reads vminit's result from the second serial port.
func (r *runner) result() (int, error) {
	b, err := os.ReadFile(r.path("result"))
	if err != nil {
		return 0, err
	}
	var code int
	if _, err := fmt.Sscanf(strings.TrimSpace(string(b)), strings.TrimSpace(vmproto.ResultFormat), &code); err != nil {
		return 0, fmt.Errorf("%w; qemu says:\n%s", errNoResult, proc.Tail(r.path("qemu.log")))
	}
	return code, nil
}

// lineEnds removes the carriage returns that the terminal layer adds to serial output.
type lineEnds struct {
	w  io.Writer
	cr bool // the last byte may belong to a line end
}

func (l *lineEnds) Write(b []byte) (int, error) {
	out := make([]byte, 0, len(b)+1)
	for _, c := range b {
		if l.cr && c != '\n' {
			out = append(out, '\r')
		}
		if l.cr = c == '\r'; !l.cr {
			out = append(out, c)
		}
	}
	_, err := l.w.Write(out)
	return len(b), err
}
