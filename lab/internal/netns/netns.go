// Package netns creates, enters and removes network namespaces that files keep, as `ip netns` does.
//
// It owns the files that it is given. They are never in /run/netns: `ip netns add` mounts that directory over itself,
// which hides earlier mounts in it and prevents their removal, and `ip -all netns delete` removes all of it. It never
// changes the namespace of the process: every change runs on its own operating system thread.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab/internal/thread"
)

// Create creates a namespace and its file, with the directory; an existing file is an error.
func Create(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make network namespace %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make network namespace %s: %w", path, err)
	}
	f.Close()
	err = Scratch(func() error {
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return errors.Join(fmt.Errorf("make network namespace %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// Delete removes a file; the namespace ends with its last process and file. A missing file is not an error.
func Delete(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", path, err)
	}
	return nil
}

// DeleteAll deletes the namespaces with files in a directory. A missing directory is not an error.
func DeleteAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, Delete(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

// Do runs f on a thread in a namespace. Goroutines that f starts run elsewhere.
func Do(path string, f func() error) error {
	return thread.Run(func() error {
		if err := Enter(path); err != nil {
			return err
		}
		return f()
	})
}

// Scratch runs f on a thread in a new unnamed namespace, which ends with f unless f names it.
func Scratch(f func() error) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace (root is needed): %w", err)
		}
		return f()
	})
}

// Enter moves the calling thread into a namespace. The caller has locked the thread and never unlocks it, or execs.
func Enter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// DialFunc is the type of a function that opens connections.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a function that connects from inside a namespace to an address given as IP:port. A socket stays in the
// namespace of its creation, so the connection can be used anywhere.
func Dialer(path string) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var c net.Conn
		err := Do(path, func() error {
			var d net.Dialer
			var err error
			// With a single literal address the dialer creates the socket on this goroutine, and so on this thread.
			c, err = d.DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
}
