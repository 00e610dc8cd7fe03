package ipip_test

import (
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/hairpin"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestHairpin: a node sends probes that come by IPIP back by IPIP, unless it forwards nothing.
func TestHairpin(t *testing.T) {
	a, b := pair(t, 1500)
	probe := func(within time.Duration) bool {
		t.Helper()
		var p *hairpin.Probe
		a.Within(t, func() (err error) {
			p, err = hairpin.Open(t.Context(),
				hairpin.Way{Link: a.Link(t, ipip.Device).Index, Outer: addr(b.addr), From: addr(a.addr), Back: a.tunnelAddr(), Source: hairpin.Dummy})
			return err
		})
		defer p.Close()
		answered, err := p.Answered(t.Context(), within)
		errtest.Must(t, err)
		return answered
	}
	if !probe(20 * time.Second) {
		t.Error("no answer")
	}
	b.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "0") })
	if probe(time.Second) {
		t.Error("a node that does not forward answers")
	}
}
