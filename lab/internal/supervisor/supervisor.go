// Package supervisor runs a cluster in a process of its own, so that it does not outlive its launcher, however that
// ends.
//
// The launcher starts the supervisor in a session of its own and holds a pipe to it. The first line in the pipe is the
// job. When the pipe is closed, the supervisor stops everything, unless the launcher has detached before. The
// supervisor's children die with it, by the kernel's parent-death signal.
package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/lab/internal/cluster"
)

// Name is argv[0] of a supervisor.
const Name = cluster.SupervisorName

// letGo is the line that detaches: the end of the pipe is ignored afterwards.
const letGo = "detach"

// eventsFD is the descriptor on which the supervisor reports events to its launcher.
const eventsFD = 3

// event is one line from the supervisor.
type event struct {
	// Text is a completed stage.
	Text string `json:",omitempty"`
	// Ready reports that the start has finished.
	Ready bool `json:",omitempty"`
	// Error is the reason of a failed start, or the remains after the removal.
	Error string `json:",omitempty"`
}

// Main runs the supervisor and returns its exit code.
func Main() int {
	// The terminal's signals are for the launcher; the supervisor detects its end by the pipe.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	events := json.NewEncoder(os.NewFile(eventsFD, "events"))
	tell := func(e event) {
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
	var spec cluster.Spec
	if err := json.Unmarshal(line, &spec); err != nil {
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
	c, err := cluster.Up(ctx, spec, "/proc/self/exe", func(format string, args ...any) {
		tell(event{Text: fmt.Sprintf(format, args...)})
	})
	if err != nil {
		return err
	}
	var control sync.WaitGroup
	control.Go(func() {
		if err := serveControl(ctx, spec.Name, c); err != nil {
			fmt.Fprintln(os.Stderr, errors.Join(err, c.Fail(err)))
		}
	})
	tell(event{Ready: true})
	watch(ctx, c)
	control.Wait()
	return c.Down(context.WithoutCancel(ctx))
}

// done is the reply to a successful request; any other reply is the reason of a failure.
const done = "done"

// serveControl restarts nodes for other processes until ctx ends. A request is a line with the node's name.
func serveControl(ctx context.Context, name string, c *cluster.Cluster) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", cluster.ControlSocket(name))
	if err != nil {
		return fmt.Errorf("serve restarts of nodes: %w", err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve restarts of nodes: %w", err)
		}
		calls.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			node, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil {
				return // the client is gone
			}
			reply := done
			if err := c.Restart(ctx, strings.TrimSpace(node)); err != nil {
				reply = err.Error()
			}
			_, _ = io.WriteString(conn, reply) // a client that is gone needs none
		})
	}
}

// RestartNode asks the supervisor of a lab to restart a node: see Cluster.Restart.
func RestartNode(ctx context.Context, lab, node string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", cluster.ControlSocket(lab))
	if err != nil {
		return fmt.Errorf("reach the lab's supervisor: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, node+"\n"); err != nil {
		return fmt.Errorf("ask the lab's supervisor: %w", err)
	}
	switch reply, err := io.ReadAll(conn); {
	case err != nil || len(reply) == 0:
		return errors.Join(context.Cause(ctx), err, errors.New("the lab's supervisor does not answer"))
	case string(reply) != done:
		return errors.New(string(reply))
	}
	return nil
}

// released waits for the end of the pipe and reports whether the launcher has detached before.
func released(in *bufio.Reader) bool {
	word, _ := io.ReadAll(in)
	return strings.TrimSpace(string(word)) == letGo
}

// watch returns when the cluster must be stopped. The exit of a part is recorded once; the rest keeps running for
// inspection.
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

// Start starts a supervisor of a cluster; the program must call Main when it finds Name as its argv[0].
func Start(spec cluster.Spec) (*Launch, error) {
	line, err := json.Marshal(spec)
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

// WaitReady returns when the cluster is up; progress takes the stages until then. After an error the cluster and the
// supervisor have ended. When ctx ends the supervisor is requested to stop everything.
func (l *Launch) WaitReady(ctx context.Context, progress func(string)) error {
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
		case e.Ready:
			return context.Cause(ctx)
		default:
			progress(e.Text)
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
