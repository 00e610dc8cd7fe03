// Package e2e checks the demo: on this machine's kernel, or in a virtual machine where that has no IPIP. It has no other code.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/lab/internal/binaries"
	"github.com/tortie-net/tortie/lab/internal/demo"
)

// TestDemo runs the demo, which asserts all that it shows, and compares the shape of its transcript with docs/demo.md.
func TestDemo(t *testing.T) {
	module, err := binaries.FindModule(".")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(module)
	// The image, and the lab itself, are of these sources and not of an earlier commit's.
	run(t, root, "make", "--no-print-directory", "image")
	record := filepath.Join(t.TempDir(), "demo.md")
	// A name of its own: somebody may be looking at the demo's lab.
	run(t, root, "bin/lab", "demo", "-name", fmt.Sprintf("e2e%d", os.Getpid()), "-record", record)
	got, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(root, "docs", "demo.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(demo.Shape(string(want)), demo.Shape(string(got))); diff != "" {
		t.Errorf("docs/demo.md shows another demo (-page +now); bin/lab demo -record docs/demo.md writes it again:\n%s", diff)
	}
}

// run shows a program's output as it comes. The program has time to clean up when the test runs out of its own.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-30*time.Second))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, name), args...)
	if filepath.Base(name) == name {
		cmd = exec.CommandContext(ctx, name, args...)
	}
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
}
