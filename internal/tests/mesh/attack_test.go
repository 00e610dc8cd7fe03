package mesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// theft is two honest nodes with traffic between their pods, and a third Node with a stolen token. That Node is older
// and has the lesser name, and no agent reverts changes of it.
type theft struct {
	*meshtest.Cluster
	thief, victim, watcher *meshtest.Node
	packets                meshtest.Traffic
	before                 []string // routes of the watcher
}

const thiefBlock = "10.90.66.0/26"

func newTheft(t *testing.T) *theft {
	t.Helper()
	c := meshtest.NewCluster(t)
	pool := meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever)
	pool.Spec.VXLANMode = api.EncapAlways
	c.Create(t, pool)
	th := &theft{Cluster: c, thief: c.NewNode(t, "aaa-thief", 0, 66)}
	th.thief.Claim(t, thiefBlock)
	th.annotate(t, api.AnnotationIPv4Address, "172.31.1.66/24")
	th.annotate(t, api.AnnotationIPv4VXLANAddr, "10.90.66.1")
	th.later(t)
	var pods []*meshtest.Pod
	for number, n := range map[int]**meshtest.Node{11: &th.victim, 12: &th.watcher} {
		var pod *meshtest.Pod
		*n, pod = c.NewNodeWithPod(t, 0, number)
		pods = append(pods, pod)
	}
	meshtest.Start(t, th.victim, th.watcher)
	meshtest.Eventually(t, func() error {
		for _, route := range []string{"10.90.11.0/26 via 10.90.", thiefBlock + " via 10.90.66.1"} {
			if err := th.watcher.Has(t, route); err != nil {
				return err
			}
		}
		// For each honest node there are the pods' block and the tunnel address's block, and the victim's VTEP: the watcher
		// may learn its own block after others.
		if th.before = th.routes(t); len(th.before) != 5 {
			return fmt.Errorf("%s has %q, want two routes of each node and a neighbour", th.watcher.Name, th.before)
		}
		return th.victim.Has(t, "10.90.12.0/26 via 10.90.")
	})
	th.packets = meshtest.StartTraffic(t, pods[0], pods[1])
	return th
}

// later waits until new objects have a later timestamp than existing ones: timestamps are in seconds.
func (th *theft) later(t *testing.T) {
	t.Helper()
	now := func() string {
		probe := &api.IPAMHandle{Meta: api.Meta{Name: "later"}, Spec: api.IPAMHandleSpec{HandleID: "later", Block: map[string]int{}}}
		th.Create(t, probe)
		th.Remove(t, &api.IPAMHandle{Meta: api.Meta{Name: "later"}})
		return probe.CreationTimestamp
	}
	began := now()
	meshtest.Eventually(t, func() error {
		if is := now(); is <= began {
			return fmt.Errorf("the API server's time is still %s", is)
		}
		return nil
	})
}

// annotate sets an annotation of the thief's Node.
func (th *theft) annotate(t *testing.T, key, text string) {
	t.Helper()
	th.thief.Annotate(t, key, &text)
}

// routes returns the watcher's routes, without those to the thief's own block.
func (th *theft) routes(t *testing.T) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(th.watcher.Routes(t) + th.watcher.Run(t, "ip", "neigh", "show", "dev", vxlan.Device4)) {
		if !strings.Contains(line, "10.90.66.") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}

// inVain fails the test unless the watcher's routes are unchanged, apart from more.
func (th *theft) inVain(t *testing.T, what string, more ...string) {
	t.Helper()
	want := slices.Sorted(slices.Values(append(more, th.before...)))
	if now := th.routes(t); !slices.Equal(now, want) {
		t.Errorf("after %s:\n%s\nwant\n%s", what, strings.Join(now, "\n"), strings.Join(want, "\n"))
	}
}

// Annotations of a node on its own Node take neither addresses nor tunnel endpoints from other nodes.
func TestStolenAnnotations(t *testing.T) {
	t.Parallel()
	th := newTheft(t)
	victim := &api.Node{Meta: api.Meta{Name: th.victim.Name}}
	errtest.Must(t, th.Store.Get(t.Context(), victim))
	end := victim.Annotations[api.AnnotationIPv4VXLANAddr]
	for _, lie := range []struct{ key, text, after, says string }{
		{api.AnnotationIPv4VXLANAddr, end, "10.90.66.1", "its end of VXLAN tunnels, " + end + ", lies in none of its blocks"},
		{api.AnnotationVXLANMAC, vxlan.MACOf(th.victim.Name, false).String(), "", "has the MAC of node " + th.victim.Name},
		{api.AnnotationIPv4Address, th.victim.Prefix.String(), "172.31.1.66/24",
			"its address " + th.victim.Prefix.Addr().String() + " is that of node " + th.victim.Name},
	} {
		th.annotate(t, lie.key, lie.text)
		reports(t, th.watcher, "Node aaa-thief: ", lie.says)
		th.inVain(t, lie.key)
		if lie.after == "" {
			th.thief.Annotate(t, lie.key, nil)
		} else {
			th.annotate(t, lie.key, lie.after)
		}
		meshtest.Eventually(t, func() error { return th.watcher.Has(t, thiefBlock+" via 10.90.66.1") })
	}
	// A new agent has only the earlier agent's persisted state.
	th.annotate(t, api.AnnotationIPv4Address, th.victim.Prefix.String())
	th.annotate(t, api.AnnotationASNumber, "65009")
	reports(t, th.watcher, "Node aaa-thief: its address")
	th.watcher.Signal(t, 9)
	th.watcher.RemoveState(t)
	th.watcher.Start(t, meshtest.Build)
	reports(t, th.watcher, "Node aaa-thief: its address")
	meshtest.Eventually(t, func() error { return th.watcher.Settled(1) })
	th.inVain(t, "a restart")
	th.packets.Intact(t)

	// A node joins, and its address is already claimed.
	late := th.NewNode(t, "late", 0, 13)
	th.annotate(t, api.AnnotationIPv4Address, late.Prefix.String())
	meshtest.Eventually(t, func() error { return th.thief.Annotated(t, api.AnnotationIPv4Address, late.Prefix.String()) })
	meshtest.Eventually(t, func() error { // others trust it
		r, err := th.watcher.Status()
		if err == nil && !slices.ContainsFunc(r.Peers, func(p nodestatus.Peer) bool { return p.Address == late.Prefix.Addr().String() }) {
			err = fmt.Errorf("%s has no peer at %s: %+v", th.watcher.Name, late.Prefix.Addr(), r.Peers)
		}
		return err
	})
	late.Claim(t, "10.90.13.0/26")
	meshtest.Start(t, late)
	meshtest.Eventually(t, func() error { return th.watcher.Has(t, "10.90.13.0/26 via 10.90.") })
}

// Pools and affinities take neither addresses of the network between the nodes nor blocks that others own later.
func TestStolenRanges(t *testing.T) {
	t.Parallel()
	th := newTheft(t)
	claims := func(cidrs ...string) {
		t.Helper()
		for _, cidr := range cidrs {
			th.Create(t, meshtest.NewAffinity(th.thief.Name, cidr))
		}
	}
	evil := meshtest.NewPool("evil", "172.31.1.0/24", api.EncapNever)
	evil.Spec.BlockSize, evil.Spec.VXLANMode, evil.Spec.NodeSelector = 32, api.EncapAlways, "!all()"
	th.Create(t, evil)
	claims(th.victim.Prefix.Addr().String()+"/32", th.watcher.Prefix.Addr().String()+"/32", "172.31.1.1/32")
	reports(t, th.watcher, "IPPool evil: spec.cidr 172.31.1.0/24 shares addresses with 172.31.1.0/24")
	reports(t, th.watcher, "BlockAffinity: "+th.victim.Prefix.Addr().String()+"/32 via 172.31.1.66", "a node")
	reports(t, th.watcher, "BlockAffinity: 172.31.1.1/32 via 172.31.1.66", "it holds a gateway of this host 172.31.1.1")
	th.inVain(t, "a pool over the nodes' network")

	claims("10.90.99.70/32", "10.90.99.96/27", "10.90.0.0/16", "0.0.0.0/0")
	th.later(t) // the honest affinity is younger
	th.victim.Claim(t, "10.90.99.64/26")
	reports(t, th.watcher, "spec.cidr 10.90.99.96/27 of node aaa-thief is no block of IPPool pods (/26)")
	line := ""
	meshtest.Eventually(t, func() error {
		for have := range strings.Lines(th.watcher.Routes(t)) {
			if strings.HasPrefix(have, "10.90.99.64/26 via 10.90.") {
				line = strings.TrimSpace(have)
				return nil
			}
		}
		return fmt.Errorf("%s has no route to the block", th.watcher.Name)
	})
	th.inVain(t, "claims of parts", line)

	// An affinity of a whole block without an IPAMBlock: IPAM reads blocks, so the next node may claim it, and the block
	// then records the owner.
	claims("10.90.98.64/26")
	th.later(t)
	th.Create(t, &api.IPAMBlock{Meta: api.Meta{Name: "10-90-98-64-26"}, Spec: api.IPAMBlockSpec{
		CIDR: "10.90.98.64/26", Affinity: ptr("host:" + th.victim.Name), Allocations: make([]*int, 64), Unallocated: []int{},
		SequenceNumberForAllocation: map[string]uint64{}, Attributes: []api.AllocationAttribute{},
	}})
	th.victim.Claim(t, "10.90.98.64/26")
	own := strings.Replace(line, "10.90.99.64/26", "10.90.98.64/26", 1)
	meshtest.Eventually(t, func() error { return th.watcher.Has(t, own) })
	reports(t, th.watcher, "block 10.90.98.64/26 of node aaa-thief is node "+th.victim.Name+"'s, by its IPAMBlock")
	th.inVain(t, "a claim without a block", line, own)
	th.watcher.Signal(t, 9)
	th.watcher.RemoveState(t)
	th.watcher.Start(t, meshtest.Build)
	reports(t, th.watcher, "block 10.90.98.64/26 of node aaa-thief is node "+th.victim.Name+"'s, by")
	th.inVain(t, "a restart", line, own)
	th.packets.Intact(t)

	// A block from a time with a smaller block size is in use.
	handle := "old"
	old := &api.IPAMBlock{Meta: api.Meta{Name: "10-90-66-64-28"}, Spec: api.IPAMBlockSpec{
		CIDR: "10.90.66.64/28", Affinity: ptr("host:aaa-thief"), Allocations: make([]*int, 16), Unallocated: []int{},
		SequenceNumberForAllocation: map[string]uint64{}, Attributes: []api.AllocationAttribute{{HandleID: &handle}},
	}}
	th.Create(t, old)
	claims("10.90.66.64/28")
	meshtest.Eventually(t, func() error { return th.watcher.Has(t, "10.90.66.64/28 via 10.90.66.1") })
}

// reports waits until a node reports a problem that contains all parts.
func reports(t *testing.T, n *meshtest.Node, parts ...string) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		r, err := n.Status()
		if err != nil {
			return err
		}
		for _, problem := range r.Problems {
			missing := false
			for _, part := range parts {
				missing = missing || !strings.Contains(problem, part)
			}
			if !missing {
				return nil
			}
		}
		return fmt.Errorf("%s reports %q, want a problem with %q", n.Name, r.Problems, parts)
	})
}
