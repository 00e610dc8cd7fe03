// Package thread runs functions on operating system threads of their own, for what belongs to a thread and not to the
// process: namespaces, above all.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends with it, so that f may leave it in any namespace. f must not rely on goroutines that it
// starts: they run elsewhere.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f() // the goroutine ends locked, which ends the thread
			return
		}
		// The runtime cannot end a process' first thread: it would stay for ever, hold the namespace open, and be what
		// /proc/self shows. While this goroutine waits here, another one cannot be on it.
		done <- Run(f)
		runtime.UnlockOSThread()
	}()
	return <-done
}
