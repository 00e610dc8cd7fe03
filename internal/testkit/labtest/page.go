package labtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// FollowPage runs the shell commands under a heading of a page of docs/. kubectl is the beginning of the command for it.
func FollowPage(t testing.TB, page, heading, kubectl string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), "docs", page))
	errtest.Must(t, err)
	_, rest, found := strings.Cut(string(text), " "+heading+"\n")
	section, _, _ := strings.Cut(rest, "\n#")
	_, block, is := strings.Cut(section, "\n```sh\n")
	script, _, ended := strings.Cut(block, "\n```")
	if !found || !is || !ended {
		t.Fatalf("docs/%s has no commands under %q", page, heading)
	}
	dir := t.TempDir()
	errtest.Must(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\nexec "+kubectl+" \"$@\"\n"), 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", "PATH="+dir+":$PATH\n"+script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a kubectl that waits outlives its shell
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("commands of docs/%s under %q: %v\n%s", page, heading, err, out)
	}
}
