package program

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"syscall"
	"testing"
)

// wrong is an error with an exit code of its own.
type wrong struct{}

func (wrong) Error() string { return "wrong" }
func (wrong) ExitCode() int { return 2 }

func TestCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		said string
	}{
		{nil, 0, ""},
		{fmt.Errorf("flags: %w", flag.ErrHelp), 0, ""},
		{fmt.Errorf("flags: %w", wrong{}), 2, "node: flags: wrong\n"},
		{errors.New("no such node"), 1, "node: no such node\n"},
	} {
		var said bytes.Buffer
		if got := code("node", c.err, &said); got != c.code || said.String() != c.said {
			t.Errorf("%v: exit code %d and %q, want %d and %q", c.err, got, said.String(), c.code, c.said)
		}
	}
}

func TestSignalEndsTheContext(t *testing.T) {
	got := Run("node", func(ctx context.Context) error {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	if got != 0 {
		t.Errorf("exit code %d", got)
	}
}
