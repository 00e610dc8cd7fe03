package install

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

// readOnly bind-mounts dir onto itself, read-only, as a hostPath without write access is.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	ownMounts(t)
	mount(t, dir, dir, "", syscall.MS_BIND, "")
	mount(t, dir, dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

// smallDisk mounts a file system of 64 KiB.
func smallDisk(t *testing.T, dir string) {
	t.Helper()
	ownMounts(t)
	mount(t, "small", dir, "tmpfs", 0, "size=64k")
}

// ownMounts gives this test's thread a mount namespace of its own. The thread is never unlocked, so it ends with the
// test, and the mounts with it.
func ownMounts(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_FS); err != nil {
		t.Fatalf("this test needs root: unshare mounts: %v", err)
	}
	mount(t, "", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
}

// dropOverride takes from this test's thread what lets root write anywhere.
func dropOverride(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: it ends with the test
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	errtest.Must(t, unix.Capget(&head, &caps[0]))
	caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	errtest.Must(t, unix.Capset(&head, &caps[0]))
}

// labelled gives a directory an SELinux label, which a kernel without SELinux keeps as any other attribute.
func labelled(t *testing.T, dir, label string) {
	t.Helper()
	needtest.Root(t, "a label")
	errtest.Must(t, unix.Setxattr(dir, "security.selinux", []byte(label+"\x00"), 0))
}

// immutable lets nobody write to a directory, not even root, as a security module would.
func immutable(t *testing.T, dir string) {
	t.Helper()
	needtest.Root(t, "an immutable directory")
	set := func(flags int) {
		d, err := os.Open(dir)
		errtest.Must(t, err)
		defer d.Close()
		errtest.Must(t, unix.IoctlSetPointerInt(int(d.Fd()), unix.FS_IOC_SETFLAGS, flags))
	}
	set(0x10) // FS_IMMUTABLE_FL
	t.Cleanup(func() { set(0) })
}

func mount(t *testing.T, source, target, fstype string, flags uintptr, data string) {
	t.Helper()
	if err := syscall.Mount(source, target, fstype, flags, data); err != nil {
		t.Fatalf("mount %s: %v", target, err)
	}
	if target != "/" && flags&syscall.MS_REMOUNT == 0 {
		t.Cleanup(func() { // on the same thread: the directory is removed after this
			if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", target, err)
			}
		})
	}
}
