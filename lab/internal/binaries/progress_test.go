package binaries

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	for _, c := range []struct {
		p    *progress
		took time.Duration
		want string
	}{
		{&progress{}, 4 * time.Second, "looking for what is compiled already, 4s"},
		{&progress{downloaded: 2}, 7 * time.Second, "2 Go modules downloaded, 7s"},
		{&progress{all: 100}, time.Second, "0 of 100 packages, 1s"},
		{&progress{all: 100, done: 25}, 30 * time.Second, "25 of 100 packages, 30s, about 1m30s left"},
		{&progress{all: 100, done: 100}, time.Minute, "100 of 100 packages, 1m0s"},
	} {
		if got := c.p.line(c.took); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func TestFollowTellsProgressFromErrors(t *testing.T) {
	var p progress
	rest := p.follow(strings.NewReader("go: downloading example.net/A v1.2.3\nk8s.io/api/core/v1\n# example.net/b\nb.go:1:2: undefined: x\n"))
	if p.downloaded != 1 || p.done != 1 {
		t.Errorf("%d modules, %d packages", p.downloaded, p.done)
	}
	if want := "# example.net/b\nb.go:1:2: undefined: x"; rest != want {
		t.Errorf("got %q, want %q", rest, want)
	}
}

// TestInterruptedBuildLeavesNothing interrupts a build while the compiler runs: the cache and the directory of
// temporary files have no trace, and the next build succeeds.
func TestInterruptedBuildLeavesNothing(t *testing.T) {
	dir, temp := module(t), t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("GOCACHE", filepath.Join(t.TempDir(), "go-build")) // empty: the standard library is compiled
	c := &Cache{Dir: t.TempDir(), Module: dir, Log: new(bytes.Buffer)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for tick := time.Tick(5 * time.Millisecond); ; <-tick {
			if begun, _ := filepath.Glob(filepath.Join(c.Dir, "building-*", "temp", "*")); len(begun) > 0 || ctx.Err() != nil {
				return
			}
		}
	}()
	if _, err := c.Path(ctx, "pause"); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted build: %v", err)
	}
	for _, pattern := range []string{filepath.Join(temp, "*"), filepath.Join(c.Dir, "building-*"), filepath.Join(c.Dir, "pause-*")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
	if _, err := c.Path(t.Context(), "pause"); err != nil {
		t.Error(err)
	}
}

func TestReadOnlyCacheNamesWhatIsMissing(t *testing.T) {
	t.Setenv(InVM, "1")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c, err := Open(new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Paths(t.Context(), "kubectl", "helm")
	if err == nil || !strings.Contains(err.Error(), "`bin/lab build kubectl helm`") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a read-only cache was written to: %v", err)
	}
}
