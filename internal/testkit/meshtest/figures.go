package meshtest

import (
	"encoding/json"
	"flag"
	"os"
	"sync"
	"testing"
	"time"
)

// figuresFile is set by hack/bench: tests then repeat more often and write their measurements to this file.
var figuresFile = flag.String("figures", "", "measure, and write what was measured to this file")

// figure is one measured quantity with all its values.
type figure struct {
	Name   string
	Unit   string
	Values []float64
}

var figures struct {
	mu  sync.Mutex // guards all
	all []figure
}

// Measuring reports whether a benchmark runs the tests.
func Measuring() bool { return *figuresFile != "" }

// Repeat returns how often a test repeats a step: proof in a normal run, measured in a benchmark.
func Repeat(proof, measured int) int {
	if Measuring() {
		return measured
	}
	return proof
}

// Record adds measured values to a figure. A figure for another part of the benchmarks than mesh has a name of the form
// PART | SUBJECT | SIZE | WHAT.
func Record(name, unit string, values ...float64) {
	figures.mu.Lock()
	defer figures.mu.Unlock()
	for i := range figures.all {
		if figures.all[i].Name == name {
			figures.all[i].Values = append(figures.all[i].Values, values...)
			return
		}
	}
	figures.all = append(figures.all, figure{name, unit, values})
}

// RecordTimes is Record for durations.
func RecordTimes(name string, times ...time.Duration) {
	for _, d := range times {
		Record(name, "ms", float64(d)/float64(time.Millisecond))
	}
}

func writeFigures() error {
	if !Measuring() {
		return nil
	}
	text, err := json.Marshal(figures.all)
	if err != nil {
		return err
	}
	return os.WriteFile(*figuresFile, text, 0o644)
}

// Timed records a duration in a benchmark, and logs it in a normal run.
func Timed(t testing.TB, name string, since time.Time) {
	t.Helper()
	took := time.Since(since)
	t.Logf("%s: %v", name, took.Round(time.Millisecond))
	RecordTimes(name, took)
}
