// Package memlimit keeps a process small: Go's collector works sooner than by default, and harder before the control
// group's limit is reached and the kernel ends the process; a process that rests returns free memory to the kernel.
package memlimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/progress"
)

const (
	// share is the part of the group's limit that is Go's: the rest is for what the runtime does not count, such as the
	// program's own text and the kernel's memory for sockets.
	share = 0.9
	// again is how often the limit is read: Kubernetes may change it while the process runs, and nothing tells of it.
	again = time.Minute
	// percent of what is in use is how much garbage there is before Go collects: the processes rest most of the time, so
	// that what remains of a pass over 10,000 pods would stay for minutes, and on each node of a cluster.
	percent = 20
	// floor is how much garbage there may always be. busyFloor is how much while collections follow each other within
	// burst: a process that learns 10,000 routes would else collect twelve times, which takes more processor time than
	// all else. It rests afterwards, and gives the memory back.
	floor     = 6 << 20
	busyFloor = 24 << 20
	burst     = 100 * time.Millisecond
	// goFloor is Go's own least heap by a percentage of 100.
	goFloor = 4 << 20
	// quiet is how long after a collection memory that is free is returned to the kernel, if no other collection comes
	// before and it is spare at least: Go keeps a tenth more than the heap may grow to, which a process that rests does
	// not need. Returning it takes a collection, so that there is at most one more for each that Go makes by itself.
	quiet = 10 * time.Second
	spare = 4 << 20
	// explicit is the variable by which people set Go's limit themselves.
	explicit = "GOMEMLIMIT"
	// explicitPercent is the variable by which people set the percentage themselves.
	explicitPercent = "GOGC"
)

// Follow sets how soon Go collects, and Go's memory limit by that of the control group, again when that changes, until
// ctx ends. It leaves alone what GOGC or GOMEMLIMIT sets. It logs the limits that it sets and the files that it cannot
// read.
func Follow(ctx context.Context, env config.Env, log *slog.Logger) {
	if _, set := env(explicitPercent); !set {
		adapt(ctx, time.AfterFunc(quiet, giveBack), time.Time{})
	}
	if _, set := env(explicit); set {
		return
	}
	f := follower{root: "/", set: func(n int64) { debug.SetMemoryLimit(n) }, log: log, was: math.MaxInt64}
	f.look()
	go func() {
		tick := time.NewTicker(again)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				f.look()
			}
		}
	}()
}

// adapt sets how soon Go collects, again after each collection until ctx ends, and has rest expire when no collection
// follows. Last is when it did so before.
func adapt(ctx context.Context, rest *time.Timer, last time.Time) {
	if ctx.Err() != nil {
		rest.Stop()
		return
	}
	rest.Reset(quiet)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	now := time.Now()
	debug.SetGCPercent(percentOf(live[0].Value.Uint64(), now.Sub(last)))
	runtime.AddCleanup(new(*follower), func(ctx context.Context) { adapt(ctx, rest, now) }, ctx) // of what the next collection finds
}

// giveBack ends a burst: it returns free memory to the kernel, and what would be free by now without the burst.
func giveBack() {
	heap := []metrics.Sample{
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(heap)
	free, used, live := heap[0].Value.Uint64(), heap[1].Value.Uint64(), heap[2].Value.Uint64()
	debug.SetGCPercent(percentOf(live, quiet))
	if free >= spare || used >= live+floor {
		debug.FreeOSMemory()
	}
}

// percentOf is the percentage of what is in use, some time after the collection before the last one.
func percentOf(live uint64, since time.Duration) int {
	least := floor
	if since < burst {
		least = busyFloor
	}
	return min(max(percent, 100*least/int(max(live, 1))), 100*least/goFloor)
}

type follower struct {
	root     string // of the file system
	set      func(int64)
	log      *slog.Logger
	was      int64 // the group's limit that was seen last
	reported progress.Changes
}

func (f *follower) look() {
	limit, err := Limit(f.root)
	if err != nil {
		if f.reported.New(err) {
			f.log.Warn("cannot read the memory limit of this container; Go's limit is unchanged", "err", err)
		}
		return
	}
	if limit == f.was {
		return
	}
	f.was = limit
	mine := int64(math.MaxInt64)
	if limit != math.MaxInt64 {
		mine = int64(float64(limit) * share)
	}
	f.set(mine)
	f.log.Info("memory limit", "group", limit, "go", mine)
}

// Limit returns the memory limit of this process's control group in bytes: the least of the group's and those above it,
// as far as they can be seen. math.MaxInt64 means none. Root is that of the file system.
func Limit(root string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return math.MaxInt64, nil // a kernel without control groups
	}
	if err != nil {
		return 0, fmt.Errorf("find this process's control group: %w", err)
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(text)) {
		dir, group, file := parse(line)
		if file == "" {
			continue
		}
		limit, err := leastAbove(filepath.Join(root, dir), group, file)
		if err != nil {
			return 0, err
		}
		least = min(least, limit)
	}
	return least, nil
}

// parse reads a line of /proc/self/cgroup: where the hierarchy is mounted, the group in it, and the file with the
// limit, which is empty for a hierarchy that does not limit memory.
func parse(line string) (dir, group, file string) {
	fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
	if len(fields) != 3 {
		return "", "", ""
	}
	switch controllers := fields[1]; {
	case controllers == "" && fields[0] == "0":
		return "sys/fs/cgroup", fields[2], "memory.max"
	case strings.Contains(","+controllers+",", ",memory,"):
		return "sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes"
	}
	return "", "", ""
}

// leastAbove reads the limits of a group and of all above it. A container that sees its own part of the hierarchy only
// finds its group at the top.
func leastAbove(dir, group, file string) (int64, error) {
	least := int64(math.MaxInt64)
	for g := path.Clean("/" + group); ; g = path.Dir(g) {
		text, err := os.ReadFile(filepath.Join(dir, g, file))
		switch {
		case errors.Is(err, fs.ErrNotExist): // not seen from here, or the top, which has none
		case err != nil:
			return 0, fmt.Errorf("read the memory limit: %w", err)
		default:
			limit, err := number(strings.TrimSpace(string(text)))
			if err != nil {
				return 0, fmt.Errorf("memory limit in %s: %w", filepath.Join(dir, g, file), err)
			}
			least = min(least, limit)
		}
		if g == "/" {
			return least, nil
		}
	}
}

// number reads a limit. Version 1 has a number near the largest for none.
func number(text string) (int64, error) {
	if text == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no number of bytes", text)
	}
	if n > math.MaxInt64/2 {
		return math.MaxInt64, nil
	}
	return n, nil
}
