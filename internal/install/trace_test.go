package install

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// changing are the system calls by which names appear, change and disappear; other processes find no state between
// them.
func changing(nr uint64) bool {
	switch nr {
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT, unix.SYS_SYMLINKAT:
		return true
	case 82, 83, 84, 87, 88: // rename, mkdir, rmdir, unlink, symlink, which only older architectures have
		return runtime.GOARCH == "amd64"
	}
	return false
}

// syscallInfo is the head of the kernel's struct ptrace_syscall_info, at the entry of a call.
type syscallInfo struct {
	op     uint8
	_      [3]uint8
	arch   uint32
	ip, sp uint64
	nr     uint64
	args   [6]uint64
}

const (
	getSyscallInfo = 0x420e
	atEntry        = 1
)

// killAt runs the test binary's helper and kills it, as kill -9 does, when it is about to change a name for the n-th
// time, from 0. It reports false if the helper ended before.
func killAt(t *testing.T, n int, env ...string) bool {
	t.Helper()
	runtime.LockOSThread() // only the tracing thread may control and wait for the traced process
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"install", "-test.run=^TestHelperWorks$"}, &os.ProcAttr{
		Env: append(os.Environ(), env...), Files: []*os.File{nil, nil, os.Stderr}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	errtest.Must(t, err)
	defer p.Release()
	var status unix.WaitStatus
	if _, err := unix.Wait4(p.Pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	errtest.Must(t, unix.PtraceSetOptions(p.Pid, unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL))
	killed := false
	for tid, signal, seen := p.Pid, 0, 0; ; {
		if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
		for {
			if tid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil); err != nil {
				t.Fatal(err)
			}
			if status.Stopped() {
				break
			}
			if tid == p.Pid {
				if !killed && status.ExitStatus() != 0 {
					t.Fatalf("the helper failed: %v", status)
				}
				return killed
			}
		}
		signal = 0
		switch stop := status.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			if !killed && changes(tid) {
				if seen++; seen > n {
					killed = true
					errtest.Must(t, p.Kill())
				}
			}
		case stop != unix.SIGTRAP && stop != unix.SIGSTOP:
			signal = int(stop)
		}
	}
}

// changes reports whether a thread is about to change a name.
func changes(tid int) bool {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	return errno == 0 && info.op == atEntry && changing(info.nr)
}
