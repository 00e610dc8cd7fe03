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
	// beat is how often a command that goes on says so.
	beat = 10 * time.Second
	// stopTime is how long apt may take to finish the package that it is at when it is interrupted.
	stopTime = 5 * time.Minute
)

// apt runs apt-get. Another apt at work is waited for.
func apt(ctx context.Context, log io.Writer, args ...string) error {
	return Explain(run(ctx, log, "apt-get", append([]string{"-qq", "-o", "DPkg::Lock::Timeout=300"}, args...)...))
}

// run runs one of Debian's tools; what it prints is in the error only. Ctrl-C on a terminal does not reach it: it is interrupted once,
// when ctx ends, and may finish what must not be left half-done.
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

// sayDownload says what apt-get with these arguments will download, as far as apt knows.
func sayDownload(ctx context.Context, log io.Writer, args []string) {
	out, err := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "--print-uris"}, args...)...).Output()
	if err != nil {
		return // the installation says why
	}
	if n, bytes := archives(string(out)); n > 0 {
		fmt.Fprintf(log, "deps: downloading and installing %d Debian packages, %.1f MB\n", n, float64(bytes)/(1<<20))
	}
}

// archives counts the archives, and their bytes, of what apt-get --print-uris prints: a line 'URI' FILE SIZE HASH for each.
func archives(lines string) (n int, size int64) {
	for line := range strings.Lines(lines) {
		var uri, file string
		var bytes int64
		if _, err := fmt.Sscan(line, &uri, &file, &bytes); err == nil {
			n++
			size += bytes
		}
	}
	return n, size
}
