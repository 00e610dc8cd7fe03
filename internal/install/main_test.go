package install

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// memoryDisk names the directory that a process of these tests puts a file system in memory on.
const memoryDisk = "INSTALL_TEST_DISK"

// TestMain runs the tests in a mount namespace of their own, with their files in memory: an installation syncs each,
// and how long a busy disk takes for thousands of that is not what they test.
func TestMain(m *testing.M) {
	for _, name := range []string{helperRoot, helperSleeps} {
		if os.Getenv(name) != "" { // a child of a test
			os.Exit(m.Run())
		}
	}
	if dir := os.Getenv(memoryDisk); dir != "" {
		if err := errors.Join(syscall.Mount("tests", dir, "tmpfs", 0, ""), os.Setenv("TMPDIR", dir)); err != nil {
			fmt.Fprintln(os.Stderr, "this test needs root:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	os.Exit(inMemory())
}

// inMemory runs this test binary again, and returns its exit code.
func inMemory() int {
	runtime.LockOSThread() // the child would end with the thread
	dir, err := os.MkdirTemp("", "install-test-")
	if err != nil {
		panic(err)
	}
	defer os.Remove(dir)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), memoryDisk+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		panic(err)
	}
	return cmd.ProcessState.ExitCode()
}
