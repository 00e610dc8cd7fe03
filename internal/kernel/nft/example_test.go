package nft_test

import (
	"context"
	"fmt"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// An owner's part of the table: one chain, with a rule that counts packets to TCP port 80 and one that drops the others
// of a set of ports. A second Sync of the same part writes nothing.
func ExampleTable_Sync() {
	ns, err := netnstest.NewNamespace()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ns.Close()
	toPort := nft.L4Proto.Is(nft.ByteKey(6))
	part := nft.Part{
		Prefixes: []string{"shop-"},
		Sets:     []nft.Set{{Name: "shop-closed", Key: []nft.Type{nft.Port}, Elements: []nft.Element{{First: nft.PortKey(22)}}}},
		Chains: []nft.Chain{{
			Name: "shop-input",
			Hook: &nft.Hook{Type: nft.Filter, Number: nft.Input},
			Rules: []nft.Rule{
				nft.NewRule("shop-web", toPort, nft.DestPort.Is(nft.PortKey(80)), nft.Count(), nft.Do(nft.Accept)),
				nft.NewRule("shop-closed", toPort, nft.In("shop-closed", nft.DestPort), nft.Count(), nft.Do(nft.Drop)),
			},
		}},
	}
	table := nft.New(ns)
	for range 2 {
		written, err := table.Sync(context.Background(), part)
		fmt.Println(written, err)
	}
	counters, err := table.Counters(context.Background(), "shop-")
	fmt.Println(len(counters), counters["shop-web"].Packets, err)
	// Output:
	// true <nil>
	// false <nil>
	// 2 0 <nil>
}
