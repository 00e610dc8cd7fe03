// Package thread runs functions on operating system threads of their own: namespaces belong to a thread, not to the process.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a locked thread that ends with it, so that f may leave it in any namespace. Goroutines that f starts run on other threads.
//
// The thread is never the process' main thread: the runtime cannot end that one, so its namespaces would stay, and /proc/self would show them.
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
