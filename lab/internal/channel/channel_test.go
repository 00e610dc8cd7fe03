package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// virtualMachine serves clients of a socket in sequence, as qemu connects them to the port.
func virtualMachine(t *testing.T, run Runner) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served, stop := context.WithCancel(ctx)
			_ = serve(served, endStops{conn, stop}, run) // ends with the caller
			conn.Close()
		}
	}()
	return socket
}

// endStops stops serving when a client disconnects; the port would continue with the next.
type endStops struct {
	net.Conn
	stop context.CancelFunc
}

func (e endStops) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	if err != nil {
		e.stop()
	}
	return n, err
}

func TestCall(t *testing.T) {
	socket := virtualMachine(t, func(_ context.Context, args []string, stdout, stderr io.Writer) (int, error) {
		if args[0] == "broken" {
			return 0, errors.New("no such command")
		}
		fmt.Fprintf(stdout, "out %q", args)
		fmt.Fprint(stderr, "err")
		return len(args), nil
	})
	for _, c := range []struct {
		args        []string
		code        int
		out, errOut string
		fails       string
	}{
		{nil, 0, "", "", ""},
		{[]string{"a", "b c"}, 2, `out ["a" "b c"]`, "err", ""},
		{[]string{"broken"}, 0, "", "", "no such command"},
		{[]string{"x"}, 1, `out ["x"]`, "err", ""},
	} {
		var stdout, stderr bytes.Buffer
		code, err := Call(t.Context(), socket, c.args, &stdout, &stderr)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q: %v, want %q in it", c.args, err, c.fails)
			}
			continue
		}
		if err != nil || code != c.code || stdout.String() != c.out || stderr.String() != c.errOut {
			t.Errorf("%q: exit code %d, %q, %q, %v", c.args, code, stdout.String(), stderr.String(), err)
		}
	}
}

func TestCallerGivesUp(t *testing.T) {
	release := make(chan struct{})
	socket := virtualMachine(t, func(_ context.Context, args []string, stdout, _ io.Writer) (int, error) {
		if args[0] == "slow" {
			<-release
		}
		fmt.Fprint(stdout, args[0])
		return 0, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Call(ctx, socket, []string{"slow"}, io.Discard, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that takes too long: %v", err)
	}
	close(release)
	var stdout bytes.Buffer
	if code, err := Call(t.Context(), socket, []string{"next"}, &stdout, io.Discard); err != nil || code != 0 || stdout.String() != "next" {
		t.Errorf("the next call: %d, %q, %v", code, stdout.String(), err)
	}
	if _, err := Call(t.Context(), filepath.Join(t.TempDir(), "nobody"), nil, io.Discard, io.Discard); err == nil {
		t.Error("no error without a virtual machine")
	}
}
