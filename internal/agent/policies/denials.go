package policies

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
)

const (
	// denialTime is how long denied packets count, in steps of denialStep.
	denialTime = 5 * time.Minute
	denialStep = time.Minute
	// mostDenials bounds the connections counted in a step, mostReported the reported connections.
	mostDenials  = 500
	mostReported = 5
)

// Denial is a connection that policies deny.
type Denial struct {
	Why      string // as in netpol.Drop
	Src, Dst netip.Addr
	Protocol uint8
	Port     uint16 // of the destination; 0 for protocols without ports
}

// Denied is a Denial with the number of its packets in the kernel's sample.
type Denied struct {
	Denial
	Packets int
}

// denials counts denied packets of the last denialTime. It is safe for concurrent use.
type denials struct {
	mu    sync.Mutex
	steps []denialCount // the oldest first
}

type denialCount struct {
	begun time.Time
	of    map[Denial]int
}

func (d *denials) add(p *netpol.Drop, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(now)
	if n := len(d.steps); n == 0 || now.Sub(d.steps[n-1].begun) >= denialStep {
		d.steps = append(d.steps, denialCount{now, map[Denial]int{}})
	}
	of := d.steps[len(d.steps)-1].of
	key := Denial{p.Why, p.Src, p.Dst, p.Protocol, p.DstPort}
	if _, known := of[key]; known || len(of) < mostDenials {
		of[key]++
	}
}

func (d *denials) forget(now time.Time) {
	d.steps = slices.DeleteFunc(d.steps, func(s denialCount) bool { return now.Sub(s.begun) > denialTime })
}

// top returns the connections with the most denied packets.
func (d *denials) top(now time.Time) []Denied {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(now)
	sum := map[Denial]int{}
	for _, s := range d.steps {
		for key, n := range s.of {
			sum[key] += n
		}
	}
	var all []Denied
	for key, n := range sum {
		all = append(all, Denied{key, n})
	}
	slices.SortFunc(all, func(a, b Denied) int {
		return cmp.Or(b.Packets-a.Packets, cmp.Compare(a.Why, b.Why), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst),
			int(a.Protocol)-int(b.Protocol), int(a.Port)-int(b.Port))
	})
	return all[:min(len(all), mostReported)]
}

// Denials returns the connections with the most packets denied in the last minutes.
func (w *Worker) Denials() []Denied { return w.denials.top(time.Now()) }
