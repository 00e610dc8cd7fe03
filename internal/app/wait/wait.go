// Package wait provides pauses for loops: signals that coalesce, sleeps that end with a context, and exponential
// backoff with jitter.
package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// Signal makes a channel of size 1 readable. Signals that are not received yet coalesce.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Sleep returns true after d, or false as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Over reports whether ctx has ended, or is past its deadline and about to end: client-go rejects a request after the
// deadline with an error of its own, which says nothing of what was waited for.
func Over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// Jitter returns a random duration from half of d to one and a half times d, to spread what begins at the same time on
// many nodes.
func Jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d)
}

// Backoff is a pause that doubles with each call of Next, from First up to Most.
type Backoff struct {
	First, Most time.Duration
	next        time.Duration
}

// Next returns the next pause, with jitter.
func (b *Backoff) Next() time.Duration {
	pause := max(b.next, b.First)
	b.next = min(2*pause, b.Most)
	return Jitter(pause)
}

// Reset begins anew with the first pause.
func (b *Backoff) Reset() { b.next = 0 }
