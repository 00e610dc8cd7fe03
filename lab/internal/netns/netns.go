// Package netns creates, enters and removes named network namespaces, as `ip netns` does.
//
// It owns the files below /run/netns with the given names. It never changes the namespace of the process: every change runs on an operating
// system thread of its own.
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

// Dir is iproute2's directory of namespaces.
const Dir = "/run/netns"

// Path returns the file of a namespace.
func Path(name string) string { return filepath.Join(Dir, name) }

// Create creates a namespace; an existing name is an error.
func Create(name string) error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return fmt.Errorf("make network namespace %s: %w", name, err)
	}
	f, err := os.OpenFile(Path(name), os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make network namespace %s: %w", name, err)
	}
	f.Close()
	err = Scratch(func() error {
		return unix.Mount("/proc/thread-self/ns/net", Path(name), "", unix.MS_BIND, "")
	})
	if err != nil {
		return errors.Join(fmt.Errorf("make network namespace %s: %w", name, err), os.Remove(Path(name)))
	}
	return nil
}

// Delete removes a name; the namespace ends with its last process and file. A missing name is not an error.
func Delete(name string) error {
	if err := unix.Unmount(Path(name), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	if err := os.Remove(Path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	return nil
}

// List returns the names that begin with prefix.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if name := e.Name(); len(name) > len(prefix) && name[:len(prefix)] == prefix {
			names = append(names, name)
		}
	}
	return names, err
}

// Do runs f on a thread in the named namespace. Goroutines that f starts run elsewhere.
func Do(name string, f func() error) error {
	return thread.Run(func() error {
		if err := Enter(name); err != nil {
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
func Enter(name string) error {
	f, err := os.Open(Path(name))
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return nil
}

// DialFunc is the type of a function that opens connections.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a function that connects from inside a namespace to an address given as IP:port. A socket stays in the namespace of its
// creation, so the connection can be used anywhere.
func Dialer(name string) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var c net.Conn
		err := Do(name, func() error {
			var d net.Dialer
			var err error
			// With a single literal address the dialer creates the socket on this goroutine, and so on this thread.
			c, err = d.DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
}
