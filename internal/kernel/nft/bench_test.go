package nft_test

import (
	"fmt"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// large is a policy for many pods: a verdict map, a chain with rules for each pod, and a set of addresses.
func large(pods int) nft.Part {
	p := nft.Part{Prefixes: []string{"policy-"}}
	pod := nft.Set{Name: "policy-pods", Key: []nft.Type{nft.IPv4Addr}, Value: nft.VerdictType}
	peers := nft.Set{Name: "policy-peers", Key: []nft.Type{nft.IPv4Addr}}
	dispatch := nft.Chain{Name: "policy-forward", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward},
		Rules: []nft.Rule{nft.NewRule("", nft.IPv4.Is(), nft.Map(pod.Name, nft.IPv4.Src))}}
	for i := range pods {
		name, addr := fmt.Sprint("policy-pod-", i), key(fmt.Sprintf("10.1.%d.%d", i/256, i%256))
		pod.Elements = append(pod.Elements, nft.Element{First: addr, Verdict: nft.Goto(name)})
		for j := range 10 {
			peers.Elements = append(peers.Elements, nft.Element{First: key(fmt.Sprintf("10.%d.%d.%d", 2+j, i/256, i%256))})
		}
		p.Chains = append(p.Chains, nft.Chain{Name: name, Rules: []nft.Rule{
			nft.NewRule("", nft.IPv4.Is(), nft.In(peers.Name, nft.IPv4.Dest), nft.Do(nft.Accept)),
			nft.NewRule("", nft.L4Proto.Is("\x06"), nft.DestPort.Is(nft.PortKey(uint16(i))), nft.Do(nft.Accept)),
			nft.NewRule("", nft.Count(), nft.Do(nft.Drop)),
		}})
	}
	p.Chains = append(p.Chains, dispatch)
	p.Sets = []nft.Set{pod, peers}
	return p
}

// BenchmarkPolicy has 500 pods, each with a chain of 3 rules and 10 addresses in a set.
func BenchmarkPolicy(b *testing.B) {
	ns := netnstest.New(b)
	part, none := large(500), nft.Part{Prefixes: []string{"policy-"}}
	table := nft.New(ns.Namespace)
	b.Run("from empty", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			syncPart(b, table, none)
			b.StartTimer()
			syncPart(b, table, part)
		}
	})
	syncPart(b, table, part)
	b.Run("nothing changed", func(b *testing.B) {
		for b.Loop() {
			syncPart(b, table, part)
		}
	})
	b.Run("others changed something", func(b *testing.B) {
		for b.Loop() {
			syncPart(b, nft.New(ns.Namespace), part)
		}
	})
	b.Run("one pod changed", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			changed := large(500 - i%2)
			syncPart(b, table, changed)
		}
	})
}
