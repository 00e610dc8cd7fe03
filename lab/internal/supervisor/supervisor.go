// Package supervisor keeps a cluster in a process of its own, so that the cluster does not outlive the one who wanted it,
// however that one ends.
//
// The launcher starts the supervisor in a session of its own and holds a pipe to it. The first line in the pipe says what
// to run. When the pipe ends, the supervisor takes the cluster down, unless the launcher has let go of it with a word. The
// supervisor's children die with it, by the kernel's parent-death signal.
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
	"syscall"
	"time"

	"github.com/tortie-net/tortie/lab/internal/cluster"
)

// Name is argv[0] of a supervisor.
const Name = cluster.SupervisorName

// letGo is the word after which the end of the pipe means nothing.
const letGo = "detach"

// eventsFD is the descriptor on which the supervisor tells its launcher how things go.
const eventsFD = 3

// event is one line from the supervisor.
type event struct {
	// Text is a stage that has been reached.
	Text string `json:",omitempty"`
	// Ready ends the start.
	Ready bool `json:",omitempty"`
	// Error is why the cluster did not come up, or what its removal left behind.
	Error string `json:",omitempty"`
}

// Main is the supervisor's whole life; it returns the process' exit code.
func Main() int {
	// The terminal's signals are for the launcher, whose end we see anyway.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	events := json.NewEncoder(os.NewFile(eventsFD, "events"))
	// The launcher may be gone: nobody reads then, and the lab shall come down all the same.
	tell := func(e event) { _ = events.Encode(e) }
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
	tell(event{Ready: true})
	watch(ctx, c)
	return c.Down(context.WithoutCancel(ctx))
}

// released waits for the end of the pipe and says whether the launcher let go before.
func released(in *bufio.Reader) bool {
	word, _ := io.ReadAll(in)
	return strings.TrimSpace(string(word)) == letGo
}

// watch returns when the cluster shall come down. A part that ends is noted once; the rest goes on, to be looked at.
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
		return nil, errors.Join(fmt.Errorf("tell the supervisor what to run: %w", err), l.Stop())
	}
	return l, nil
}

// WaitReady tells of the stages until the cluster is up. On error the cluster is gone, and the supervisor too. When ctx
// ends the supervisor is told to take everything down.
func (l *Launch) WaitReady(ctx context.Context, progress func(string)) error {
	stop := context.AfterFunc(ctx, func() { l.pipe.Close() })
	defer stop()
	for {
		var e event
		if err := l.events.Decode(&e); err != nil {
			return errors.Join(context.Cause(ctx), fmt.Errorf("the supervisor ended without a word: %w", err), l.cmd.Wait())
		}
		switch {
		case e.Error != "":
			l.pipe.Close()
			_ = l.cmd.Wait() // it has said what is wrong; its exit code adds nothing
			return errors.Join(context.Cause(ctx), errors.New(e.Error))
		case e.Ready:
			return context.Cause(ctx)
		default:
			progress(e.Text)
		}
	}
}

// Detach lets go of the cluster: it lives on without this process.
func (l *Launch) Detach() error {
	_, err := l.pipe.WriteString(letGo + "\n")
	err = errors.Join(err, l.pipe.Close(), l.from.Close())
	return errors.Join(err, l.cmd.Process.Release())
}

// Stop takes the cluster down and waits until it is gone.
func (l *Launch) Stop() error {
	l.pipe.Close() // closed twice when the start was cancelled
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
