package desired

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
)

// input is one of many inputs in which two judges may differ. Inputs of the cluster are changed by another view.
type input struct {
	world   func(*state.Cluster)
	here    func(*Snapshot)
	grounds func(*Grounds)
	outside bool // it is no input of an Objection, so that paths need not be judged again
}

var inputs = map[string]input{
	"pool": {world: func(w *state.Cluster) { w.Pools[0].Spec.CIDR = "192.168.2.0/24" }},
	"encapsulation": {world: func(w *state.Cluster) {
		w.Pools[0].Spec.IPIPMode = api.EncapNever
	}},
	"block": {world: func(w *state.Cluster) {
		w.Affinities = append(w.Affinities, claim("far", "192.168.5.0/26", "2026-01-01T00:00:00Z"))
	}},
	"own block": {world: func(w *state.Cluster) { w.Affinities = w.Affinities[1:] }},
	"node's address": {world: func(w *state.Cluster) {
		w.Nodes[2].Annotations[api.AnnotationIPv4Address] = "192.168.2.7/32"
	}},
	"services' range": {world: func(w *state.Cluster) { w.BGP = *servedBy("172.20.0.0/16") }},
	"address":         {here: func(s *Snapshot) { s.Self.Addr = prefix("10.0.0.2/24") }},
	"tunnel":          {here: func(s *Snapshot) { s.Self.TunnelAddr = addr("192.168.2.9") }},
	"subnet": {here: func(s *Snapshot) {
		s.Self.Found = append(s.Self.Found, nodeaddr.Candidate{Addr: prefix("172.20.0.1/16"), Link: "eth1"})
	}},
	"API server": {here: func(s *Snapshot) { s.Self.APIServer = []netip.Addr{addr("192.168.2.70")} }},
	"gateway":    {here: func(s *Snapshot) { s.Self.Gateways = []netip.Addr{addr("192.168.5.7")} }},
	"router": {here: func(s *Snapshot) {
		s.Peering.Sources = map[netip.Addr]peering.Source{addr("10.0.0.254"): {Peer: "tor"}}
	}},
	"gateway of a peer": {here: func(s *Snapshot) {
		s.Peering.Sources = map[netip.Addr]peering.Source{addr("10.0.0.254"): {Peer: "tor"}}
		s.Peering.Static = []peering.Static{{Peer: addr("10.255.0.1"), Via: addr("10.0.0.253")}}
	}},
	"filter": {here: func(s *Snapshot) {
		s.Peering.Sources = map[netip.Addr]peering.Source{addr("10.0.0.254"): {Peer: "tor", Node: "node2"}}
		s.Peering.Import = map[netip.Addr]*policy.Rules{addr("10.0.0.254"): policy.Within([]netip.Prefix{prefix("172.16.0.0/12")}, "no")}
	}},
	"record": {grounds: func(g *Grounds) {
		g.Borrowed = map[Claim]Verdict{{Addr: addr("192.168.2.9"), Node: "far"}: {Confirmed: true}}
	}},
	"route of the host": {grounds: func(g *Grounds) {
		g.HostRoutes.add(prefix("10.255.0.0/16"), routes.Hop{Via: addr("10.0.0.252"), Dev: "eth0"})
	}},
	"learned route": {grounds: func(g *Grounds) {
		g.learned.add(prefix("10.255.0.0/24"), routes.Hop{Via: addr("10.0.0.251"), Dev: "eth0"})
	}},
	"pods":       {here: func(s *Snapshot) { s.Self.Pods = []netip.Addr{addr("192.168.2.9")} }, outside: true},
	"services":   {here: func(s *Snapshot) { s.Services = rangesOf("172.20.0.0/24") }, outside: true},
	"aggregates": {here: func(s *Snapshot) { s.Aggregates = map[netip.Addr]policy.Aggregates{} }, outside: true},
	"encryption": {here: func(s *Snapshot) { s.crypt[0].leaving = true }, outside: true},
}

// judgedPaths returns paths of many kinds.
func judgedPaths() (all []bgp.Path) {
	for _, p := range rangesOf("192.168.2.0/26", "192.168.2.64/26", "192.168.2.9/32", "192.168.5.0/26", "192.168.1.64/26", "192.168.1.70/32",
		"172.20.0.0/16", "172.20.7.0/24", "10.0.0.1/32", "10.0.0.2/32") {
		for _, hop := range []string{"10.0.0.2", "10.9.0.9", "192.168.2.7", "10.0.0.254", "10.255.0.1"} {
			for _, from := range []string{"10.0.0.2", "10.0.0.254"} {
				all = append(all, bgp.Path{Prefix: p, NextHop: addr(hop), From: addr(from)})
			}
		}
	}
	return all
}

// Two judges that are deeply equal judge all paths alike, in a random history of all inputs. Each input changes a
// judgement, and a change outside of the inputs makes no other judge.
func TestJudging(t *testing.T) {
	random := rand.New(rand.NewPCG(34, 2))
	names := make([]string, 0, len(inputs))
	for name := range inputs {
		names = append(names, name)
	}
	slices.Sort(names)
	paths, on, told := judgedPaths(), map[string]bool{}, map[string]bool{}
	var view View
	var before *Judge
	var verdicts []bgp.Objection
	for step := range 3000 {
		name := names[random.IntN(len(names))]
		if on[name] = !on[name]; step == 0 || inputs[name].world != nil {
			view.Update(time.Unix(0, 0), Self{Name: "node1"}, desiredtest.World(func(w *state.Cluster) {
				for _, other := range names {
					if change := inputs[other].world; on[other] && change != nil {
						change(w)
					}
				}
			}))
		}
		s := view.Base.As(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"})
		var g Grounds
		for _, other := range names {
			if in := inputs[other]; on[other] && in.here != nil {
				in.here(&s)
			} else if on[other] && in.grounds != nil {
				in.grounds(&g)
			}
		}
		now, full := s.Judging(g), s.By(g)
		was := verdicts
		verdicts = make([]bgp.Objection, len(paths))
		for i, p := range paths {
			if verdicts[i] = now.Objection(p); verdicts[i] != full.Objection(p) {
				t.Fatalf("step %d: objection %+v, want %+v", step, verdicts[i], full.Objection(p))
			}
		}
		same := reflect.DeepEqual(now, before)
		if differ := !slices.Equal(was, verdicts); same && differ || step > 0 && !same && inputs[name].outside {
			t.Fatalf("step %d, %s: the judge is the same: %t, judges otherwise: %t", step, name, same, differ)
		} else if differ {
			told[name] = true
		}
		before = now
	}
	for _, name := range names {
		if told[name] == inputs[name].outside {
			t.Errorf("%s: changes what is judged: %t", name, told[name])
		}
	}
}
