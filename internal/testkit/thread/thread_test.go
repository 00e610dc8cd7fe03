package thread

import (
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A thread in namespaces of its own is never the process' main thread, which never ends and is shown by /proc/self.
func TestThreadIsNotTheFirst(t *testing.T) {
	for range 50 {
		th, err := New(func() error { return nil })
		errtest.Must(t, err)
		defer th.Close()
		if th.id == os.Getpid() {
			t.Error("the thread is the process' first")
		}
	}
}
