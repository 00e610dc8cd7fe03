package datastoretest

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"testing"
	"testing/synctest"
)

var (
	modelRuns = flag.Int("model.runs", 0, "how many histories a model runs, half of them new ones; 0: as many as its test says")
	modelSeed = flag.Uint64("model.seed", 0, "run the history of one seed only, to replay a failure")
)

// Histories runs random histories of a model, each in a synctest bubble with its own clock, until one fails. Half of
// the seeds are fixed, the others are new; a short run has a tenth of them. run must be deterministic for a seed and
// report it when it fails.
func Histories(t *testing.T, runs int, run func(t *testing.T, seed uint64)) {
	if *modelSeed != 0 {
		synctest.Test(t, func(t *testing.T) { run(t, *modelSeed) })
		return
	}
	if testing.Short() {
		runs /= 10
	}
	runs = cmp.Or(*modelRuns, runs)
	for n := range runs {
		seed := uint64(n) + 1
		if n >= runs/2 {
			seed = rand.Uint64()
		}
		synctest.Test(t, func(t *testing.T) { run(t, seed) })
		if t.Failed() {
			return
		}
	}
}
