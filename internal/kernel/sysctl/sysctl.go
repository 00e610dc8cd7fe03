// Package sysctl reads and writes kernel parameters below /proc/sys. It translates keys to files, and never writes a
// value that is equal already: some parameters act on every write.
package sysctl

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultRoot is the usual directory of the kernel's parameters. An agent with a read-only /proc/sys has a writable one
// mounted elsewhere.
const DefaultRoot Root = "/proc/sys"

// Root is the directory below which keys are looked up; the empty Root means DefaultRoot. Keys below net belong to the
// network namespace of the calling thread, whatever the root.
type Root string

// Key is a parameter's name in parts. It is not a dotted string because interface names, which are parts of many keys,
// may contain dots.
type Key []string

// String returns the key as sysctl(8) writes it, with slashes for separators.
func (k Key) String() string { return strings.Join(k, "/") }

// Get reads a parameter. The error wraps fs.ErrNotExist if the kernel has no such parameter.
func (r Root) Get(key Key) (string, error) {
	path, err := r.path(key)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Set sets a parameter unless it has the value already. The error wraps fs.ErrNotExist if the kernel has no such
// parameter.
//
// It makes four system calls and avoids the runtime's poller, which cannot watch such files: a pod needs a dozen
// parameters.
func (r Root) Set(key Key, value string) error {
	path, err := r.path(key)
	if err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return r.readOnly(key, value, &fs.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd)
	have, err := pread(fd)
	if err != nil || have == value {
		return wrap("read", path, err)
	}
	// The kernel accepts a value only at the file's beginning (sysctl_writes_strict).
	if _, err := unix.Pwrite(fd, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl to %q, is %q: %w", value, have, wrap("write", path, err))
	}
	return nil
}

// readOnly returns nil for a parameter that can't be written but has the value.
func (r Root) readOnly(key Key, value string, cause error) error {
	have, err := r.Get(key)
	if err != nil || have == value {
		return err
	}
	return fmt.Errorf("set sysctl to %q, is %q: %w", value, have, cause)
}

// pread reads a file that is smaller than a page, like all parameters.
func pread(fd int) (string, error) {
	var b [4096]byte
	n, err := unix.Pread(fd, b[:], 0)
	return strings.TrimSpace(string(b[:max(n, 0)])), err
}

func wrap(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// path rejects parts that would lead out of the tree.
func (r Root) path(key Key) (string, error) {
	if r == "" {
		r = DefaultRoot
	}
	if len(key) == 0 {
		return "", fmt.Errorf("sysctl key is empty")
	}
	for _, part := range key {
		if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "/\x00") {
			return "", fmt.Errorf("sysctl key %q: part %q is not a file name", key, part)
		}
	}
	return filepath.Join(append([]string{string(r)}, key...)...), nil
}
