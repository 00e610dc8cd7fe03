// Package proc runs the processes of a lab: each logs to a file, may start in another network namespace or in
// namespaces of its own, and dies with the process that started it.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/netns"
)

// tailLines is the number of log lines in the error of a failed process.
const tailLines = 12

// Spec describes a process.
type Spec struct {
	// Name is argv[0], and the name in errors.
	Name string
	Path string
	Args []string
	// Dir is the working directory, Env the whole environment (nil: the parent's).
	Dir string
	Env []string
	// Log is the file for standard output and error; it is truncated.
	Log string
	// Stdout, if set, receives standard output instead of the log.
	Stdout *os.File
	// NetNS is the file of the network namespace, empty for the caller's.
	NetNS string
	// Attr adds namespaces; the parent-death signal is always set.
	Attr syscall.SysProcAttr
	// Files are further open files, from descriptor 3 on.
	Files []*os.File
}

// Process is a started process.
type Process struct {
	Name string
	PID  int
	log  string
	os   *os.Process
	done chan struct{}
	// err is the exit status; it may be read when done is closed.
	err error
}

// Spawner starts processes from one thread that never ends. The kernel sends the parent-death signal when the *thread*
// that forked ends, and the Go runtime may end any other thread.
type Spawner struct {
	requests chan func()
}

// NewSpawner returns a spawner; its thread lives as long as the process.
func NewSpawner() *Spawner {
	s := &Spawner{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.requests {
			f()
		}
	}()
	return s
}

// Start starts a process and returns at once.
func (s *Spawner) Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer log.Close()
	attr := spec.Attr
	attr.Pdeathsig = syscall.SIGKILL
	stdout := spec.Stdout
	if stdout == nil {
		stdout = log
	}
	cmd := &exec.Cmd{
		Path: spec.Path, Args: append([]string{spec.Name}, spec.Args...), Dir: spec.Dir, Env: spec.Env,
		Stdout: stdout, Stderr: log, SysProcAttr: &attr, ExtraFiles: spec.Files,
	}
	started := make(chan error)
	s.requests <- func() { started <- startIn(spec.NetNS, cmd) }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{Name: spec.Name, PID: cmd.Process.Pid, os: cmd.Process, log: spec.Log, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// startIn forks in a network namespace and returns to its own, so that the thread stays usable.
func startIn(name string, cmd *exec.Cmd) (err error) {
	if name == "" {
		return cmd.Start()
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := netns.Enter(name); err != nil {
		return err
	}
	defer func() {
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("come back from network namespace %s: %w", name, back))
		}
	}()
	return cmd.Start()
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err waits for the exit and returns an error with the exit status and the tail of the log, for a process that must not
// exit.
func (p *Process) Err() error {
	<-p.done
	state := "ended"
	if p.err != nil {
		state = p.err.Error()
	}
	return fmt.Errorf("%s: %s; its log ends:\n%s", p.Name, state, Tail(p.log))
}

// LogTail returns the end of the process' log.
func (p *Process) LogTail() string { return Tail(p.log) }

// Kill sends SIGKILL and waits for the exit.
func (p *Process) Kill(ctx context.Context) error { return p.signal(ctx, syscall.SIGKILL) }

// Stop sends SIGTERM, and SIGKILL after the grace period.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	asked, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := p.signal(asked, syscall.SIGTERM); err == nil {
		return nil
	}
	return p.Kill(ctx)
}

func (p *Process) signal(ctx context.Context, sig syscall.Signal) error {
	if err := p.os.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s (pid %d) did not end: %w", p.Name, p.PID, ctx.Err())
	}
}

// Group is a set of processes that are stopped together, in reverse order of addition.
type Group struct {
	mu  sync.Mutex
	all []*Process
}

// Add adds a process.
func (g *Group) Add(p *Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, p)
}

// Remove removes a process that will exit while the others run.
func (g *Group) Remove(p *Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(q *Process) bool { return p == q })
}

// Dead returns the first process that has exited, or nil.
func (g *Group) Dead() *Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.all {
		select {
		case <-p.Done():
			return p
		default:
		}
	}
	return nil
}

// Kill kills all of them, last first.
func (g *Group) Kill(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for i := len(g.all) - 1; i >= 0; i-- {
		errs = append(errs, g.all[i].Kill(ctx))
	}
	return errors.Join(errs...)
}

// Tail returns the last lines of a file, each cut to a readable length; an error to read it is part of the text.
func Tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > 1<<16 {
		if _, err := f.Seek(-1<<16, io.SeekEnd); err != nil {
			return "  (no log: " + err.Error() + ")"
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	for i, l := range lines {
		lines[i] = "  " + l[:min(len(l), 400)]
	}
	return strings.Join(lines, "\n")
}
