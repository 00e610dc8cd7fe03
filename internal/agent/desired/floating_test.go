package desired

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// floating returns a snapshot with a pod that has a floating address.
func floating(t *testing.T, a string, change func(*Snapshot)) *Snapshot {
	t.Helper()
	s := snapshot(t, nil)
	s.Felix.Floats = true
	s.Self.Pods = []netip.Addr{addr("192.168.1.7")}
	s.Self.Floating = []Floating{{addr(a), "cali1", addr("192.168.1.7")}}
	if change != nil {
		change(s)
	}
	return s
}

// An annotation of a pod must not attract the connections of a node, a Service, another pod, or of addresses outside of
// all pools.
func TestFloatingAddressesOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		addr   string
		change func(*Snapshot)
		says   string
	}{
		"as it should be":          {addr: "192.168.2.9"},
		"of this node's block":     {addr: "192.168.1.9"},
		"not allowed":              {"192.168.2.9", func(s *Snapshot) { s.Felix.Floats = false }, "floatingIPs"},
		"this node's":              {"10.0.0.1", nil, "a node's address"},
		"another node's":           {"10.0.0.2", nil, "a node's address"},
		"this node's tunnel":       {"192.168.1.9", func(s *Snapshot) { s.Self.TunnelAddr = addr("192.168.1.9") }, "a node's address"},
		"of Services":              {"192.168.2.9", func(s *Snapshot) { s.ServiceRanges = []netip.Prefix{prefix("192.168.2.0/28")} }, "Services"},
		"of no pool":               {"203.0.113.9", nil, "no IPPool"},
		"another pod's own":        {"192.168.1.8", func(s *Snapshot) { s.Self.Pods = append(s.Self.Pods, addr("192.168.1.8")) }, "another one"},
		"of a pod without address": {"192.168.2.9", func(s *Snapshot) { s.Self.Floating[0].Pod = netip.Addr{} }, "has no pod"},
	} {
		t.Run(name, func(t *testing.T) {
			s := floating(t, c.addr, c.change)
			single := netip.PrefixFrom(addr(c.addr), 32)
			all, problems := s.Floats()
			if text := strings.Join(texts(problems), "\n"); c.says == "" && text != "" ||
				c.says != "" && (!strings.Contains(text, c.says) || !strings.Contains(text, c.addr)) {
				t.Errorf("problems: %q, want %q", text, c.says)
			}
			inForce := c.says == ""
			announced := false
			for _, p := range s.Originated() {
				announced = announced || p.Prefix == single
			}
			routed := false
			ways, _ := s.By(Grounds{}).DesiredRoutes(nil)
			for _, w := range ways {
				routed = routed || w.Route.Dst == single && len(w.Route.Hops) == 1 && w.Route.Hops[0].Dev == "cali1"
			}
			if (len(all) == 1) != inForce || (len(s.NAT().Floating) == 1) != inForce || routed != inForce ||
				announced != (inForce && c.addr == "192.168.2.9") {
				t.Errorf("in force %v, translated %v, routed %v, announced %v", all, s.NAT().Floating, routed, announced)
			}
		})
	}
	s := floating(t, "192.168.2.9", nil)
	difftest.Want(t, "translated", []nat.Floating{{Addr: addr("192.168.2.9"), Pod: addr("192.168.1.7")}}, s.NAT().Floating)
	another := bgp.Path{Prefix: prefix("192.168.2.9/32"), NextHop: addr("10.0.0.2"), From: addr("10.0.0.2")}
	_, refused := s.By(Grounds{}).Accept([]bgp.Path{another}, nil)
	if len(refused) != 1 || refused[0].Why != "a pod on this node has the address" {
		t.Errorf("another node's path to it: %+v", refused)
	}
}
