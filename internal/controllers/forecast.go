package controllers

import (
	"fmt"
	"time"
)

const (
	// window is the part of a pool's history that counts, youngest the shortest history for a trend: a burst of pods is
	// none.
	window, youngest = time.Hour, 10 * time.Minute
	// horizon is the time before a pool's exhaustion at which a warning begins, if its fill is at least half.
	horizon = 6 * time.Hour
	// nearly is the fill at which a warning begins, however slowly the pool fills.
	nearly, half = 0.9, 0.5
)

// sample is the number of used addresses of a pool at a time.
type sample struct {
	at    time.Time
	inUse int
}

// Forecast predicts when pools will be exhausted.
type Forecast struct{ samples map[string][]sample }

// Warning reports a pool that is exhausted, or about to be.
type Warning struct {
	Pool      PoolUsage
	Exhausted bool
	Text      string
}

// Look records a measurement and returns warnings.
func (f *Forecast) Look(u *Usage, now time.Time) []Warning {
	next := map[string][]sample{}
	var warnings []Warning
	for _, p := range u.Pools {
		past := f.samples[p.UID]
		for len(past) > 1 && now.Sub(past[1].at) >= window {
			past = past[1:]
		}
		if len(past) == 0 || now.Sub(past[len(past)-1].at) >= time.Minute {
			past = append(past, sample{now, p.InUse})
		}
		next[p.UID] = past
		if w, ok := judgePool(p, past, now); ok && p.Enabled {
			warnings = append(warnings, w)
		}
	}
	f.samples = next
	return warnings
}

// judgePool returns a warning about the pool, if one is due.
func judgePool(p PoolUsage, past []sample, now time.Time) (Warning, bool) {
	usable := p.Size - p.Reserved
	if usable <= 0 {
		return Warning{}, false
	}
	w := Warning{Pool: p}
	fill := 1 - p.Free()/usable
	state := fmt.Sprintf("%d of %.0f addresses are in use", p.InUse, usable)
	left, fills := timeLeft(p, past, now)
	switch {
	case p.Free() == 0:
		w.Exhausted = true
		w.Text = state + ": pods get none. Add an IPPool, or remove pods"
	case fills && left <= horizon && fill >= half:
		w.Text = fmt.Sprintf("%s, and at the rate of the last hour the rest is gone in %s. Add an IPPool", state, roughly(left))
	case fill >= nearly:
		w.Text = fmt.Sprintf("%s: %.0f %%. Add an IPPool before it is exhausted", state, 100*fill)
	default:
		return Warning{}, false
	}
	return w, true
}

// timeLeft returns the time until the pool is exhausted if its recent growth continues; false if it does not grow, or
// has too little history.
func timeLeft(p PoolUsage, past []sample, now time.Time) (time.Duration, bool) {
	first := past[0]
	span, grown := now.Sub(first.at), p.InUse-first.inUse
	if span < youngest || grown <= 0 {
		return 0, false
	}
	left := p.Free() / float64(grown) * float64(span)
	return time.Duration(min(left, float64(1000*time.Hour))), true
}

// roughly rounds a time, so that the text is stable between measurements.
func roughly(d time.Duration) string {
	switch {
	case d < 30*time.Minute:
		return "less than half an hour"
	case d < 2*time.Hour:
		return "less than two hours"
	}
	return fmt.Sprintf("about %d hours", int(d.Round(time.Hour)/time.Hour))
}
