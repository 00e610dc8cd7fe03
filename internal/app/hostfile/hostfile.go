// Package hostfile writes files that other processes of the host read while they are being written: the runtime's
// conflist, the plugins that a kernel executes, the agent's state. It ensures atomicity; the caller decides on the
// content.
package hostfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/app/wait"
)

// Temporary files lie beside their target, so that the rename stays inside one file system. Container runtimes, which
// read *.conf, *.conflist and *.json, ignore them for their extension.
const (
	tempPattern = ".tortie-*.tmp"
	tempFormat  = ".tortie-%016x.tmp"
	lockRetry   = 50 * time.Millisecond
)

// Replace makes path a regular file with that content and mode, in one step for every reader, and even while the kernel
// executes the old file (ETXTBSY is for writing in place). It returns false, and leaves the inode alone, if the file is
// so already.
func Replace(path string, content []byte, mode fs.FileMode) (written bool, err error) {
	if Same(path, content, mode) {
		return false, nil
	}
	dir := filepath.Dir(path)
	temp, err := writeTemp(dir, content, mode)
	if err != nil {
		return false, fmt.Errorf("writing %s: %w%s", path, err, remedy(dir, err))
	}
	if err := Rename(temp, filepath.Base(path)); err != nil {
		return false, errors.Join(fmt.Errorf("putting %s in place: %w%s", path, err, remedy(dir, err)), Unlink(temp))
	}
	return true, syncDir(dir)
}

// Same reports whether path is a regular file of this process's user with that content and mode.
func Same(path string, content []byte, mode fs.FileMode) bool {
	info, err := Lstat(path)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(content)) {
		return false
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return false // another user could change it
	}
	return holds(path, content)
}

// holds compares a file with content of its size. It reads in parts: programs, and an agent's state of a large cluster,
// have many megabytes.
func holds(path string, content []byte) bool {
	f, err := OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() { // the file was replaced meanwhile
		return false
	}
	part := make([]byte, min(len(content), 64<<10))
	for len(content) > 0 {
		n, err := f.Read(part)
		if err != nil || n > len(content) || !bytes.Equal(part[:n], content[:n]) {
			return false
		}
		content = content[n:]
	}
	return true
}

// writeTemp writes a complete temporary file to the disk, or none, and returns its path.
func writeTemp(dir string, content []byte, mode fs.FileMode) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf(tempFormat, rand.Uint64()))
	f, err := OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode) // not by open(2), which applies the umask
	}
	if err == nil {
		err = f.Sync() // before the rename: else a power cut may leave the new name with no content
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, Unlink(path))
	}
	return path, nil
}

func syncDir(dir string) error {
	d, err := OpenFile(dir, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("opening %s to sync it: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}

// Sweep removes the temporary files that killed processes have left in a directory, which may be missing. A process
// that writes there at the same time may fail, and then leaves the file that it replaces as it was: the caller prevents
// that with a lock, or accepts it.
func Sweep(dir string) error {
	all, err := ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for leftovers in %s: %w", dir, err)
	}
	var errs []error
	for _, left := range all {
		if temp, _ := filepath.Match(tempPattern, left.Name()); !temp {
			continue
		}
		if err := Unlink(filepath.Join(dir, left.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing leftover: %w%s", err, remedy(dir, err)))
		}
	}
	return errors.Join(errs...)
}

// Writable returns nil if files can be written in a directory, else the reason, as far as access(2) shows it. It writes
// nothing.
func Writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%w%s", err, remedy(dir, err))
	}
	return nil
}

// Remove removes a file for good: it does not reappear after a power cut. It returns false if there was none.
func Remove(path string) (removed bool, err error) {
	dir := filepath.Dir(path)
	err = Unlink(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("removing %s: %w%s", path, errors.Unwrap(err), remedy(dir, err))
	}
	return true, syncDir(dir)
}

// Lock makes this process the only one that works below dir until unlock. It locks the directory itself, so it leaves
// no file behind, and the kernel releases the lock when the process dies. Two installers compete when a DaemonSet's pod
// is replaced.
func Lock(ctx context.Context, dir string) (unlock func() error, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking: %w%s", err, remedy(filepath.Dir(dir), err))
	}
	switch err := Flock(ctx, d, lockRetry); {
	case errors.Is(err, ErrLocked):
		return nil, errors.Join(fmt.Errorf("locking %s, which another installer holds: %w", dir, context.Cause(ctx)), d.Close())
	case err != nil:
		return nil, errors.Join(err, d.Close())
	}
	return d.Close, nil
}

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("in use by another process")

// Flock waits for the exclusive lock on an open file, with a pause between attempts: the kernel's own wait could not be
// interrupted when ctx ends. Closing the file, also by exiting, releases the lock.
func Flock(ctx context.Context, f *os.File, pause time.Duration) error {
	for {
		err := TryFlock(f)
		if !errors.Is(err, ErrLocked) {
			return err
		}
		if !wait.Sleep(ctx, wait.Jitter(pause)) {
			return fmt.Errorf("%s is %w: %w", f.Name(), ErrLocked, context.Cause(ctx))
		}
	}
}

// TryFlock takes the exclusive lock on an open file, or fails with ErrLocked.
func TryFlock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		case !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// remedy returns an operator's remedy for a file error below dir.
func remedy(dir string, err error) string {
	switch {
	case errors.Is(err, syscall.EROFS):
		return " (mount the host's directory read-write into this container)"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return " (free space on the host's file system)"
	case errors.Is(err, fs.ErrNotExist):
		return " (mount the host's directory into this container)"
	case errors.Is(err, syscall.EPERM):
		return fmt.Sprintf(" (%s or the file is immutable: see lsattr; or a security module such as SELinux or AppArmor forbids it%s)",
			dir, label(dir))
	case errors.Is(err, fs.ErrPermission):
		return denied(dir)
	}
	return ""
}

// denied returns the remedy for a denied access: by owner, by mode, or by a security module.
func denied(dir string) string {
	info, err := os.Stat(dir)
	if err != nil {
		return " (run as root)"
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Sprintf(
			" (%s belongs to user %d with mode %04o, and this is user %d: chown it to root, or run as root with the capability DAC_OVERRIDE)",
			dir, stat.Uid, info.Mode().Perm(), os.Geteuid())
	}
	if info.Mode().Perm()&0o300 != 0o300 {
		return fmt.Sprintf(" (%s has mode %04o: chmod it to 0755)", dir, info.Mode().Perm())
	}
	return fmt.Sprintf(" (a security module such as SELinux or AppArmor forbids it%s)", label(dir))
}

// label returns a directory's SELinux label with the remedy, empty if it has none.
func label(dir string) string {
	text := make([]byte, 256)
	n, err := syscall.Getxattr(dir, "security.selinux", text)
	if err != nil || n <= 0 {
		return ""
	}
	return fmt.Sprintf(": its SELinux label is %s, which must let containers write: give the pod seLinuxOptions type spc_t (value "+
		"seLinuxOptions of the chart), or relabel it with chcon -t container_file_t", bytes.TrimRight(text[:n], "\x00"))
}
