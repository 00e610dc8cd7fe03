package mesh

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

func measuring() bool { return *figuresFile != "" }

// repeat is how often something is done that once is enough to prove.
func repeat(proof, measured int) int {
	if measuring() {
		return measured
	}
	return proof
}

func record(name, unit string, values ...float64) {
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

func recordTimes(name string, times ...time.Duration) {
	for _, d := range times {
		record(name, "ms", float64(d)/float64(time.Millisecond))
	}
}

func writeFigures() error {
	if !measuring() {
		return nil
	}
	text, err := json.Marshal(figures.all)
	if err != nil {
		return err
	}
	return os.WriteFile(*figuresFile, text, 0o644)
}

// timed is a span that a benchmark shows, and that a test only writes down.
func timed(t testing.TB, name string, since time.Time) {
	t.Helper()
	took := time.Since(since)
	t.Logf("%s: %v", name, took.Round(time.Millisecond))
	recordTimes(name, took)
}
