// Package usagetest measures the resources of processes.
package usagetest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Usage is the resources that a process has used so far.
type Usage struct {
	CPU                  time.Duration
	RSS, Anonymous, Peak int // KiB
	Threads              int
}

// Of returns the resources that a process has used since its start.
func Of(t testing.TB, pid int) (u Usage) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	errtest.Must(t, err)
	// After the name, which may contain spaces: state is field 3, the user and system times are 14 and 15.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const ticks = 100 // USER_HZ: jiffies per second in /proc
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		errtest.Must(t, err)
		u.CPU += time.Duration(n) * time.Second / ticks
	}
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	errtest.Must(t, err)
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "VmRSS: %d kB", &u.RSS)
		fmt.Sscanf(line, "VmHWM: %d kB", &u.Peak)
		fmt.Sscanf(line, "RssAnon: %d kB", &u.Anonymous)
		fmt.Sscanf(line, "Threads: %d", &u.Threads)
	}
	if u.RSS == 0 {
		t.Fatalf("no memory in the status of process %d:\n%s", pid, text)
	}
	return u
}
