package cnitest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/thread"
)

// BinDir is the directory of the programs on a host.
const BinDir = "/opt/cni/bin"

// Host is a node for plugins: a network namespace with a default route, and a mount namespace in which Calico's paths
// contain only the files of the test and hide the machine's own.
type Host struct {
	*netnstest.NS
	both *thread.Thread // is in both namespaces
}

// NewHost returns a node that is removed with the test.
func NewHost(t testing.TB, programs *Programs) *Host {
	t.Helper()
	bin := programs.Dir(t)
	ns, underlay := netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, ns, "eth0", underlay, "node")
	ns.Addr(t, "eth0", "10.250.9.9/16")
	ns.Route(t, "0.0.0.0/0", "10.250.0.1", "eth0")
	return NewHostIn(t, ns, bin)
}

// NewHostIn returns a node in an existing namespace, with the programs of a directory.
func NewHostIn(t testing.TB, ns *netnstest.NS, bin string) *Host {
	t.Helper()
	h := &Host{NS: ns}
	var err error
	h.both, err = thread.New(func() error {
		if err := Mount(bin); err != nil {
			return err
		}
		return unix.Setns(h.Fd(), unix.CLONE_NEWNET)
	})
	if err != nil {
		t.Fatalf("make a node (tests of the plugins need root): %v", err)
	}
	t.Cleanup(h.both.Close)
	return h
}

// Mount gives the calling thread a mount namespace in which Calico's paths hide the machine's own, with a directory of
// programs at BinDir.
func Mount(bin string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("detach from the machine's mounts: %w", err)
	}
	// The directory of the programs may lie below one that is about to be hidden.
	if err := mountTmpfs("/opt"); err != nil {
		return err
	}
	if err := os.MkdirAll(BinDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(bin, BinDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", BinDir, err)
	}
	for _, dir := range []string{"/etc", "/run", "/var"} {
		if err := mountTmpfs(dir); err != nil {
			return err
		}
	}
	return os.Symlink("/run", "/var/run")
}

func mountTmpfs(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// Try runs fn on the node, one call at a time: in its mount and network namespaces, which processes that fn starts
// inherit.
func (h *Host) Try(fn func() error) error { return h.both.Do(fn) }

// On runs fn on the node; the test fails with fn's error.
func (h *Host) On(t testing.TB, fn func() error) {
	t.Helper()
	errtest.Must(t, h.Try(fn))
}

// Write writes a file of the node, and creates its directory.
func (h *Host) Write(t testing.TB, path, text string) {
	t.Helper()
	h.On(t, func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), 0o600)
	})
}

// Read returns a file's content, or "" if it does not exist.
func (h *Host) Read(t testing.TB, path string) string {
	t.Helper()
	var text []byte
	h.On(t, func() (err error) {
		if text, err = os.ReadFile(path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	return string(text)
}

// Listen opens a TCP socket on the node's loopback. It may be used from any namespace.
func (h *Host) Listen(t testing.TB) net.Listener {
	t.Helper()
	var l net.Listener
	h.On(t, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	return l
}
