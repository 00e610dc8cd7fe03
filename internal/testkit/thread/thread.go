// Package thread runs functions on operating system threads of their own: namespaces belong to a thread, not to the
// process.
package thread

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a locked thread that ends with it, so that f may leave it in any namespace. Goroutines that f starts
// run on other threads.
//
// The thread is never the process' main thread: the runtime cannot end that one, so its namespaces would stay, and
// /proc/self would show them.
func Run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // not unlocked below, so that the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		Run(f) // while this goroutine waits on the first thread, no other can be there
		runtime.UnlockOSThread()
	}()
	<-done
}

// Thread is a thread in namespaces of its own, which its children and files inherit; they end with it.
type Thread struct {
	jobs chan func()
	id   int
}

// New starts a thread that runs enter first.
func New(enter func() error) (*Thread, error) {
	t := &Thread{jobs: make(chan func())}
	entered := make(chan error)
	go Run(func() {
		t.id = unix.Gettid()
		err := enter()
		entered <- err
		if err != nil {
			return
		}
		for job := range t.jobs {
			job()
		}
	})
	return t, <-entered
}

// Do runs fn on the thread, one call at a time.
func (t *Thread) Do(fn func() error) error {
	done := make(chan error, 1)
	t.jobs <- func() { done <- fn() }
	return <-done
}

// Close ends the thread.
func (t *Thread) Close() { close(t.jobs) }

// NetNS returns the path of the thread's network namespace.
func (t *Thread) NetNS() string { return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), t.id) }

// OwnNetwork gives the calling thread a network namespace of its own.
func OwnNetwork() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace (it needs root): %w", err)
	}
	return nil
}
