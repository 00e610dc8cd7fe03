// Package supervisor runs a cluster, or a virtual machine with one, in a process of its own, so that it does not outlive its launcher, however
// that ends.
//
// The launcher starts the supervisor in a session of its own and holds a pipe to it. The first line in the pipe is the job. When the pipe is
// closed, the supervisor stops everything, unless the launcher has detached before. The supervisor's children die with it, by the kernel's
// parent-death signal.
package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/lab/internal/channel"
	"github.com/tortie-net/tortie/lab/internal/cluster"
	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/vm"
)

// Name is argv[0] of a supervisor.
const Name = cluster.SupervisorName

// letGo is the line that detaches: the end of the pipe is ignored afterwards.
const letGo = "detach"

// eventsFD is the descriptor on which the supervisor reports events to its launcher.
const eventsFD = 3

// Job is what a supervisor runs: exactly one field is set.
type Job struct {
	Cluster *cluster.Spec
	VM      *VM
}

// VM is a virtual machine. Its program either exits, or serves the channel when its cluster is up.
type VM struct {
	// Name is the name of the lab inside.
	Name    string
	Machine vm.Machine
}

// event is one line from the supervisor.
type event struct {
	// Text is a completed stage.
	Text string `json:",omitempty"`
	// Console is output of a virtual machine's program.
	Console []byte `json:",omitempty"`
	// Ready reports that the start has finished.
	Ready bool `json:",omitempty"`
	// Error is the reason of a failed start, or what the removal left behind.
	Error string `json:",omitempty"`
	// Exit is the exit code of a virtual machine's program.
	Exit *int `json:",omitempty"`
}

// ExitError is returned for a virtual machine's program that exited before it was ready; its reason is on the console.
type ExitError struct{ Code int }

func (e ExitError) Error() string {
	return fmt.Sprintf("the program in the virtual machine ended with exit code %d", e.Code)
}

// Main runs the supervisor and returns its exit code.
func Main() int {
	// The terminal's signals are for the launcher; the supervisor detects its end by the pipe.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	events := json.NewEncoder(os.NewFile(eventsFD, "events"))
	var mu sync.Mutex // a virtual machine's console and its end report concurrently
	tell := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		// If the launcher has exited there is no reader, and the lab must be stopped all the same.
		_ = events.Encode(e)
	}
	if err := supervise(tell); err != nil {
		fmt.Fprintln(os.Stderr, err)
		tell(event{Error: err.Error()})
		return 1
	}
	return 0
}

func supervise(tell func(event)) error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	var job Job
	if err := json.Unmarshal(line, &job); err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if !released(in) {
			cancel()
		}
	}()
	if job.VM != nil {
		return superviseVM(ctx, *job.VM, tell)
	}
	return superviseCluster(ctx, *job.Cluster, tell)
}

func superviseCluster(ctx context.Context, spec cluster.Spec, tell func(event)) error {
	c, err := cluster.Up(ctx, spec, "/proc/self/exe", func(format string, args ...any) {
		tell(event{Text: fmt.Sprintf(format, args...)})
	})
	if err != nil {
		return err
	}
	var control sync.WaitGroup
	control.Go(func() { serveControl(ctx, spec.Name, c) })
	tell(event{Ready: true})
	watch(ctx, c)
	control.Wait()
	return c.Down(context.WithoutCancel(ctx))
}

// serveControl executes the requests of other processes until ctx ends.
func serveControl(ctx context.Context, name string, c *cluster.Cluster) {
	err := channel.Listen(ctx, cluster.ControlSocket(name), func(ctx context.Context, args []string, _, _ io.Writer) (int, error) {
		if len(args) != 2 || args[0] != restartNode {
			return 0, fmt.Errorf("the lab's supervisor does not know %q", args)
		}
		return 0, c.Restart(ctx, args[1])
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(err, c.Fail(err)))
	}
}

// restartNode is the request to restart a node.
const restartNode = "restart"

// RestartNode asks the supervisor of a lab to restart a node: see Cluster.Restart.
func RestartNode(ctx context.Context, lab, node string) error {
	_, err := channel.Call(ctx, cluster.ControlSocket(lab), []string{restartNode, node}, io.Discard, io.Discard)
	return err
}

func superviseVM(ctx context.Context, v VM, tell func(event)) (err error) {
	hold, err := cluster.Take(ctx, v.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	v.Machine.Channel, v.Machine.TempDir = hold.Socket(), hold.Dir()
	v.Machine.Console = console(tell)
	go func() {
		// An error is the end of the machine, which reports the details itself.
		if waitServed(ctx, hold) == nil {
			tell(event{Ready: true})
		}
	}()
	code, err := v.Machine.Run(ctx)
	if err == nil {
		tell(event{Exit: &code})
	}
	if errors.Is(err, context.Canceled) {
		return nil // it was stopped
	}
	return err
}

// waitServed returns when the program in the virtual machine responds, which it does when its cluster is up.
func waitServed(ctx context.Context, hold *cluster.Hold) error {
	err := kubeapi.Poll(ctx, 100*time.Millisecond, func(context.Context) error {
		_, err := os.Stat(hold.Socket())
		return err
	})
	if err != nil {
		return err
	}
	if _, err := channel.Call(ctx, hold.Socket(), nil, io.Discard, io.Discard); err != nil {
		return err
	}
	return hold.Ready()
}

// console forwards a virtual machine's output to the launcher.
type console func(event)

func (c console) Write(b []byte) (int, error) {
	c(event{Console: b})
	return len(b), nil
}

// released waits for the end of the pipe and reports whether the launcher has detached before.
func released(in *bufio.Reader) bool {
	word, _ := io.ReadAll(in)
	return strings.TrimSpace(string(word)) == letGo
}

// watch returns when the cluster is to be stopped. The exit of a part is recorded once; the rest keeps running for inspection.
func watch(ctx context.Context, c *cluster.Cluster) {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	for noted := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := c.Check(); err != nil && !noted {
				noted = true
				fmt.Fprintln(os.Stderr, errors.Join(err, c.Fail(err)))
			}
		}
	}
}

// Launch is a supervisor that this process has started.
type Launch struct {
	cmd    *exec.Cmd
	pipe   *os.File
	events *json.Decoder
	from   *os.File
}

// Start starts a supervisor; the program must call Main when it finds Name as its argv[0].
func Start(job Job) (*Launch, error) {
	line, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("encode what to run: %w", err)
	}
	in, pipe, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	defer in.Close()
	from, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w", err), pipe.Close())
	}
	defer out.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{Name}, Dir: "/", Stdin: in, ExtraFiles: []*os.File{out},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	l := &Launch{cmd: cmd, pipe: pipe, events: json.NewDecoder(from), from: from}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w", err), pipe.Close(), from.Close())
	}
	if _, err := pipe.Write(append(line, '\n')); err != nil {
		return nil, errors.Join(fmt.Errorf("send the job to the supervisor: %w", err), l.Stop())
	}
	return l, nil
}

// Watcher receives the events until the cluster is up: stages, and a virtual machine's output.
type Watcher struct {
	Progress func(string)
	Console  io.Writer
}

// WaitReady returns when the cluster is up. After an error the cluster and the supervisor have ended. When ctx ends the supervisor is
// requested to stop everything.
func (l *Launch) WaitReady(ctx context.Context, w Watcher) error {
	stop := context.AfterFunc(ctx, func() { l.pipe.Close() })
	defer stop()
	for {
		var e event
		if err := l.events.Decode(&e); err != nil {
			return errors.Join(context.Cause(ctx), fmt.Errorf("the supervisor exited without an error message: %w", err), l.cmd.Wait())
		}
		switch {
		case e.Error != "":
			l.pipe.Close()
			_ = l.cmd.Wait() // it has reported the error; its exit code adds nothing
			return errors.Join(context.Cause(ctx), errors.New(e.Error))
		case e.Exit != nil:
			l.pipe.Close()
			return errors.Join(ExitError{*e.Exit}, l.cmd.Wait())
		case e.Ready:
			return context.Cause(ctx)
		case e.Console != nil:
			if _, err := w.Console.Write(e.Console); err != nil {
				return errors.Join(err, l.Stop())
			}
		default:
			w.Progress(e.Text)
		}
	}
}

// Detach keeps the cluster running without this process.
func (l *Launch) Detach() error {
	_, err := l.pipe.WriteString(letGo + "\n")
	err = errors.Join(err, l.pipe.Close(), l.from.Close())
	return errors.Join(err, l.cmd.Process.Release())
}

// Stop stops the cluster and waits until it is removed.
func (l *Launch) Stop() error {
	l.pipe.Close() // closed twice if the start was cancelled
	defer l.from.Close()
	var last error
	for {
		var e event
		if err := l.events.Decode(&e); err != nil {
			break
		}
		if e.Error != "" {
			last = errors.New(e.Error)
		}
	}
	if err := l.cmd.Wait(); err != nil && last == nil {
		last = fmt.Errorf("supervisor: %w", err)
	}
	return last
}
