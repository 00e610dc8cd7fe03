package wireguard_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// mountSysfs mounts the namespace's sysfs until the test ends.
func mountSysfs(t *testing.T, ns *netnstest.NS, flags uintptr) sysctl.Root {
	t.Helper()
	dir := t.TempDir()
	ns.Within(t, func() error { return unix.Mount("sysfs", dir, "sysfs", flags, "") })
	t.Cleanup(func() { errtest.Must(t, unix.Unmount(dir, 0)) })
	return sysctl.Root(filepath.Join(dir, "class/net"))
}

// The kernel's threads are started and ended if the file is writable; a correct setting is not written.
func TestThread(t *testing.T) {
	ns := newNS(t)
	writable, readOnly := mountSysfs(t, ns, 0), mountSysfs(t, ns, unix.MS_RDONLY)
	d := device()
	d.Threaded = wireguard.Threaded
	s := newSyncer(ns)
	sync(t, s, d, nil)
	errtest.Must(t, d.Thread(writable)) // without peers the kernel refuses it
	d = device(peer(2, "10.0.2.0/26"))
	sync(t, s, d, nil)
	key := sysctl.Key{wireguard.Device4, "threaded"}
	before, err := writable.Get(key)
	errtest.Must(t, err)
	t.Logf("the kernel's default: %s", before)
	errtest.Must(t, d.Thread(readOnly)) // nothing is desired
	for _, want := range []string{wireguard.Unthreaded, wireguard.Threaded, wireguard.Unthreaded} {
		d.Threaded = want
		errtest.Must(t, d.Thread(writable))
		if got, err := writable.Get(key); err != nil || got != want {
			t.Errorf("threaded is %q, %v; want %s", got, err, want)
		}
		errtest.Must(t, d.Thread(readOnly))
	}
	d.Threaded = wireguard.Threaded
	if err := d.Thread(readOnly); !errtest.Names(err, "wireguard.cali wireguardThreadingEnabled wireguard.threaded") {
		t.Errorf("read-only: %v", err)
	}
}

// A kernel without such threads is correct if none are desired.
func TestThreadOldKernel(t *testing.T) {
	d := device(peer(2, "10.0.2.0/26"))
	sysfs := sysctl.Root(t.TempDir())
	for threaded, want := range map[string]string{"": "", wireguard.Unthreaded: "", wireguard.Threaded: "use Linux 5.12"} {
		d.Threaded = threaded
		if err := d.Thread(sysfs); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", threaded, err)
		}
	}
	if left, err := fs.Glob(os.DirFS(string(sysfs)), "*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
