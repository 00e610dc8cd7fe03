package sysctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// tree makes a directory that stands for /proc/sys, with one file for each key.
func tree(t *testing.T, values map[string]string) sysctl.Root {
	t.Helper()
	root := t.TempDir()
	for key, value := range values {
		path := filepath.Join(root, filepath.FromSlash(key))
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		errtest.Must(t, os.WriteFile(path, []byte(value+"\n"), 0o644))
	}
	return sysctl.Root(root)
}

func TestSetWritesOnlyWhatDiffers(t *testing.T) {
	root := tree(t, map[string]string{"net/ipv4/conf/eth0.100/proxy_arp": "0"})
	key := sysctl.Key{"net", "ipv4", "conf", "eth0.100", "proxy_arp"}
	file := filepath.Join(append([]string{string(root)}, key...)...)
	past := time.Now().Add(-time.Hour)

	for i, want := range []struct {
		value   string
		written bool
	}{{"1", true}, {"1", false}, {"0", true}, {"0", false}} {
		errtest.Must(t, os.Chtimes(file, past, past))
		if err := root.Set(key, want.value); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		got, err := root.Get(key)
		if err != nil || got != want.value {
			t.Fatalf("step %d: Get = %q, %v; want %q", i, got, err, want.value)
		}
		info, err := os.Stat(file)
		errtest.Must(t, err)
		if written := !info.ModTime().Equal(past); written != want.written {
			t.Errorf("step %d: Set(%q) wrote the file: %v, want %v", i, want.value, written, want.written)
		}
	}
}

func TestMissingParameter(t *testing.T) {
	root := tree(t, nil)
	err := root.Set(sysctl.Key{"net", "ipv4", "conf", "nowhere", "forwarding"}, "1")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Set of a missing parameter: %v, want fs.ErrNotExist", err)
	}
	if _, err := os.Stat(filepath.Join(string(root), "net")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Set made a file below the root: %v", err)
	}
}

func TestKeyThatLeavesTheTree(t *testing.T) {
	root := tree(t, map[string]string{"kernel/hostname": "here"})
	for _, key := range []sysctl.Key{nil, {""}, {"net", ".."}, {"net", "a/b"}, {"net", "."}} {
		if err := root.Set(key, "1"); err == nil || !strings.Contains(err.Error(), "key") {
			t.Errorf("Set(%q) = %v, want an error that speaks of the key", key, err)
		}
	}
}

func TestKernelRefusal(t *testing.T) {
	// The kernel itself: a value that it refuses, for a parameter that stays unchanged.
	err := sysctl.DefaultRoot.Set(sysctl.Key{"kernel", "ostype"}, "Plan 9")
	if err == nil || !strings.Contains(err.Error(), "Plan 9") {
		t.Errorf("Set of a read-only parameter = %v, want an error with the value", err)
	}
	if got, err := sysctl.Root("").Get(sysctl.Key{"kernel", "ostype"}); err != nil || got != "Linux" {
		t.Errorf("Get with the empty root = %q, %v; want Linux from /proc/sys", got, err)
	}
}

func TestReadOnlyParameter(t *testing.T) {
	// Even root can't open these for writing: a value that is equal already counts as written.
	key := sysctl.Key{"kernel", "ostype"}
	if err := sysctl.DefaultRoot.Set(key, "Linux"); err != nil {
		t.Errorf("Set of a read-only parameter to what it is: %v", err)
	}
}

// TestKernelParameter writes a real parameter, which the kernel accepts only at the file's beginning.
func TestKernelParameter(t *testing.T) {
	key := sysctl.Key{"net", "ipv4", "conf", "lo", "log_martians"}
	err := inNamespace(func() error {
		for _, value := range []string{"1", "0", "1"} {
			if err := sysctl.DefaultRoot.Set(key, value); err != nil {
				return err
			}
			if got, err := sysctl.DefaultRoot.Get(key); err != nil || got != value {
				return fmt.Errorf("Get = %q, %v; want %q", got, err, value)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// inNamespace runs f in a network namespace of its own, which ends with the thread.
func inNamespace(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace (tests of the kernel need root): %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
