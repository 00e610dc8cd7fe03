package needtest

import (
	"flag"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// recorder is a test that records how it ended.
type recorder struct {
	testing.TB
	end string
}

func (t *recorder) Helper() {}

func (t *recorder) Skip(...any) {
	t.end = "skipped"
	runtime.Goexit()
}

func (t *recorder) Fatalf(string, ...any) {
	t.end = "failed"
	runtime.Goexit()
}

// A short run skips a test exactly if its dependency is missing; any other run goes on, or fails.
func TestShortRun(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	t.Cleanup(func() { _ = flag.Set("test.short", before) })
	more := func(t testing.TB) { More(t, "more") }
	installed := func(t testing.TB) { Program(t, "go") }
	missing := func(t testing.TB) { Program(t, "no-such-program") }
	for _, c := range []struct {
		name, short string
		need        func(testing.TB)
		end         string
	}{
		{"more, short", "true", more, "skipped"},
		{"more", "false", more, ""},
		{"an installed program, short", "true", installed, ""},
		{"an installed program", "false", installed, ""},
		{"a missing program, short", "true", missing, "skipped"},
		{"a missing program", "false", missing, "failed"},
	} {
		errtest.Must(t, flag.Set("test.short", c.short))
		rec := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.need(rec)
		}()
		if <-done; rec.end != c.end {
			t.Errorf("%s: %q, want %q", c.name, rec.end, c.end)
		}
	}
}

// TestRoot runs itself once more as root of a user namespace, which Root takes for no root.
func TestRoot(t *testing.T) {
	Root(t, "this test")
	for short, want := range map[string]string{
		"true":  Skipped + "root of the machine, for this test",
		"false": "the test needs root of the machine, for this test",
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRoot$", "-test.v", "-test.short="+short)
		ids := []syscall.SysProcIDMap{{Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
		out, err := cmd.CombinedOutput()
		if failed := short == "false"; !strings.Contains(string(out), want) || (err != nil) != failed {
			t.Errorf("short %s: %v, want %q:\n%s", short, err, want, out)
		}
	}
}
