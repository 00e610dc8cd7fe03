// Package memlimit keeps a process small: Go's collector runs sooner than by default, and more often near the control
// group's limit, at which the kernel ends the process; an idle process returns free memory to the kernel.
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
	// share is Go's part of the group's limit: the rest is for what the runtime does not count, such as the program's own
	// text and the kernel's memory for sockets.
	share = 0.9
	// again is the interval of reading the limit: Kubernetes may change it while the process runs, without notice.
	again = time.Minute
	// percent is the garbage before Go collects, relative to the memory in use: the processes are idle most of the time,
	// so that the garbage of a pass over 10,000 pods would stay for minutes, on each node of a cluster.
	percent = 20
	// floor is the garbage that is always allowed, and busyFloor that while collections follow each other within burst: a
	// process that learns 10,000 routes would otherwise collect twelve times, which costs more processor time than all
	// else. It is idle afterwards, and returns the memory.
	floor     = 6 << 20
	busyFloor = 24 << 20
	burst     = 100 * time.Millisecond
	// goFloor is Go's own minimum heap at a percentage of 100.
	goFloor = 4 << 20
	// quiet is the time after a collection until free memory is returned to the kernel, if it is at least spare and no
	// other collection follows: Go keeps a tenth more than the heap may grow to, which an idle process does not need.
	// Returning it takes a collection, so there is at most one more for each of Go's own.
	quiet = 10 * time.Second
	spare = 4 << 20
	// explicit is the variable by which people set Go's limit themselves.
	explicit = "GOMEMLIMIT"
	// explicitPercent is the variable by which people set the percentage themselves.
	explicitPercent = "GOGC"
)

// Follow sets Go's percentage of garbage, and Go's memory limit by the control group's, and follows changes until ctx
// ends. It does not override GOGC or GOMEMLIMIT. It logs the limits that it sets and the files that it cannot read.
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

// adapt sets Go's percentage of garbage, again after each collection until ctx ends, and restarts the timer rest. last
// is the time of the previous call.
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
	runtime.AddCleanup(new(*follower), func(ctx context.Context) { adapt(ctx, rest, now) }, ctx) // in the next collection
}

// giveBack ends a burst: it returns memory to the kernel that is free, or would be without the burst's percentage.
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

// percentOf returns the percentage of garbage for live bytes in use. since is the time between the last two
// collections.
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
	was      int64 // the group's limit at the last look
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

// Limit returns the memory limit of this process's control group in bytes: the least of its own and its ancestors', as
// far as they are visible. math.MaxInt64 means none. root is the file system's.
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

// leastAbove returns the least limit of a group and its ancestors. In a container that sees only its own part of the
// hierarchy, its group is at the top.
func leastAbove(dir, group, file string) (int64, error) {
	least := int64(math.MaxInt64)
	for g := path.Clean("/" + group); ; g = path.Dir(g) {
		text, err := os.ReadFile(filepath.Join(dir, g, file))
		switch {
		case errors.Is(err, fs.ErrNotExist): // not visible here, or the top, which has none
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

// number parses a limit. In version 1 a number near the largest means none.
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
