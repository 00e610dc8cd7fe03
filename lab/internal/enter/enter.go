// Package enter runs programs inside the namespaces of a process, as nsenter(1) does.
package enter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/thread"
)

// namespaces are in the order of entering: the mount namespace last, since it hides /proc.
var namespaces = []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"}

// Run runs a program in the namespaces of a process, with its root directory, and waits for it. The path of cmd is
// looked up there if it has no slash; its environment should have a PATH.
func Run(ctx context.Context, pid int, name string, args []string, prepare func(*exec.Cmd)) error {
	return thread.Run(func() error {
		if err := enter(pid); err != nil {
			return fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
		}
		cmd := exec.CommandContext(ctx, name, args...)
		prepare(cmd)
		return cmd.Run()
	})
}

func enter(pid int) error {
	files := make([]*os.File, 0, len(namespaces))
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, ns := range namespaces {
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns", ns))
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it has ended: %w", err)
		}
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	// A thread that shares its root directory with others may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for i, f := range files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("%s namespace: %w", namespaces[i], err)
		}
	}
	return os.Chdir("/")
}
