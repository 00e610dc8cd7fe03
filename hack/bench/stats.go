package main

import (
	"math"
	"slices"
	"time"
)

// cost is the wall time of one process, and the CPU time of it and its children.
type cost struct{ wall, cpu time.Duration }

// durations are repeated measurements of one quantity.
type durations []time.Duration

// quantile returns the smallest time that is not exceeded by a share q of all (nearest rank), 0 if there are none.
func (d durations) quantile(q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func (d durations) median() time.Duration { return d.quantile(0.5) }

// medianRange returns between which two of them the median of what they are a sample of lies, at 95 %: of n independent ones those that are 0.98 √n
// ranks from the middle, by the binomial distribution.
func (d durations) medianRange() (low, high time.Duration) {
	if len(d) == 0 {
		return 0, 0
	}
	n := float64(len(d))
	beside := 0.98/math.Sqrt(n) + 1/n
	return d.quantile(0.5 - beside), d.quantile(0.5 + beside)
}

// costs are the costs of one operation by round: a round of every subject runs before the next begins, so that other load affects all of them.
type costs [][]cost

func (c costs) all(of func(cost) time.Duration) durations {
	var all durations
	for _, round := range c {
		for _, one := range round {
			all = append(all, of(one))
		}
	}
	return all
}

func wall(c cost) time.Duration { return c.wall }
func cpu(c cost) time.Duration  { return c.cpu }

// spread returns the smallest and the largest median of a round's wall times, as the uncertainty.
func (c costs) spread() (low, high time.Duration) {
	var medians durations
	for _, round := range c {
		medians = append(medians, costs{round}.all(wall).median())
	}
	return medians.quantile(0), medians.quantile(1)
}

// interval is the start and end of something, relative to one moment.
type interval struct{ start, end time.Duration }

// rounds numbers intervals: one more than the last round that had ended at the start. For requests, a round is a response that the process has
// waited for.
func rounds(all []interval) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(all[a].end - all[b].end) })
	round := make([]int, len(all))
	for n, i := range order {
		round[i] = 1
		for _, before := range order[:n] {
			if all[before].end <= all[i].start {
				round[i] = max(round[i], round[before]+1)
			}
		}
	}
	return round
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ratio returns a/b, 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
