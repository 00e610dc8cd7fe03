package wait

import (
	"context"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Most: 5 * time.Second}
	for range 2 {
		for i, want := range []time.Duration{1, 2, 4, 5, 5} {
			if got, want := b.Next(), want*time.Second; got < want/2 || got >= want*3/2 {
				t.Errorf("pause %d is %s, want %s give or take a half", i, got, want)
			}
		}
		b.Reset()
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if !Sleep(ctx, time.Millisecond) {
		t.Error("a sleep was cut short")
	}
	cancel()
	if Sleep(ctx, time.Hour) {
		t.Error("a sleep outlived its context")
	}
}

func TestSignalsCoalesce(t *testing.T) {
	c := make(chan struct{}, 1)
	Signal(c)
	Signal(c)
	if len(c) != 1 {
		t.Errorf("%d signals", len(c))
	}
}
