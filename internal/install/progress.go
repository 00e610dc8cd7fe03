package install

import (
	"log/slog"
	"time"
)

const (
	firstWord   = 2 * time.Second // nobody should look at a silent log for longer
	mostSilence = 30 * time.Second
)

// progress says in the log what is waited for, if it takes long, and again now and then until done is called.
func progress(log *slog.Logger, what string) (done func()) {
	start := time.Now()
	over := make(chan struct{})
	go func() {
		for wait := firstWord; ; wait = min(2*wait, mostSilence) {
			timer := time.NewTimer(wait)
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
