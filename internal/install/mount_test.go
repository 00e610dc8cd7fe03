package install

import (
	"runtime"
	"syscall"
	"testing"
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

// ownMounts gives this test's thread a mount namespace of its own. The thread is never unlocked, so it ends with the test,
// and the mounts with it.
func ownMounts(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_FS); err != nil {
		t.Fatalf("this test needs root: unshare mounts: %v", err)
	}
	mount(t, "", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
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
