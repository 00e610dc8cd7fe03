package policies

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
)

// Packets that match Log rules are sampled, with FelixConfiguration's prefix; with a rate for each rule all are logged,
// up to a bound.
func TestLogRules(t *testing.T) {
	id := policy.ID{Kind: policy.KindCalicoNetworkPolicy, Namespace: "shop", Name: "audit"}
	const several = 20
	for name, tt := range map[string]struct {
		handling policy.Handling
		prefix   string
		lines    int
		want     string
	}{
		"a sample":  {policy.Handling{}, "", 1, "prefix=calico-packet"},
		"specifics": {policy.Handling{}, "a%k b%t c%n d%p %z", 1, `prefix="anp bsecurity caudit dshop/audit %z"`},
		"a rate":    {policy.Handling{Logs: policy.LogRate{Packets: 50, Seconds: 1, Burst: 50}}, "", several, "prefix=calico-packet"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var text strings.Builder
			w := New(Options{Log: slog.New(slog.NewTextHandler(&text, nil)), Drops: func(context.Context) (<-chan netpol.Drop, error) {
				drops := make(chan netpol.Drop, several+1)
				for port := range several {
					drops <- netpol.Drop{Why: "ingress " + id.String() + " rule 0", Logged: true, DstPort: uint16(port)}
				}
				drops <- netpol.Drop{Why: "ingress " + id.String()}
				close(drops)
				cancel()
				return drops, nil
			}})
			tier := policy.Tier{Name: "security", Order: 1}
			w.inForce.selection = policy.Select(policy.State{Policies: []policy.Policy{{ID: id, Tier: tier}}})
			w.SetHandling(tt.handling, tt.prefix)
			w.logDrops(ctx)
			if n := strings.Count(text.String(), "Log rule"); n != tt.lines || strings.Count(text.String(), tt.want) != n {
				t.Errorf("%d lines, want %d with %s:\n%s", n, tt.lines, tt.want, &text)
			}
		})
	}
	now, taken := time.Now(), 0
	for s := (perSecond{}); s.takes(now) && taken <= mostLogs; taken++ {
	}
	if taken != mostLogs {
		t.Errorf("%d lines in a second, want %d", taken, mostLogs)
	}
	if got := expand("%t %k %p", "x", policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: "a"}); got != "x gnp a" {
		t.Errorf("a policy of no namespace: %s", got)
	}
}

// TestDenials: the connections with the most packets of the last minutes are reported, and a flood takes no more
// memory.
func TestDenials(t *testing.T) {
	var d denials
	now := time.Now()
	drop := func(port int) *netpol.Drop {
		return &netpol.Drop{Why: "ingress NetworkPolicy a/b", DstPort: uint16(port)}
	}
	d.add(drop(1), now.Add(-denialTime-time.Second))
	for port := range 10 {
		for range port {
			d.add(drop(port), now.Add(-denialStep))
		}
	}
	d.add(drop(9), now)
	top := d.top(now)
	if len(top) != mostReported || top[0].Port != 9 || top[0].Packets != 10 || top[1].Port != 8 || top[1].Packets != 8 {
		t.Errorf("%+v", top)
	}
	if top := d.top(now.Add(denialTime)); len(top) != 1 || top[0].Packets != 1 {
		t.Errorf("after minutes: %+v", top)
	}
	for port := range 2 * mostDenials {
		d.add(drop(port), now)
	}
	if n := len(d.steps[len(d.steps)-1].of); n != mostDenials {
		t.Errorf("%d denials, want %d", n, mostDenials)
	}
	if top := d.top(now.Add(denialTime + 2*denialStep)); len(top) != 0 {
		t.Errorf("much later: %+v", top)
	}
}
