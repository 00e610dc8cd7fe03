package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// key names a figure: the part of the run, the subject, and the number of pods, routes, policies or nodes; 0 if there
// is none.
type key struct {
	part, subject string
	size          int
	what, unit    string
}

// figure is a measured quantity, by round: a round of every subject runs before the next begins, so that other load
// affects all of them.
type figure struct {
	key
	rounds [][]float64
}

// figures are the figures of a run, in the order of their measurement.
type figures struct{ all []*figure }

// record adds a round of values to a figure.
func (f *figures) record(k key, values ...float64) {
	if len(values) == 0 {
		return
	}
	found := f.of(k.part, k.subject, k.size, k.what)
	if found == nil {
		found = &figure{key: k}
		f.all = append(f.all, found)
	}
	found.rounds = append(found.rounds, values)
}

// of returns a figure, nil if it was not measured.
func (f *figures) of(part, subject string, size int, what string) *figure {
	for _, one := range f.all {
		if one.part == part && one.subject == subject && one.size == size && one.what == what {
			return one
		}
	}
	return nil
}

// at returns a quantile of all values.
func (f *figure) at(q float64) float64 { return quantile(slices.Concat(f.rounds...), q) }

// spread returns the smallest and the largest median of a round.
func (f *figure) spread() (low, high float64) {
	var medians []float64
	for _, round := range f.rounds {
		medians = append(medians, quantile(round, 0.5))
	}
	return slices.Min(medians), slices.Max(medians)
}

// quantile returns the smallest value that is not exceeded by a share q of all (nearest rank).
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// columns are the columns of docs/benchmarks.csv. Low and High are medians of rounds.
var columns = []string{"Part", "Subject", "Size", "Figure", "Unit", "Median", "Low", "High", "P95", "P99", "Values"}

// rows returns the figures as lines of that file.
func (f *figures) rows() [][]string {
	lines := [][]string{columns}
	for _, one := range f.all {
		size, low, high := "", 0.0, 0.0
		if one.size > 0 || one.part == partPolicy {
			size = strconv.Itoa(one.size)
		}
		low, high = one.spread()
		line := []string{one.part, one.subject, size, one.what, one.unit}
		for _, value := range []float64{one.at(0.5), low, high, one.at(0.95), one.at(0.99)} {
			line = append(line, strconv.FormatFloat(value, 'g', 4, 64))
		}
		lines = append(lines, append(line, strconv.Itoa(len(slices.Concat(one.rounds...)))))
	}
	return lines
}

// write writes lines as comma-separated values.
func write(path string, lines [][]string) error {
	var text bytes.Buffer
	if err := csv.NewWriter(&text).WriteAll(lines); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}

// about describes the machine and the time of a run, and records the load before it: the machine should be idle.
func (f *figures) about() error {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	var load float64
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		return fmt.Errorf("/proc/loadavg: %w", err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	model := "unknown processor"
	text, _ = os.ReadFile("/proc/cpuinfo") // the model is then unknown
	for line := range strings.Lines(string(text)) {
		if _, after, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && strings.HasPrefix(line, "model name") {
			model = after
		}
	}
	machine := fmt.Sprintf("%s, %d × %s, Linux %s, %s", time.Now().UTC().Format("2006-01-02 15:04 UTC"), runtime.NumCPU(), model,
		unix.ByteSliceToString(name.Release[:]), runtime.Version())
	f.record(key{part: "run", subject: machine, what: "load before"}, load)
	return nil
}

// publish writes the figures and their requirements into a directory.
func (f *figures) publish(dir string) error {
	if err := write(filepath.Join(dir, "benchmarks.csv"), f.rows()); err != nil {
		return err
	}
	lines := [][]string{{"Requirement", "Measured", "Limit", "Met"}}
	for _, v := range f.judge() {
		lines = append(lines, []string{v.what, v.measured, v.limit, strconv.FormatBool(v.met)})
	}
	return write(filepath.Join(dir, "benchmarks-required.csv"), lines)
}
