package policies

import (
	"context"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
)

const (
	// sameDrop is how often a line is logged for one policy and direction, anyDrop for any.
	sameDrop = 10 * time.Second
	anyDrop  = time.Second
	// mostDrops bounds the policies that are remembered.
	mostDrops = 1000
	// dropsRetry bounds the pauses before the kernel is asked again for denied packets.
	dropsRetry = time.Minute
)

// logDrops logs a sample of the packets that policies deny, until ctx ends.
func (w *Worker) logDrops(ctx context.Context) {
	if w.Drops == nil {
		return
	}
	var reported progress.Changes
	for backoff := (wait.Backoff{First: time.Second, Most: dropsRetry}); ctx.Err() == nil; wait.Sleep(ctx, backoff.Next()) {
		drops, err := w.Drops(ctx)
		if reported.New(err) {
			w.Log.Warn("cannot log denied packets", "err", err)
		}
		if err != nil {
			continue
		}
		var sample dropSample
		for d := range drops {
			if w.Flows != nil {
				w.Flows.Denied(d)
			}
			if sample.takes(d.Why, time.Now()) {
				text := "packet denied"
				if d.Logged {
					text = "packet matched a Log rule"
				}
				w.Log.Info(text, "by", d.Why, "from", endText(d.Src, d.SrcPort), "to", endText(d.Dst, d.DstPort), "protocol", d.Protocol)
			}
		}
	}
}

func endText(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// dropSample chooses what is logged.
type dropSample struct {
	last time.Time
	by   map[string]time.Time
}

// takes reports whether a packet is to be logged that was denied for a reason.
func (s *dropSample) takes(why string, now time.Time) bool {
	if now.Sub(s.last) < anyDrop || now.Sub(s.by[why]) < sameDrop {
		return false
	}
	if len(s.by) >= mostDrops || s.by == nil {
		s.by = map[string]time.Time{}
	}
	s.last, s.by[why] = now, now
	return true
}

// DropsOf is a Drops for Options.
type DropsOf func(ctx context.Context) (<-chan netpol.Drop, error)
