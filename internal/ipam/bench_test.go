package ipam

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// halfFull returns a typical block of 64 addresses: half of them with pods, all with different attributes.
func halfFull() *Block {
	b := NewBlock(cidr("10.0.0.0/26"), "node-a", clock)
	for i := range 32 {
		b.Assign(Owner{Handle: fmt.Sprintf("k8s-pod-network.%064d", i), Attrs: containerRequest("node-a", fmt.Sprint(i), clock).Attrs}, nil)
	}
	b.obj.UID, b.obj.ResourceVersion = "uid", "1"
	return b
}

// BenchmarkAssignNth runs the computation for an N-th pod after its block was read.
func BenchmarkAssignNth(b *testing.B) {
	block := halfFull()
	p := pool(b, "pool-a", "10.0.0.0/16", func(p *api.IPPool) { p.Spec.BlockSize = 26 })
	a := claimed("node-a", "10.0.0.0/26", confirmed)
	req := containerRequest("node-a", "new", clock)
	for b.Loop() {
		parsed, err := ParseBlock(block.obj)
		errtest.Must(b, err)
		st := &State{Now: clock, Config: DefaultConfig(), Pools: []Pool{p}, Affinities: []*api.BlockAffinity{a}}
		st.Blocks = map[netip.Prefix]*Block{parsed.cidr: parsed}
		if _, err := PlanAssign(st, &req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRelease(b *testing.B) {
	block := halfFull()
	handle := fmt.Sprintf("k8s-pod-network.%064d", 7)
	h := storedHandle(handle, "10.0.0.0/26=1")
	for b.Loop() {
		parsed, err := ParseBlock(block.obj)
		errtest.Must(b, err)
		if _, freed := PlanRelease(h, Owner{Handle: h.Spec.HandleID}, []*Block{parsed}, Cooldown{}); len(freed) != 1 {
			b.Fatal(freed)
		}
	}
}

// The walk over a large pool in which all but the last blocks are taken.
func BenchmarkClaimInLargePool(b *testing.B) {
	p := pool(b, "pool-a", "10.0.0.0/12", func(p *api.IPPool) { p.Spec.BlockSize = 26 })
	st := &State{Now: clock, Config: DefaultConfig(), Pools: []Pool{p}, HaveTaken: true}
	for i := range p.blockCount() - 1 {
		st.Taken = append(st.Taken, p.block((startBlock("node-a")+i)%p.blockCount()))
	}
	req := containerRequest("node-a", "new", clock)
	for b.Loop() {
		if _, err := PlanAssign(st, &req); err != nil {
			b.Fatal(err)
		}
	}
}
