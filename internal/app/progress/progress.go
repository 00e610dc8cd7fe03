// Package progress logs what a program waits for: no log should be silent for more than two seconds.
package progress

import (
	"log/slog"
	"time"
)

// First is how long a wait may be silent, and longest the longest pause between two log entries.
const (
	First   = 2 * time.Second
	longest = 30 * time.Second
)

// Next returns the pause after the next log entry, given the one before it.
func Next(pause time.Duration) time.Duration { return min(2*pause, longest) }

// Say logs what the program waits for after First, and again at growing intervals, until done is called.
func Say(log *slog.Logger, what string) (done func()) {
	start := time.Now()
	over := make(chan struct{})
	go func() {
		for pause := First; ; pause = Next(pause) {
			timer := time.NewTimer(pause)
			select {
			case <-over:
				timer.Stop()
				return
			case <-timer.C:
				log.Info(what, "waited", time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() { close(over) }
}
