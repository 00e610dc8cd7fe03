// Package hostfile writes files that other processes of the host read while they are being written: the runtime's conflist,
// the plugins that a kernel executes, the agent's state. It owns atomicity; what is written is the caller's business.
package hostfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Temporary files lie beside their target, so that the rename stays inside one file system. Their extension keeps container
// runtimes, which read *.conf, *.conflist and *.json, from taking one for configuration.
const (
	tempPattern = ".tortie-*.tmp"
	lockRetry   = 50 * time.Millisecond
)

// Replace makes path a regular file with that content and mode, in one step for every reader: also for a kernel that runs
// the old file (ETXTBSY is for writing in place). It reports false, and leaves the inode alone, if the file was so already.
func Replace(path string, content []byte, mode fs.FileMode) (written bool, err error) {
	if same(path, content, mode) {
		return false, nil
	}
	dir := filepath.Dir(path)
	temp, err := writeTemp(dir, content, mode)
	if err != nil {
		return false, fmt.Errorf("writing %s: %w%s", path, err, remedy(err))
	}
	if err := os.Rename(temp, path); err != nil {
		return false, errors.Join(fmt.Errorf("putting %s in place: %w%s", path, err, remedy(err)), os.Remove(temp))
	}
	return true, syncDir(dir)
}

func same(path string, content []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(content)) {
		return false
	}
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, content)
}

// writeTemp leaves a complete file on the disk, or none.
func writeTemp(dir string, content []byte, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode) // not by open(2): the umask would cut it
	}
	if err == nil {
		err = f.Sync() // before the rename: else a power cut may leave the new name with no content
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening %s to sync it: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}

// Sweep removes the temporary files of a run that was killed. The caller holds the lock: nobody else has one in use.
func Sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, tempPattern))
	if err != nil {
		return fmt.Errorf("looking for leftovers in %s: %w", dir, err)
	}
	var errs []error
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing leftover: %w%s", err, remedy(err)))
		}
	}
	return errors.Join(errs...)
}

// Lock makes this process the only one that works below dir until unlock. It locks the directory itself, so it leaves
// no file behind, and the kernel gives the lock back when the process dies. Two installers meet when a DaemonSet's pod is
// replaced.
func Lock(ctx context.Context, dir string) (unlock func() error, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking: %w%s", err, remedy(err))
	}
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return d.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", dir, err), d.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("locking %s, which another installer holds: %w", dir, context.Cause(ctx)), d.Close())
		case <-time.After(lockRetry):
		}
	}
}

// remedy says what an operator can do about a file error.
func remedy(err error) string {
	switch {
	case errors.Is(err, syscall.EROFS):
		return " (mount the host's directory read-write into this container)"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return " (free space on the host's file system)"
	case errors.Is(err, fs.ErrNotExist):
		return " (mount the host's directory into this container)"
	case errors.Is(err, fs.ErrPermission):
		return " (run as root; on SELinux hosts the directory's label must allow writes)"
	}
	return ""
}
