package policy

import (
	"slices"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// While the engine goes from one ruleset to another, what both let through goes through, and what neither does never
// comes.
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
					t.Errorf("-seed %d: of %d packets %s, whose fate the old and the new ruleset agree on, %d were lost and %d came through\n%s", s,
						len(numbers), p, lost, leaked, h)
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

// unchanged changes a cluster, and returns packets whose fate is the same before and after.
func unchanged(h history) (may, mayNot []policytest.Packet) {
	packets := onWire(h.Cluster, h.Packets(h.Cluster, 2*perCluster))
	before := map[policytest.Packet]bool{}
	for _, p := range packets {
		before[p] = h.Allowed(asSent(p), policytest.Node)
	}
	for h.changePolicy() && h.IntN(3) > 0 {
	}
	for p, allowed := range before {
		if now := h.Allowed(asSent(p), policytest.Node); now && allowed {
			may = append(may, p)
		} else if !now && !allowed {
			mayNot = append(mayNot, p)
		}
	}
	return may, mayNot
}

// asSent is a packet with a source port like those that the rig chooses, none of which a generated rule tells from the
// others: Calico's rules read it.
func asSent(p policytest.Packet) policytest.Packet {
	if p.Protocol == policytest.UDP || p.Protocol == policytest.TCP || p.Protocol == policytest.SCTP {
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
