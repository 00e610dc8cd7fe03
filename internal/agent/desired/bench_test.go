package desired

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// A large cluster: 1,000 nodes with three blocks each, and BGP that knows ten single addresses of each beside them.
const (
	largeNodes  = 1000
	largeBlocks = 3
	largeSingle = 7
)

func nth(base string, i, step int) netip.Addr {
	b := netip.MustParseAddr(base).As4()
	n := (uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])) + uint32(i*step)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

func largeWorld() (w state.Cluster, learned []bgp.Path) {
	w = state.Cluster{Revision: 1}
	for i := range 20 {
		w.Pools = append(w.Pools, api.IPPool{
			Meta: api.Meta{Name: fmt.Sprintf("pool-%d", i)},
			Spec: api.IPPoolSpec{CIDR: fmt.Sprintf("10.%d.0.0/16", i), IPIPMode: api.EncapAlways, NATOutgoing: true},
		})
	}
	for i := range largeNodes {
		name, at := fmt.Sprintf("node-%04d", i), nth("172.16.0.1", i, 1)
		w.Nodes = append(w.Nodes,
			api.Node{Meta: api.Meta{Name: name, UID: name, Annotations: map[string]string{api.AnnotationIPv4Address: at.String() + "/16"}}})
		for j := range largeBlocks {
			block := netip.PrefixFrom(nth("10.0.0.0", largeBlocks*i+j, 64), 26)
			w.Affinities = append(w.Affinities, api.BlockAffinity{
				Meta: api.Meta{Name: fmt.Sprintf("%s-%d", name, j)},
				Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: name, CIDR: block.String(), Type: api.AffinityHost},
			})
			if i > 0 {
				learned = append(learned, bgp.Path{Prefix: block, NextHop: at, From: at})
			}
		}
		for j := range largeSingle {
			if i > 0 {
				learned = append(learned, bgp.Path{Prefix: netip.PrefixFrom(nth("10.0.0.0", 64*largeBlocks*i+j+1, 1), 32), NextHop: at, From: at})
			}
		}
	}
	return w, learned
}

var largeSelf = Self{Name: "node-0000", Addr: netip.MustParsePrefix("172.16.0.1/16"), Link: "eth0", LinkMTU: 1500}

func BenchmarkBuildSnapshot(b *testing.B) {
	w, _ := largeWorld()
	b.ReportAllocs()
	for b.Loop() {
		if s, problems := Build(largeSelf, w); len(problems) > 0 || len(s.Owners) != largeBlocks*(largeNodes-1) {
			b.Fatal(len(s.Owners), problems)
		}
	}
}

func BenchmarkObjection(b *testing.B) {
	w, learned := largeWorld()
	s, _ := Build(largeSelf, w)
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range learned {
			if r := s.By(Grounds{}).Objection(p); r.Why != "" {
				b.Fatal(r)
			}
		}
	}
}

// BenchmarkJudging measures how fast it is found that paths need not be judged again.
func BenchmarkJudging(b *testing.B) {
	w, _ := largeWorld()
	s, _ := Build(largeSelf, w)
	before := s.Judging(Grounds{})
	b.ReportAllocs()
	for b.Loop() {
		if now := s.As(largeSelf); !reflect.DeepEqual(before, now.Judging(Grounds{})) {
			b.Fatal("the same judge seems another one")
		}
	}
}

func BenchmarkJudgeAndRoutes(b *testing.B) {
	w, learned := largeWorld()
	s, _ := Build(largeSelf, w)
	b.ReportAllocs()
	for b.Loop() {
		accepted, refused := s.By(Grounds{}).decide(learned)
		if routes := s.By(Grounds{}).Routes(accepted); len(routes) != len(learned)+largeBlocks || len(refused) > 0 {
			b.Fatal(len(routes), len(refused))
		}
	}
}

func BenchmarkPeers(b *testing.B) {
	w, _ := largeWorld()
	s, _ := Build(largeSelf, w)
	b.ReportAllocs()
	for b.Loop() {
		if peers := sessions(&s); len(peers) != largeNodes-1 {
			b.Fatal(len(peers))
		}
	}
}
