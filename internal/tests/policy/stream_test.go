package policy

import (
	"slices"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// While the engine changes from one ruleset to another, packets that both allow pass, and packets that one end denies
// in both never pass. No node can do better: the kernel reads the generation at each base chain. A packet may have the
// old verdict of its source and the new one of its destination, which together allow what each ruleset denies.
func TestBetweenTransactions(t *testing.T) {
	n, sent, changes := newNode(t), 0, 0
	for s := *seed; s < *seed+30; s++ {
		h := newHistory(s)
		n.become(t, h.Cluster)
		for range 5 {
			may, mayNot := unchanged(h)
			compiled := policy.Compile(h.State())
			streams := n.stream(t, h.Cluster, slices.Concat(may, mayNot), func() { n.sync(t, &compiled.Ruleset, nil) })
			came := map[uint64]string{}
			var expected []uint64
			for _, p := range may {
				expected = append(expected, streams[p]...)
			}
			n.Await(came, expected)
			for p, numbers := range streams {
				sent += len(numbers)
				lost, leaked := count(came, numbers, slices.Contains(may, p))
				if lost+leaked > 0 {
					t.Errorf("-seed %d: of %d packets %s, which both rulesets allow, or one end denies in both, %d were lost and %d came through\n%s",
						s, len(numbers), p, lost, leaked, h)
				}
			}
			changes++
			n.Forget(t)
		}
	}
	t.Logf("%d packets during %d changes", sent, changes)
}

// count is how many packets did not come though they may, or came though they may not.
func count(came map[uint64]string, numbers []uint64, may bool) (lost, leaked int) {
	for _, number := range numbers {
		switch _, ok := came[number]; {
		case ok && !may:
			leaked++
		case !ok && may:
			lost++
		}
	}
	return lost, leaked
}

// unchanged changes a cluster, and returns packets that both ends allow before and after, and packets that one end
// denies before and after.
func unchanged(h history) (may, mayNot []policytest.Packet) {
	packets := onWire(h.Cluster, h.Packets(h.Cluster, 2*perCluster))
	before := map[policytest.Packet][2]bool{}
	for _, p := range packets {
		before[p] = verdicts(h, p)
	}
	for h.changePolicy() && h.IntN(3) > 0 {
	}
	for p, was := range before {
		switch is := verdicts(h, p); {
		case was[0] && was[1] && is[0] && is[1]:
			may = append(may, p)
		case !was[0] && !is[0] || !was[1] && !is[1]:
			mayNot = append(mayNot, p)
		}
	}
	return may, mayNot
}

// verdicts returns whether the source and the destination of a packet allow it.
func verdicts(h history, p policytest.Packet) [2]bool {
	source, destination := h.Ends(asSent(p), policytest.Node)
	return [2]bool{source, destination}
}

// asSent returns a packet as the rig sends it, with what Calico's rules read: an echo request, or a source port like
// the rig's, which no generated rule distinguishes.
func asSent(p policytest.Packet) policytest.Packet {
	switch p.Protocol {
	case policytest.ICMP:
		p.Type = 8
	case policytest.ICMPv6:
		p.Type = 128
	case policytest.UDP, policytest.TCP, policytest.SCTP:
		p.SourcePort = 30000
	}
	return p
}

// stream sends packets in turn before, while and after change runs, each of a connection of its own, and returns their
// numbers.
func (n *node) stream(t *testing.T, c *policytest.Cluster, packets []policytest.Packet, change func()) map[policytest.Packet][]uint64 {
	t.Helper()
	numbers, started, done := map[policytest.Packet][]uint64{}, make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for round, last := 0, false; !last; round++ {
			select {
			case <-done:
				last = true
			default:
			}
			if round == 1 {
				close(started)
			}
			for _, p := range packets {
				number, err := n.Send(c.Place(p.From), p)
				if err != nil {
					t.Error(err)
				}
				numbers[p] = append(numbers[p], number)
			}
		}
	})
	<-started
	change()
	close(done)
	running.Wait()
	return numbers
}
