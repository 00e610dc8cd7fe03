package netpol_test

import (
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestFloatingAddresses: policies judge packets to a floating address on the pod's node by the pod's own address, in
// both directions, as Felix does: a floating address does not bypass them.
func TestFloatingAddresses(t *testing.T) {
	c := newCluster(t, 3)
	c.echo(t, 7)
	four, six := addr("10.9.9.9"), addr("fd09::9")
	errtest.Must(t, nat.New(nft.New(c.host.Namespace)).Sync(t.Context(),
		nat.Config{Floating: []nat.Floating{{Addr: four, Pod: pod4(2)}, {Addr: six, Pod: pod6(2)}}}))
	floats := func(passes bool, from int) {
		t.Helper()
		c.want(t, passes, from, four, 7)
		c.want(t, passes, from, six, 7)
	}
	floats(true, 1)
	floats(true, 2) // to itself

	mustSync(t, c.Engine, c.local(2, policy.Ingress, policy.Program{Rest: policy.List{Else: deny("none")}}))
	floats(false, 1)

	rs := c.local(2, policy.Ingress, policy.Program{Rest: bySets(deny("others"), "", 5)})
	rs.Members = map[netip.Addr][]policy.SetID{pod4(1): {5}, pod6(1): {5}}
	mustSync(t, c.Engine, rs)
	floats(true, 1)
	floats(false, 3)

	rs = c.local(1, policy.Egress, policy.Program{Rest: bySets(deny("elsewhere"), "", 6)})
	rs.Members = map[netip.Addr][]policy.SetID{pod4(2): {6}, pod6(2): {6}}
	mustSync(t, c.Engine, rs)
	floats(true, 1)
	rs.Members = map[netip.Addr][]policy.SetID{four: {6}, six: {6}, pod4(3): {6}}
	mustSync(t, c.Engine, rs)
	floats(false, 1)
}
