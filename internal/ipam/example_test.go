package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// A node with one block assigns an address to a pod. Nothing is read or written here: a plan that lacks input returns
// what must be read first, and Plan's writes are made in their order by compare-and-swap.
func ExamplePlanAssign() {
	pools := ParsePools([]api.IPPool{{
		Meta: api.Meta{Name: "default"},
		Spec: api.IPPoolSpec{CIDR: "10.65.0.0/16", BlockSize: 29},
	}})
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	block := netip.MustParsePrefix("10.65.1.0/29")
	state := &State{
		Now: now, Config: DefaultConfig(), Pools: pools,
		Affinities: []*api.BlockAffinity{{Spec: api.BlockAffinitySpec{CIDR: block.String(), Node: "node1", State: api.AffinityConfirmed}}},
	}
	request := &Request{Owner: Owner{Handle: "k8s-pod-network.4711"}, Host: "node1", V4: true, Use: api.UseWorkload}

	_, err := PlanAssign(state, request)
	var more *need
	fmt.Println(errors.As(err, &more), more.blocks)

	state.Blocks = map[netip.Prefix]*Block{block: NewBlock(block, "node1", now)}
	plan, err := PlanAssign(state, request)
	fmt.Println(plan.Assignments[0].Address, err)
	for _, w := range plan.lines() {
		fmt.Println(w)
	}
	// Output:
	// true [10.65.1.0/29]
	// 10.65.1.0 <nil>
	// create handle k8s-pod-network.4711 10.65.1.0/29=1
	// update block 10.65.1.0/29 host:node1 [0:k8s-pod-network.4711 . . . . . . .]
}
