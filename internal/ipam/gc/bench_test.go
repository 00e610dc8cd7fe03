package gc

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// large is a view of 1,000 nodes with 30 pods each. Of each node's pods so many are gone.
func large(gone int) inventory.View {
	v := inventory.View{Taken: clock, Ready: true, Pools: []api.IPPool{{Meta: api.Meta{Name: "p"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/8"}}}}
	for n := range 1000 {
		node := fmt.Sprintf("node-%04d", n)
		v.Nodes = append(v.Nodes, inventory.Node{Meta: api.Meta{Name: node, UID: node, Labels: map[string]string{"kubernetes.io/os": "linux"}}})
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 26)
		b := inventory.Block{Meta: api.Meta{Name: names.Block(cidr), UID: node, ResourceVersion: "1"}, CIDR: cidr,
			Affinity: names.HostAffinity(node), Free: 34}
		a := cidr.Addr()
		for p := range 30 {
			name := fmt.Sprintf("pod-%04d-%02d", n, p)
			handle := fmt.Sprintf("k8s-pod-network.%064d", n*30+p)
			b.Allocations = append(b.Allocations, inventory.Allocation{
				Address: a, Handle: handle, Sequence: 7, Class: inventory.OfPod, Node: node, Namespace: "default", Pod: name, Since: clock,
			})
			v.Handles = append(v.Handles, inventory.Handle{Meta: api.Meta{Name: handle, UID: handle[:36], ResourceVersion: "1"}, Named: true})
			if p >= gone {
				v.Pods = append(v.Pods, inventory.Pod{Meta: api.Meta{Name: name, Namespace: "default", UID: handle[:36]}, Node: node,
					Addresses: []netip.Addr{a}, Reported: true})
			}
			a = a.Next()
		}
		v.Blocks = append(v.Blocks, b)
		v.Affinities = append(v.Affinities, api.BlockAffinity{
			Meta: api.Meta{Name: names.Affinity(node, cidr)},
			Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, Type: api.AffinityHost, CIDR: cidr.String()},
		})
	}
	return v
}

// BenchmarkPass is one pass over 1,000 nodes and 30,000 addresses: with all in use, and with none.
func BenchmarkPass(b *testing.B) {
	for _, tc := range []struct {
		name string
		gone int
	}{{"in use", 0}, {"orphans", 30}} {
		b.Run(tc.name, func(b *testing.B) {
			v := large(tc.gone)
			st := State{}
			b.ReportAllocs()
			for b.Loop() {
				st, _ = Pass(st, &v, defaultRules)
				v.Taken = v.Taken.Add(time.Second)
			}
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapAlloc)/1e6, "MB-kept")
			runtime.KeepAlive(v)
		})
	}
}
