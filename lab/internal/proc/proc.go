// Package proc runs the processes of a lab: each logs to a file, may start in another network namespace or in namespaces of
// its own, and dies with the process that started it.
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

// tailLines is how much of a failed process' log its error carries.
const tailLines = 12

// Spec says what to run.
type Spec struct {
	// Name is the process in errors and its argv[0].
	Name string
	Path string
	Args []string
	// Dir is the working directory, Env the whole environment (nil: the parent's).
	Dir string
	Env []string
	// Log is the file that takes standard output and error; it is truncated.
	Log string
	// Stdout takes standard output instead of the log, when it is set.
	Stdout *os.File
	// NetNS is the name of the network namespace to start in, empty for the caller's.
	NetNS string
	// Attr adds namespaces; the parent-death signal is always set.
	Attr syscall.SysProcAttr
	// Files are further open files, from descriptor 3 on.
	Files []*os.File
}

// Process is one that was started.
type Process struct {
	Name string
	PID  int
	log  string
	os   *os.Process
	done chan struct{}
	// err is how it ended; it may be read when done is closed.
	err error
}

// Spawner starts processes from one thread that never ends. The kernel sends the parent-death signal when the *thread*
// that forked ends, and the Go runtime ends threads as it likes; with one of their own the children live as long as the
// process.
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

// startIn forks in a network namespace and comes back, so that the thread stays usable.
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

// Err says how a process ended that should not have, with the tail of its log. It waits for the end.
func (p *Process) Err() error {
	<-p.done
	state := "ended"
	if p.err != nil {
		state = p.err.Error()
	}
	return fmt.Errorf("%s: %s; its log ends:\n%s", p.Name, state, Tail(p.log))
}

// LogTail is the end of the process' log.
func (p *Process) LogTail() string { return Tail(p.log) }

// Kill ends the process without asking and waits until it is gone.
func (p *Process) Kill(ctx context.Context) error { return p.signal(ctx, syscall.SIGKILL) }

// Stop asks the process to end, and kills it when it has not within the grace period.
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

// Group is processes that are stopped together, in the reverse of the order in which they were added.
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

// Remove takes a process out, which is to end while the others run.
func (g *Group) Remove(p *Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(q *Process) bool { return p == q })
}

// Dead returns the first process that has ended, nil when all run.
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

// Kill ends all of them without asking, last first.
func (g *Group) Kill(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for i := len(g.all) - 1; i >= 0; i-- {
		errs = append(errs, g.all[i].Kill(ctx))
	}
	return errors.Join(errs...)
}

// Tail returns the last lines of a file, each cut to a readable length; what cannot be read is said in the text.
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
