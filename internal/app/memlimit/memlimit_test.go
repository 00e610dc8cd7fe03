package memlimit

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
		err   string
	}{
		"no control groups": {nil, math.MaxInt64, ""},
		"a container": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "67108864\n",
		}, 64 << 20, ""},
		"a container without a limit": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n",
		}, math.MaxInt64, ""},
		"a service: the least above it": {map[string]string{
			"proc/self/cgroup": "0::/a.slice/b.service\n", "sys/fs/cgroup/a.slice/b.service/memory.max": "max\n",
			"sys/fs/cgroup/a.slice/memory.max": "1000\n",
		}, 1000, ""},
		"a group that is not seen from here": {map[string]string{
			"proc/self/cgroup": "0::/../../kubepods/pod1/c1\n", "sys/fs/cgroup/memory.max": "5000\n",
		}, 5000, ""},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/x\n",
			"sys/fs/cgroup/memory/x/y/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes":   "7000\n",
		}, 7000, ""},
		"nonsense": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "a lot\n",
		}, 0, `"a lot"`},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range c.files {
				write(t, root, file, text)
			}
			got, err := Limit(root)
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("limit %d, %v; want %d, %q", got, err, c.want, c.err)
			}
		})
	}
}

func TestFollow(t *testing.T) {
	root := t.TempDir()
	write(t, root, "proc/self/cgroup", "0::/\n")
	var got []int64
	f := follower{root: root, set: func(n int64) { got = append(got, n) },
		log: slog.New(slog.NewTextHandler(t.Output(), nil)), was: math.MaxInt64}
	for _, text := range []string{"max", "1000", "1000", "?", "2000", "max"} {
		write(t, root, "sys/fs/cgroup/memory.max", text)
		f.look()
	}
	want := []int64{900, 1800, math.MaxInt64}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("set %v, want %v: each change once", got, want)
	}
}

// An idle process returns free memory, and collects no garbage for that if little is free.
func TestGiveBack(t *testing.T) {
	read := func(name string) uint64 {
		sample := []metrics.Sample{{Name: name}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	const free, forced = "/memory/classes/heap/free:bytes", "/gc/cycles/forced:gc-cycles"
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	garbage := bytes.Repeat([]byte{1}, 64<<20)
	runtime.KeepAlive(garbage)
	runtime.GC()
	if n := read(free); n < spare {
		t.Fatalf("%d bytes are free after 64 MiB of garbage", n)
	}
	giveBack()
	if left := read(free); left >= spare {
		t.Errorf("%d bytes stay free in the process", left)
	}
	before := read(forced)
	giveBack()
	if n := read(forced) - before; n > 0 {
		t.Errorf("%d more collections, with little free", n)
	}
	debug.SetGCPercent(-1) // as in a burst
	garbage = bytes.Repeat([]byte{1}, 2*floor)
	runtime.KeepAlive(garbage)
	before = read(forced)
	if giveBack(); read(forced) == before {
		t.Errorf("%d bytes of garbage stay", 2*floor)
	}
	if now := debug.SetGCPercent(-1); now < 0 {
		t.Error("the percentage of the burst stays: the next collection may come late, or never")
	}
}

// People's own settings stay, and the real file system can be read.
func TestExplicitLimitStays(t *testing.T) {
	before, percentBefore := debug.SetMemoryLimit(-1), debug.SetGCPercent(77)
	defer debug.SetMemoryLimit(before)
	defer debug.SetGCPercent(percentBefore)
	debug.SetMemoryLimit(12345678)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	Follow(ctx, func(string) (string, bool) { return "1GiB", true }, slog.New(slog.DiscardHandler))
	if now := debug.SetMemoryLimit(-1); now != 12345678 {
		t.Errorf("the limit became %d", now)
	}
	if now := debug.SetGCPercent(77); now != 77 {
		t.Errorf("the percentage became %d", now)
	}
	Follow(ctx, func(name string) (string, bool) { return "", name == explicit }, slog.New(slog.DiscardHandler))
	if now := debug.SetGCPercent(77); now < percent || now > percentOf(0, 0) {
		t.Errorf("the percentage is %d, want %d to %d", now, percent, percentOf(0, 0))
	}
	waittest.Until(t, time.Minute, "the percentage is set again after a collection", func() bool {
		runtime.GC()
		return debug.SetGCPercent(77) != 77
	})
	for live, want := range map[uint64]int{0: 150, 1 << 20: 150, 6 << 20: 100, 12 << 20: 50, 24 << 20: 25, 1 << 30: 20} {
		if got := percentOf(live, time.Hour); got != want {
			t.Errorf("with %d bytes in use Go collects after %d %%, want %d", live, got, want)
		}
	}
	for live, want := range map[uint64]int{0: 600, 12 << 20: 200, 24 << 20: 100, 1 << 30: 20} {
		if got := percentOf(live, burst-1); got != want {
			t.Errorf("in a burst with %d bytes in use Go collects after %d %%, want %d", live, got, want)
		}
	}
	if _, err := Limit("/"); err != nil {
		t.Error(err)
	}
}
