package tier

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// recorder is a test that records whether it was skipped.
type recorder struct {
	testing.TB
	reason any
}

func (t *recorder) Helper() {}

func (t *recorder) Skip(args ...any) {
	t.reason = args[0]
	runtime.Goexit()
}

// in runs a function in a tier, with a value of -run.
func in(t *testing.T, all bool, run string, do func()) {
	t.Helper()
	tier, named := whole, flag.Lookup("test.run").Value.String()
	defer func() {
		whole = tier
		errtest.Must(t, flag.Set("test.run", named))
	}()
	whole = all
	errtest.Must(t, flag.Set("test.run", run))
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// The first tier leaves out what is for all of them, unless it is asked for by name, and has the small sizes.
func TestTiers(t *testing.T) {
	for _, c := range []struct {
		all    bool
		run    string
		reason any
		size   int
	}{
		{false, "", Skipped, 1},
		{false, "TestX", nil, 1},
		{true, "", nil, 2},
		{true, "TestX", nil, 2},
	} {
		r, size := &recorder{TB: t}, 0
		in(t, c.all, c.run, func() {
			size = Size(1, 2)
			All(r)
		})
		if r.reason != c.reason || size != c.size {
			t.Errorf("all %v, -run=%q: left out with %v, size %d; want %v and %d", c.all, c.run, r.reason, size, c.reason, c.size)
		}
	}
}

// A sample depends on the commit alone; make test-all tries everything.
func TestSample(t *testing.T) {
	var names []string
	for i := range 4000 {
		names = append(names, fmt.Sprint("request ", i))
	}
	// of returns the names of a sample.
	of := func(all bool, by string) (has []string) {
		in(t, all, "", func() {
			before := *seed
			defer func() { *seed = before }()
			*seed = by
			sample := Sample(t, 8)
			for _, name := range names {
				if sample(name) {
					has = append(has, name)
				}
			}
		})
		return has
	}
	first, second := of(false, "a"), of(false, "b")
	if n := len(first); n < 400 || n > 600 {
		t.Errorf("one in 8 of 4000 is %d", n)
	}
	if slices.Equal(first, second) || !slices.Equal(first, of(false, "a")) {
		t.Error("a sample depends on the commit, and on it alone")
	}
	if len(of(false, "")) == 0 {
		t.Error("nothing by the commit")
	}
	if !slices.Equal(of(true, "a"), names) {
		t.Error("make test-all tries less than all")
	}
	tried := map[string]bool{}
	for commit := range 24 {
		for _, name := range of(false, fmt.Sprint(commit)) {
			tried[name] = true
		}
	}
	if len(tried) < 3700 { // all but 4 % are expected
		t.Errorf("24 commits try %d of 4000", len(tried))
	}
}
