package policies

import (
	"cmp"
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// sameDrop is the least time between two lines for one policy and direction, anyDrop between any two.
	sameDrop = 10 * time.Second
	anyDrop  = time.Second
	// mostLogs bounds the lines per second for packets that match Log rules, if FelixConfiguration has a rate for each
	// rule.
	mostLogs = 100
	// defaultLogPrefix is Calico's.
	defaultLogPrefix = "calico-packet"
	// mostDrops bounds the policies with a remembered last line.
	mostDrops = 1000
	// dropsRetry bounds the pauses before Drops is called again.
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
		var rated perSecond
		for d := range drops {
			if w.Flows != nil {
				w.Flows.Denied(d)
			}
			now := time.Now()
			if !d.Logged {
				w.denials.add(&d, now)
			}
			told := []any{"by", d.Why, "from", endText(d.Src, d.SrcPort), "to", endText(d.Dst, d.DstPort), "protocol", d.Protocol}
			switch all := d.Logged && w.logsAll(); {
			case all && !rated.takes(now), !all && !sample.takes(d.Why, now):
			case d.Logged:
				w.Log.Info("packet matched a Log rule", append(told, "prefix", w.logPrefix(&d))...)
			default:
				w.Log.Info("packet denied", told...)
			}
		}
	}
}

// logsAll reports whether all packets are logged that the kernel reports for Log rules, because it limits their rate.
func (w *Worker) logsAll() bool {
	m := w.handlingKnown()
	return m != nil && m.Logs != policy.LogRate{}
}

// logPrefix returns the prefix for a packet that matches a Log rule.
func (w *Worker) logPrefix(d *netpol.Drop) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	id, tier := d.Policy(), ""
	if s := w.inForce.selection; s != nil {
		tier = s.Tier(id)
	}
	return expand(cmp.Or(w.prefix, defaultLogPrefix), cmp.Or(tier, "unknown"), id)
}

// expand replaces the placeholders in FelixConfiguration's logPrefix.
func expand(prefix, tier string, id policy.ID) string {
	kind := map[string]string{policy.KindCalicoNetworkPolicy: "np", policy.KindCalicoGlobalNetworkPolicy: "gnp"}[id.Kind]
	full := id.Name
	if id.Namespace != "" {
		full = id.Namespace + "/" + id.Name
	}
	return strings.NewReplacer("%t", tier, "%k", cmp.Or(kind, "unknown"), "%n", id.Name, "%p", full).Replace(prefix)
}

// perSecond bounds the lines that are not sampled.
type perSecond struct {
	since time.Time
	count int
}

func (s *perSecond) takes(now time.Time) bool {
	if now.Sub(s.since) >= time.Second {
		s.since, s.count = now, 0
	}
	s.count++
	return s.count <= mostLogs
}

func endText(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// dropSample chooses the packets to log.
type dropSample struct {
	last time.Time
	by   map[string]time.Time
}

// takes reports whether to log a packet that was denied for a reason.
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

// DropsOf returns denied packets; it is the type of Options.Drops.
type DropsOf func(ctx context.Context) (<-chan netpol.Drop, error)
