package audit

import (
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// An address of a Service that is gone, was made anew, or is no longer a LoadBalancer is a leak, where Services are
// known; the collector, which does not know them, leaves it alone.
func TestAddressOfAService(t *testing.T) {
	block := inventory.Block{CIDR: netip.MustParsePrefix("10.9.0.0/30"), Affinity: names.LoadBalancer, Sequence: 2, Free: 3,
		Allocations: []inventory.Allocation{{
			Address: netip.MustParseAddr("10.9.0.0"), Handle: names.ServiceHandle("d", "s", "u"), Class: inventory.LoadBalancer, Namespace: "d",
			Service: "s", Sequence: 1,
		}}}
	block.Name = "10-9-0-0-30"
	service := func(uid, kind string) []inventory.Service {
		return []inventory.Service{{Meta: api.Meta{Namespace: "d", Name: "s", UID: uid}, Type: kind}}
	}
	for _, tc := range []struct {
		what     string
		services []inventory.Service
		leak     bool
	}{
		{"its Service", service("u", api.ServiceLoadBalancer), false},
		{"another of its name", service("v", api.ServiceLoadBalancer), true},
		{"of another type", service("u", api.ServiceClusterIP), true},
		{"none", []inventory.Service{}, true},
		{"unknown", nil, false},
	} {
		v := &inventory.View{Blocks: []inventory.Block{block}, Services: tc.services}
		leak := false
		for _, f := range Check(v) {
			leak = leak || f.Kind == AddressNoService && f.Fix == ByHand
		}
		if leak != tc.leak {
			t.Errorf("%s: a leak is found: %v, want %v", tc.what, leak, tc.leak)
		}
		for _, c := range Candidates(v, inventory.NewIndex(nil, nil)) {
			if c.Holder != nil {
				t.Errorf("%s: the collector would free %s", tc.what, c.Object())
			}
		}
	}
}
