// Package thread runs functions on operating system threads of their own: namespaces belong to a thread, not to the
// process.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends with it, so that f may leave it in any namespace. Goroutines that f starts run on
// other threads.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f() // the goroutine exits locked, which ends the thread
			return
		}
		// The runtime cannot end a process' main thread: it would keep the namespace, and /proc/self would show it. While
		// this goroutine waits on the main thread, the other one cannot run there.
		done <- Run(f)
		runtime.UnlockOSThread()
	}()
	return <-done
}
