package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// about describes the machine and the time of a run. The commit is not named: the page is part of a later one, and a commit that is rebased or
// squashed before it comes to the main branch names nothing there.
type about struct {
	date       time.Time
	machine    string
	loadBefore string
	took       time.Duration
}

func newAbout() about { return about{date: time.Now(), machine: machine(), loadBefore: load()} }

func machine() string {
	var name unix.Utsname
	_ = unix.Uname(&name) // fails only for a bad address
	model := "unknown processor"
	memory := ""
	for line := range linesOf("/proc/cpuinfo") {
		if text, ok := strings.CutPrefix(line, "model name"); ok {
			model = strings.TrimLeft(text, "\t :")
		}
	}
	for line := range linesOf("/proc/meminfo") {
		var kB int
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kB); n == 1 {
			memory = fmt.Sprintf(", %.0f GB", float64(kB)/1e6)
		}
	}
	return fmt.Sprintf("%d × %s%s, Linux %s, %s", runtime.NumCPU(), model, memory, unix.ByteSliceToString(name.Release[:]), runtime.Version())
}

// linesOf returns a file's lines, none if it does not exist.
func linesOf(path string) func(func(string) bool) {
	text, _ := os.ReadFile(path)
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(text)) {
			if !yield(strings.TrimSpace(line)) {
				return
			}
		}
	}
}

// load returns the load average of the last minute: above zero before a run, the machine was not idle.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

func (a about) write(w *bytes.Buffer) {
	fmt.Fprintf(w, "- date: %s, %v\n- machine: %s\n- load before: %s\n\n",
		a.date.UTC().Format("2006-01-02 15:04 UTC"), a.took.Round(time.Second), a.machine, a.loadBefore)
}
