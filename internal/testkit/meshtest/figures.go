package meshtest

import (
	"encoding/json"
	"flag"
	"os"
	"sync"
	"testing"
	"time"
)

// figuresFile is how hack/bench has the tests measure: more repetitions, and what was measured in a file.
var figuresFile = flag.String("figures", "", "measure, and write what was measured to this file")

// figure is one thing that was measured, one or several times.
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

// Repeat is how often something is done that once is enough to prove.
func Repeat(proof, measured int) int {
	if Measuring() {
		return measured
	}
	return proof
}

// Record adds what was measured to a figure.
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

// RecordTimes is Record for spans.
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

// Timed is a span that a benchmark shows, and that a test only writes down.
func Timed(t testing.TB, name string, since time.Time) {
	t.Helper()
	took := time.Since(since)
	t.Logf("%s: %v", name, took.Round(time.Millisecond))
	RecordTimes(name, took)
}
