package deps

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// beat is the interval of progress lines of a running command.
	beat = 10 * time.Second
	// stopTime is the limit for an interrupted apt to finish the current package.
	stopTime = 5 * time.Minute
)

// apt runs apt-get, and waits for another running apt.
func apt(ctx context.Context, log io.Writer, args ...string) error {
	return Explain(run(ctx, log, "apt-get", append([]string{"-qq", "-o", "DPkg::Lock::Timeout=300"}, args...)...))
}

// run runs one of Debian's tools; its output is only in the error. Ctrl-C on a terminal does not reach it: it is
// interrupted once, when ctx ends, and may finish its current step.
func run(ctx context.Context, log io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = stopTime
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	start := time.Now()
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out.Bytes()))
			}
			return nil
		case <-t.C:
			fmt.Fprintf(log, "deps: %s, %v\n", name, time.Since(start).Round(time.Second))
		}
	}
}
