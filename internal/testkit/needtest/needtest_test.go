package needtest

import (
	"flag"
	"runtime"
	"testing"
)

// told is a test that notes its end.
type told struct {
	testing.TB
	end string
}

func (t *told) Helper() {}

func (t *told) Skip(...any) {
	t.end = "skipped"
	runtime.Goexit()
}

func (t *told) Fatalf(string, ...any) {
	t.end = "failed"
	runtime.Goexit()
}

// A short run leaves out a test exactly if what it needs is missing; any other run goes on, or fails.
func TestShortRun(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	t.Cleanup(func() { _ = flag.Set("test.short", before) })
	more := func(t testing.TB) { More(t, "more") }
	there := func(t testing.TB) { Program(t, "go") }
	missing := func(t testing.TB) { Program(t, "no-such-program") }
	for _, c := range []struct {
		name, short string
		need        func(testing.TB)
		end         string
	}{
		{"more, short", "true", more, "skipped"},
		{"more", "false", more, ""},
		{"a program that is there, short", "true", there, ""},
		{"a program that is there", "false", there, ""},
		{"a program that is missing, short", "true", missing, "skipped"},
		{"a program that is missing", "false", missing, "failed"},
	} {
		if err := flag.Set("test.short", c.short); err != nil {
			t.Fatal(err)
		}
		said := &told{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.need(said)
		}()
		if <-done; said.end != c.end {
			t.Errorf("%s: %q, want %q", c.name, said.end, c.end)
		}
	}
}
