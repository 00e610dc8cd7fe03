package netlinkx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// threadNamespace is the network namespace of the thread that opens it; /proc/self would be the main thread's.
	threadNamespace = "/proc/thread-self/ns/net"
	nsfsMagic       = 0x6e736673
)

// Namespace is an open reference to a network namespace: the kernel keeps the namespace as long as the reference is
// open. It is safe for concurrent use.
type Namespace struct {
	file *os.File
	fd   int // of file: its own Fd method changes the file's mode with system calls each time
}

// OpenNamespace opens the namespace at path. The error wraps fs.ErrNotExist if nothing is there, and ErrNotNamespace if
// it is not a network namespace.
func OpenNamespace(path string) (*Namespace, error) {
	fd, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	if err := checkNetworkNamespace(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return newNamespace(fd, path), nil
}

func newNamespace(fd int, path string) *Namespace {
	return &Namespace{file: os.NewFile(uintptr(fd), path), fd: fd}
}

// openFile opens a file without the runtime's poller, which such files do not support. A pipe in the place of a
// namespace does not block it.
func openFile(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// duplicate makes another reference to the same namespace.
func (n *Namespace) duplicate() (*Namespace, error) {
	fd, err := unix.FcntlInt(uintptr(n.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate reference to network namespace: %w", err)
	}
	return newNamespace(fd, n.file.Name()), nil
}

// CurrentNamespace opens the namespace of the calling thread.
func CurrentNamespace() (*Namespace, error) { return OpenNamespace(threadNamespace) }

// checkNetworkNamespace rejects what setns would reject, with ErrNotNamespace.
func checkNetworkNamespace(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if st.Type != nsfsMagic {
		return ErrNotNamespace
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("ask for the namespace's kind: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return ErrNotNamespace
	}
	return nil
}

// Close closes the reference. Sockets opened in the namespace stay usable.
func (n *Namespace) Close() error { return n.file.Close() }

// Path returns a path of the namespace, valid while the reference is open, also for other processes in the same mount
// namespace.
func (n *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd)
}

// Fd returns the reference's file descriptor, valid until Close.
func (n *Namespace) Fd() int { return n.fd }

// Same reports whether both references are to one namespace.
func (n *Namespace) Same(other *Namespace) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstat(n.Fd(), &a); err != nil {
		return false, fmt.Errorf("stat network namespace: %w", err)
	}
	if err := unix.Fstat(other.Fd(), &b); err != nil {
		return false, fmt.Errorf("stat network namespace: %w", err)
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}

// Do runs fn inside the namespace and returns fn's error. Goroutines that fn starts are not in the namespace; processes
// and sockets that fn itself starts or opens are.
//
// A caller in the namespace runs fn itself. Others need CAP_SYS_ADMIN, and fn runs on a thread of its own.
func (n *Namespace) Do(fn func() error) error {
	here, err := n.isCurrent()
	if err != nil {
		return err
	}
	// The goroutine may move to another thread, but all threads that it can move to are in the same namespace.
	if here {
		return fn()
	}
	return onThread(func() error {
		if err := unix.Setns(n.Fd(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

func (n *Namespace) isCurrent() (bool, error) {
	var here, there unix.Stat_t
	if err := unix.Stat(threadNamespace, &here); err != nil {
		return false, fmt.Errorf("stat the thread's network namespace: %w", err)
	}
	if err := unix.Fstat(n.fd, &there); err != nil {
		return false, fmt.Errorf("stat network namespace: %w", err)
	}
	return here.Dev == there.Dev && here.Ino == there.Ino, nil
}

// errGoexit is returned by Do when fn ended its goroutine instead of returning, as t.FailNow does.
var errGoexit = errors.New("function left its goroutine without returning")

// onThread runs fn on a locked thread and restores the thread's network namespace afterwards. If that fails, the thread
// stays locked, so that the runtime ends it together with the goroutine, and no other code runs in the wrong namespace.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { done <- err }()
		runtime.LockOSThread()
		home, openErr := openFile(threadNamespace)
		if openErr != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("open the thread's network namespace: %w", openErr)
			return
		}
		defer unix.Close(home)
		defer func() {
			if unix.Setns(home, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}()
		err = fn()
	}()
	return <-done
}
