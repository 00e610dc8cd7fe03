package policytest

import (
	"testing"
	"time"
)

// Every packet that the rig sends is a new connection to the kernel, and comes out where its address is. One to a
// closed link does not.
func TestRig(t *testing.T) {
	r := NewRig(t)
	r.Host.Run(t, "nft", `table inet t {
		chain forward { type filter hook forward priority -5; ct state != new counter drop; oifname "cali3" drop; }
		chain input { type filter hook input priority -5; iifname "cali*" ct state != new counter drop; }
	}`)
	for seed := range uint64(20) {
		g := NewGenerator(seed)
		c := g.Cluster()
		r.Own(t, c)
		r.Forget(t)
		sent, got, start := map[uint64]Packet{}, map[uint64]string{}, time.Now()
		var wanted []uint64
		for _, p := range g.Packets(c, 100) {
			if !Sendable(p) {
				continue
			}
			n, err := r.Send(c.Place(p.From), p)
			if err != nil {
				t.Fatal(err)
			}
			if sent[n] = p; c.Place(p.To) != Link(3) || c.Place(p.From) == "" {
				wanted = append(wanted, n)
			}
		}
		r.Await(got, wanted)
		t.Logf("%d packets in %v", len(sent), time.Since(start))
		for n, p := range sent {
			want := c.Place(p.To)
			if place, ok := got[n]; want == Link(3) && c.Place(p.From) != "" {
				if ok {
					t.Errorf("seed %d: %s went through a closed link", seed, p)
				}
			} else if !ok || place != want {
				t.Errorf("seed %d: %s from %q came to %q (%v), not to %q", seed, p, c.Place(p.From), place, ok, want)
			}
		}
	}
}
