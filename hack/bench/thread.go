package main

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	ownthread "github.com/tortie-net/tortie/internal/testkit/thread"
)

// thread is a thread in namespaces of its own, which its children and files inherit; they end with it.
type thread struct {
	jobs chan func()
	id   atomic.Int64 // of the thread, for /proc
}

// newThread starts a thread that runs enter first.
func newThread(enter func() error) (*thread, error) {
	t := &thread{jobs: make(chan func())}
	entered := make(chan error)
	go ownthread.Run(func() {
		t.id.Store(int64(unix.Gettid()))
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

// do runs fn on the thread.
func (t *thread) do(fn func() error) error {
	done := make(chan error)
	t.jobs <- func() { done <- fn() }
	return <-done
}

func (t *thread) close() { close(t.jobs) }

// netns names the thread's network namespace for `ip`.
func (t *thread) netns() string {
	return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), t.id.Load())
}

// newNetns creates a network namespace that lives as long as the file.
func newNetns() (*os.File, error) {
	var ns *os.File
	t, err := newThread(func() error {
		err := unshareNet()
		if err != nil {
			return err
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, err
	}
	t.close()
	return ns, nil
}

// unshareNet gives the calling thread a network namespace of its own.
func unshareNet() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace (bench needs root): %w", err)
	}
	return nil
}
