package desired

import (
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// An address that an annotation of a pod may name lies in a pool of pods, and is no node's, nor a tunnel's. A node
// cannot change that by announcing an address in another node's block.
func TestPlace(t *testing.T) {
	ippool := func(name, cidr string, change func(*api.IPPoolSpec)) api.IPPool {
		p := api.IPPool{Meta: api.Meta{Name: name}, Spec: api.IPPoolSpec{CIDR: cidr, BlockSize: 26}}
		if change != nil {
			change(&p.Spec)
		}
		return p
	}
	uses := func(u api.AllowedUse) func(*api.IPPoolSpec) {
		return func(s *api.IPPoolSpec) { s.AllowedUses = []api.AllowedUse{u} }
	}
	node := func(name, addr, tunnel, vtep string) api.Node {
		return api.Node{Meta: api.Meta{Name: name, Annotations: map[string]string{api.AnnotationIPv4Address: addr,
			api.AnnotationIPv4TunnelAddr: tunnel, api.AnnotationIPv4VXLANAddr: vtep}}}
	}
	const when = "2026-01-01T00:00:00Z"
	s, _ := Build(Self{Name: "n"}, state.Cluster{
		Nodes: []api.Node{node("m", "192.168.7.9/24", "10.244.1.0", "10.244.1.1"), node("thief", "10.244.1.7/24", "10.244.1.8", "10.244.3.1")},
		Pools: []api.IPPool{
			ippool("pods", "10.244.0.0/16", nil), ippool("masked", "192.168.0.0/16", func(s *api.IPPoolSpec) { s.Disabled = true }),
			ippool("tunnels", "10.99.0.0/16", uses("Tunnel")), ippool("services", "10.98.0.0/16", uses(api.UseLoadBalancer)),
		},
		Affinities: []api.BlockAffinity{claim("m", "10.244.1.0/26", when), claim("thief", "10.244.3.0/26", when),
			claim("m", "192.168.8.0/26", when)},
	})
	for text, want := range map[string]struct {
		pooled bool
		node   string
	}{
		"10.244.1.9":  {true, "m"},
		"10.244.9.9":  {true, ""},
		"10.244.1.0":  {false, "m"},     // tunl0
		"10.244.1.1":  {false, "m"},     // vxlan.calico
		"10.244.1.7":  {true, "m"},      // the thief announces it as its address
		"10.244.1.8":  {true, "m"},      // and as its tunnel's
		"10.244.3.1":  {false, "thief"}, // its own block
		"192.168.7.9": {false, ""},      // a node
		"192.168.7.1": {false, ""},      // a disabled pool, without a block
		"192.168.8.1": {true, "m"},      // with one: pods stay
		"10.99.0.1":   {false, ""},
		"10.98.0.1":   {false, ""},
		"8.8.8.8":     {false, ""},
	} {
		if pooled, node := s.Place(addr(text)); pooled != want.pooled || node != want.node {
			t.Errorf("%s: pooled %v, node %q, want %v, %q", text, pooled, node, want.pooled, want.node)
		}
	}
}
