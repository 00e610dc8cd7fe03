package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// The ruleset decides as the reference does on what host endpoints receive, send and forward.
func TestHosts(t *testing.T) {
	judged, enough := 0, 40_000
	if testing.Short() {
		enough = 10_000
	}
	denied := map[policy.Stage]int{}
	for s := *seed; judged < enough; s++ {
		g := policytest.NewGenerator(s)
		c := g.HostCluster()
		v := newHostView(c)
		for _, p := range g.CalicoPackets(c, perCluster) {
			for _, at := range judgedAt {
				judged++
				if !v.host(at, p).Allow {
					denied[at.stage]++
				}
				if v.wrongHost(at, p) != "" {
					t.Fatal(report(s, c, p, func(c *policytest.Cluster) string { return newHostView(c).wrongHost(at, p) }))
				}
			}
		}
	}
	for stage := range policy.Stages {
		if n := denied[stage]; n == 0 && !testing.Short() {
			t.Errorf("stage %d: %d of %d are denied", stage, n, judged)
		}
	}
}

// place is where a host endpoint judges packets.
type place struct {
	link  string
	stage policy.Stage
	policy.Direction
}

// judgedAt are all places: of a link that can have a host endpoint of its own, of one that cannot, and of a pod's link
// where the host endpoint of all links judges.
var judgedAt = func() (all []place) {
	for stage := range policy.Stages {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			all = append(all, place{policytest.Uplink, stage, d}, place{second, stage, d})
			if stage == policy.Forwarded || stage == policy.Untranslated {
				all = append(all, place{policytest.Link(0), stage, d})
			}
		}
	}
	return all
}()

func newHostView(c *policytest.Cluster) view {
	state := c.State()
	state.Node, state.Host = policytest.Node, policytest.Failsafes
	state.Interfaces = map[string][]netip.Addr{policytest.Uplink: nil}
	for _, a := range c.Nodes[0].Status.Addresses[1:] {
		state.Interfaces[policytest.Uplink] = append(state.Interfaces[policytest.Uplink], netip.MustParseAddr(a.Address))
	}
	selection := policy.Select(state)
	return view{c, state, selection.Compile(), policy.NewJudge(selection, state.Pods)}
}

// judged returns the verdict in flow records on a packet.
func (v view) judged(at place, p policytest.Packet) policy.Verdict {
	own, peer := p.To, p.From
	if at.Direction == policy.Egress {
		own, peer = peer, own
	}
	judged, _ := v.judge.JudgeHost(at.link, at.stage, at.Direction, own, peer, coreOf(p))
	return judged.Verdict
}

func (v view) host(at place, p policytest.Packet) policy.Verdict {
	own, peer := p.To, p.From
	if at.Direction == policy.Egress {
		own, peer = peer, own
	}
	return v.DecideHost(at.link, at.stage, at.Direction, own, peer, coreOf(p))
}

func (v view) wrongHost(at place, p policytest.Packet) string {
	h, got := v.Governs(at.link, at.stage), v.host(at, p)
	if h == nil && !got.Allow {
		return fmt.Sprintf("%v without a host endpoint: %+v", at, got)
	}
	if h == nil {
		return ""
	}
	want := v.JudgeHost(h, at.stage, at.Direction == policy.Ingress, p)
	id := by(want)
	if id == (policy.ID{}) && !want.Allow {
		id = policy.ID{Kind: policy.KindHostEndpoint, Name: h.Name}
	}
	final := (at.stage == policy.Untracked || at.stage == policy.Untranslated) && want.Allow && want.Kind != ""
	if got.Final != final || got.NoTrack != (final && at.stage == policy.Untracked) || got.Allow != want.Allow || !got.Allow && got.By != id {
		return fmt.Sprintf("%v of host endpoint %s: %+v, the reference says %+v", at, h.Name, got, want)
	}
	if judged := v.judged(at, p); judged != got {
		return fmt.Sprintf("%v of host endpoint %s: judged as %+v, but it is %+v", at, h.Name, judged, got)
	}
	return ""
}

// hostClusters times perCluster packets go through a kernel.
const hostClusters = 80

// Packets arrive exactly where the policies of pods and of the host endpoint allow them: to and from the node, and
// through it.
func TestHostPackets(t *testing.T) {
	n, sent, lost := newNode(t), 0, 0
	for s := *seed; s < *seed+hostClusters; s++ {
		g := policytest.NewGenerator(s)
		c := g.HostCluster()
		n.becomeHost(t, c)
		packets := onWire(c, withHost(c, g.CalicoPackets(c, perCluster)))
		sent += len(packets)
		for _, p := range packets {
			if !c.HostAllows(p) {
				lost++
			}
		}
		if p, wrong := n.tryHost(t, c, packets); wrong != "" {
			t.Fatal(report(s, c, p, func(c *policytest.Cluster) string {
				if len(c.HostEndpoints) == 0 {
					return ""
				}
				n.becomeHost(t, c)
				_, wrong := n.tryHost(t, c, []policytest.Packet{p})
				return wrong
			}))
		}
	}
	if sent < 1000 || lost < 100 {
		t.Errorf("only %d packets were sent, %d of which host endpoints deny", sent, lost)
	}
	t.Logf("%d packets, of which host endpoints deny %d", sent, lost)
}

func (n *node) becomeHost(t *testing.T, c *policytest.Cluster) {
	t.Helper()
	v := newHostView(c)
	n.sync(t, &v.Ruleset, nil)
	n.Own(t, c)
	n.Forget(t)
}

// withHost returns packets, some of them to or from the node instead of a pod, and these to or from a failsafe port,
// without packets for which a rig would choose a port. No two are of one connection.
func withHost(c *policytest.Cluster, all []policytest.Packet) []policytest.Packet {
	own := func(a netip.Addr) netip.Addr {
		for _, text := range c.Nodes[0].Status.Addresses {
			if b, err := netip.ParseAddr(text.Address); err == nil && b.Is4() == a.Is4() {
				return b
			}
		}
		return a
	}
	for i := range all {
		if p := &all[i]; i%3 == 0 && c.Place(p.From) == policytest.Uplink {
			p.To = own(p.To)
			toFailsafe(i, p, policytest.Failsafes.Inbound, policytest.Failsafes.Outbound)
		} else if i%3 == 0 && c.Place(p.To) == policytest.Uplink {
			p.From = own(p.From)
			toFailsafe(i, p, policytest.Failsafes.Outbound, policytest.Failsafes.Inbound)
		}
	}
	seen := map[policytest.Packet]bool{}
	return slices.DeleteFunc(all, func(p policytest.Packet) bool {
		back := p
		back.From, back.To, back.Port, back.SourcePort = p.To, p.From, p.SourcePort, p.Port
		known := seen[p] || seen[back]
		seen[p] = true
		return known || p.SourcePort == 0 && slices.Contains([]uint8{policytest.TCP, policytest.UDP, policytest.SCTP}, p.Protocol)
	})
}

// toFailsafe sends every second packet to a failsafe port of its protocol, and the others from one, as answers are
// sent.
func toFailsafe(i int, p *policytest.Packet, to, from []policy.Failsafe) {
	port, ports := &p.Port, to
	if i%2 == 1 {
		port, ports = &p.SourcePort, from
	}
	if at := slices.IndexFunc(ports, func(f policy.Failsafe) bool { return f.Protocol == p.Protocol }); at >= 0 {
		*port = ports[at].Port
	}
}

func (n *node) tryHost(t *testing.T, c *policytest.Cluster, packets []policytest.Packet) (policytest.Packet, string) {
	t.Helper()
	passes := func(p policytest.Packet) bool { return c.Allowed(p, policytest.Node) && c.HostAllows(p) }
	numbers, came := make([]uint64, len(packets)), map[uint64]string{}
	var expected []uint64
	for i, p := range packets {
		var err error
		if numbers[i], err = n.Send(c.Place(p.From), p); err != nil && !errors.Is(err, unix.EPERM) { // EPERM: denied
			t.Fatal(err)
		}
		if passes(p) {
			expected = append(expected, numbers[i])
		}
	}
	n.Await(came, expected)
	for i, p := range packets {
		if _, arrived := came[numbers[i]]; arrived != passes(p) {
			return p, fmt.Sprintf("arrived %v, not %v", arrived, passes(p))
		}
	}
	return policytest.Packet{}, ""
}
