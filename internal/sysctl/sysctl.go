// Package sysctl writes kernel parameters below /proc/sys. It owns nothing but the translation from keys to files, and
// never writes a value that is already there: some parameters act on every write.
package sysctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// DefaultRoot is where the kernel's parameters normally are. An agent with a read-only /proc/sys gets a writable one
// mounted elsewhere.
const DefaultRoot Root = "/proc/sys"

// Root is the directory below which keys are looked up; the empty Root means DefaultRoot. Keys below net are those of the
// network namespace of the calling thread, whatever the root.
type Root string

// Key is a parameter's name in parts. It is not a dotted string because interface names, which are parts of many keys, may
// contain dots.
type Key []string

// String is the key as sysctl(8) writes it, with slashes for separators.
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

// Set gives a parameter a value unless it has it already. The error wraps fs.ErrNotExist if the kernel has no such
// parameter.
func (r Root) Set(key Key, value string) error {
	have, err := r.Get(key)
	if err != nil || have == value {
		return err
	}
	path, err := r.path(key)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set sysctl to %q, is %q: %w", value, have, err)
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("set sysctl to %q, is %q: %w", value, have, err)
	}
	return nil
}

// path refuses parts that would lead out of the tree.
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
