package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Denied packets are counted by policy and direction, also over restarts of the kernel's counters. Deleted policies do
// not fill the memory.
func TestDeniedPackets(t *testing.T) {
	by := func(name string) netpol.Denied {
		return netpol.Denied{Direction: policy.Egress, By: policy.ID{Kind: "NetworkPolicy", Namespace: "shop", Name: name}}
	}
	counters := map[netpol.Denied]nft.Counter{}
	s := NewStatus("n1", time.Now(), func(context.Context) error { return nil })
	s.metrics.addDenied(func(context.Context) (map[netpol.Denied]nft.Counter, error) { return counters, nil })
	values := func() map[string]float64 {
		t.Helper()
		families, err := s.metrics.registry.Gather()
		errtest.Must(t, err)
		all := map[string]float64{}
		for _, f := range families {
			if f.GetName() != "tortie_policy_denied_packets_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				text := ""
				for _, l := range m.GetLabel() {
					text += l.GetName() + "=" + l.GetValue() + " "
				}
				all[text] = m.GetCounter().GetValue()
			}
		}
		return all
	}
	const web = "direction=egress kind=NetworkPolicy name=web namespace=shop reason= "
	for _, step := range []struct{ packets, want uint64 }{{5, 5}, {7, 7}, {3, 10}} {
		counters[by("web")] = nft.Counter{Packets: step.packets}
		if got := values(); len(got) != 1 || got[web] != float64(step.want) {
			t.Errorf("the kernel counts %d: %v, want %d", step.packets, got, step.want)
		}
	}
	onlyWeb := map[netpol.Denied]nft.Counter{by("web"): {Packets: 4}}
	for i := range mostGone {
		counters[by(fmt.Sprint("gone-", i))] = nft.Counter{Packets: 1}
	}
	values()
	if counters = onlyWeb; len(values()) != mostGone+1 {
		t.Error("series of policies have gone that may come back")
	}
	counters = map[netpol.Denied]nft.Counter{by("web"): {Packets: 4}, by("more"): {Packets: 1}}
	values()
	counters = onlyWeb
	if got := values(); len(got) != 1 || got[web] != 11 {
		t.Errorf("%d series, of web %v", len(got), got[web])
	}
}
