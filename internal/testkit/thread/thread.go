// Package thread runs functions on operating system threads of their own, for what belongs to a thread and not to the
// process: namespaces.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a locked thread that ends with it, so that f may leave it in any namespace. f must not rely on goroutines that
// it starts: they run elsewhere.
//
// The thread is never the process' first one, which the runtime cannot end: that would keep its namespaces for ever, and be
// what /proc/self shows.
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
