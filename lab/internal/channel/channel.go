// Package channel runs commands inside a virtual machine from outside: over a serial port of the virtual machine, which is a Unix socket on
// the launcher's side. It serves one client at a time; others wait in the socket's queue. The supervisor of a lab on this machine is
// controlled in the same way.
package channel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/lab/internal/vmproto"
)

// request is one command to run. Without arguments it only checks that a server responds.
type request struct {
	// ID is in every reply, to detect replies to an earlier, interrupted call.
	ID   string
	Args []string
}

// reply is a piece of output, or the end.
type reply struct {
	ID             string
	Stdout, Stderr []byte `json:",omitempty"`
	Exit           *int   `json:",omitempty"`
	Error          string `json:",omitempty"`
}

// Call runs a command in the virtual machine and returns its exit code.
func Call(ctx context.Context, socket string, args []string, stdout, stderr io.Writer) (int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, fmt.Errorf("reach %s: %w", socket, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	id := fmt.Sprintf("%d.%d", os.Getpid(), time.Now().UnixNano())
	if err := json.NewEncoder(conn).Encode(request{ID: id, Args: args}); err != nil {
		return 0, fmt.Errorf("ask %s: %w", socket, err)
	}
	for replies := json.NewDecoder(conn); ; {
		var r reply
		if err := replies.Decode(&r); err != nil {
			return 0, errors.Join(context.Cause(ctx), fmt.Errorf("%s does not answer: %w", socket, err))
		}
		switch {
		case r.ID != id:
		case r.Error != "":
			return 0, errors.New(r.Error)
		case r.Exit != nil:
			return *r.Exit, nil
		default:
			_, outErr := stdout.Write(r.Stdout)
			_, errErr := stderr.Write(r.Stderr)
			if err := errors.Join(outErr, errErr); err != nil {
				return 0, err
			}
		}
	}
}

// Runner runs a command and returns its exit code, or the reason why it could not run.
type Runner func(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error)

// Serve serves calls on the virtual machine's side until ctx ends.
func Serve(ctx context.Context, run Runner) error {
	path, err := port()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the channel: %w", err)
	}
	defer f.Close()
	return serve(ctx, f, run)
}

// port returns the device of the serial port with the channel's name.
func port() (string, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, file := range names {
		b, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(b)) == vmproto.ChannelName {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", fmt.Errorf("this virtual machine has no port %s", vmproto.ChannelName)
}

// idle is the pause before the next read while no client is connected: the port returns EOF at once.
const idle = 50 * time.Millisecond

func serve(ctx context.Context, rw io.ReadWriter, run Runner) error {
	for ctx.Err() == nil {
		answerAll(ctx, rw, run)
		select {
		case <-ctx.Done():
		case <-time.After(idle):
		}
	}
	return ctx.Err()
}

// answerAll serves until nothing can be read. It uses a new decoder for each client: an interrupted one may have left half a line.
func answerAll(ctx context.Context, rw io.ReadWriter, run Runner) {
	for requests := json.NewDecoder(rw); ; {
		var r request
		if err := requests.Decode(&r); err != nil {
			return
		}
		answer(ctx, rw, r, run)
	}
}

// Listen serves calls at a Unix socket of this machine until ctx ends, several concurrently.
func Listen(ctx context.Context, socket string, run Runner) error {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("open the channel: %w", err)
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
			return fmt.Errorf("serve the channel: %w", err)
		}
		calls.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			answerAll(ctx, conn, run)
		})
	}
}

func answer(ctx context.Context, w io.Writer, r request, run Runner) {
	replies := json.NewEncoder(w)
	// An error is the client's: it has disconnected. The next one is served.
	send := func(p reply) { p.ID = r.ID; _ = replies.Encode(p) }
	var code int
	var err error
	if len(r.Args) > 0 {
		code, err = run(ctx, r.Args,
			writer(func(b []byte) { send(reply{Stdout: b}) }), writer(func(b []byte) { send(reply{Stderr: b}) }))
	}
	if err != nil {
		send(reply{Error: err.Error()})
		return
	}
	send(reply{Exit: &code})
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
