package mesh

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// bfdSetting is the annotation of the tests. bfdDetection is how long it allows a peer to be silent: longer than agents
// that start on a busy machine are.
const (
	bfdSetting   = "5x300ms"
	bfdDetection = 1500 * time.Millisecond
)

// eachPeer waits until a node has sessions and check returns nil for each.
func eachPeer(t testing.TB, n *meshtest.Node, check func(nodestatus.Peer) error) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		r, err := n.Status()
		if err == nil && len(r.Peers) == 0 {
			err = errors.New("no sessions")
		}
		for _, p := range r.Peers {
			if err := check(p); err != nil {
				return fmt.Errorf("%s: session with %s is %s (%s), BFD %+v: %w", n.Name, p.Address, p.State, p.LastError, p.BFD, err)
			}
		}
		return err
	})
}

// watched waits until both nodes have a number of sessions, BFD watches them, and no state of an earlier agent is left.
func (p *pair) watched(t testing.TB, sessions int) {
	t.Helper()
	for _, n := range p.nodes() {
		eachPeer(t, n, func(p nodestatus.Peer) error {
			if p.State != "Established" || p.BFD == nil || p.BFD.State != "Up" || p.BFD.Detection != bfdDetection.Seconds() {
				return errors.New("want it watched")
			}
			return nil
		})
		meshtest.Eventually(t, func() error { return n.Settled(sessions) })
	}
}

// lostByBFD returns nil if BFD has ended the last session and there is no new one. On a busy machine BFD may end it
// early. LastError may soon be why the next one does not come up, so that it checks Ends.
func lostByBFD(p nodestatus.Peer) error {
	last := slices.IndexFunc(p.Ends, func(e nodestatus.End) bool { return !e.Since.IsZero() })
	if p.State != "Established" && last >= 0 && strings.Contains(p.Ends[last].Reason, "BFD is down: Control Detection Time Expired") {
		return nil
	}
	return fmt.Errorf("want it ended by BFD: %+v", p.Ends)
}

// killed kills the first node's agent and restarts it; if late only when the other's BFD has detected it. BFD ends no
// session.
func (p *pair) killed(t testing.TB, sessions int, late bool) {
	t.Helper()
	p.a.Signal(t, syscall.SIGKILL)
	if late {
		eachPeer(t, p.b, func(p nodestatus.Peer) error {
			if p.BFD == nil || p.BFD.State != "Down" {
				return errors.New("want BFD down")
			}
			return nil
		})
	}
	p.a.Start(t, meshtest.Build)
	p.watched(t, sessions)
	eachPeer(t, p.b, func(peer nodestatus.Peer) error {
		if strings.Contains(peer.LastError, "BFD") {
			t.Errorf("the session of %s with %s was ended by BFD: %s", p.b.Name, peer.Address, peer.LastError)
		}
		return nil
	})
}

// BFD watches the mesh. It ends with the agent while the kernel goes on forwarding, so that its end loses no packet and
// changes no route. A node that is silent as a whole is detected; there is no other path to its pods, so routes stay.
func TestBFD(t *testing.T) {
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Dual = true
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever), meshtest.NewPool("pods6", "fd90::/64", api.EncapNever),
		&api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName, Annotations: map[string]string{api.AnnotationBFD: bfdSetting}}})
	p := newPair(t, c, 0)
	meshtest.Start(t, p.nodes()...)
	p.watched(t, 2)
	monitors := []*monitor{listen(t, p.a), listen(t, p.b)}
	packets := p.traffic(t)
	p.killed(t, 2, false)
	p.killed(t, 2, true)
	p.stopped(t)
	packets.Intact(t)
	unchanged(t, monitors...)

	p.silent(t)
	packets = meshtest.StartTraffic(t, p.podB, p.borrower)
	packets.Onward(t, 500*time.Millisecond)
	packets.Intact(t)
}

// stopped stops the first node's agent, whose connections stay, until BFD has ended its sessions.
func (p *pair) stopped(t testing.TB) {
	t.Helper()
	errtest.Must(t, p.a.Cmd.Process.Signal(syscall.SIGSTOP))
	eachPeer(t, p.b, lostByBFD)
	errtest.Must(t, p.a.Cmd.Process.Signal(syscall.SIGCONT))
	p.watched(t, 2)
}

// silent cuts off the first node until BFD, and not the hold timer, has ended the second one's sessions.
func (p *pair) silent(t testing.TB) {
	t.Helper()
	link := func(state string) { p.a.Fabric.Run(t, "ip", "link", "set", "p0-10", state) }
	link("down")
	eachPeer(t, p.b, lostByBFD)
	for _, route := range []string{"10.90.10.0/26 via 172.31.1.10", "10.90.11.9 via 172.31.1.10"} {
		errtest.Must(t, p.b.Has(t, route))
	}
	link("up")
	p.watched(t, 2)
}

// BFD of the mesh watches nodes in the same subnet. The session with a node behind a router stays up without BFD, and a
// problem names the node, also as the peer of a BGPPeer; without the annotation there is none.
func TestBFDAcrossSubnets(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := meshtest.NewCluster(t)
	asked := map[string]string{api.AnnotationBFD: "3x300ms"}
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever),
		&api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName, Annotations: asked}})
	n, near, far := c.NewNode(t, "node", 0, 20), c.NewNode(t, "near", 0, 21), c.NewNode(t, "far", 1, 22)
	meshtest.Start(t, n, near, far)
	named := func(object string) {
		t.Helper()
		meshtest.Within(t, 2*meshtest.Patience, func() error { return namesFar(n, far, object) })
	}
	named("BGPConfiguration default")

	peer := newBGPPeer("far", far.Prefix.Addr().String(), func(s *api.BGPPeerSpec) { s.Node, s.ASNumber, s.SourceAddress = n.Name, 64512, "" })
	peer.Annotations = asked
	c.Create(t, peer)
	named("BGPPeer far")

	errtest.Must(t, c.Store.Get(t.Context(), peer))
	peer.Annotations = nil
	errtest.Must(t, c.Store.Update(t.Context(), peer))
	named("")
}

// namesFar returns an error unless a node's BFD with near is up, and with far is not, and a problem names object;
// empty: far has no BFD.
func namesFar(n, far *meshtest.Node, object string) error {
	r, err := n.Status()
	if err != nil {
		return err
	}
	var text strings.Builder
	if err := r.WritePeers(&text); err != nil {
		return err
	}
	states := map[string]string{}
	for _, p := range r.Peers {
		if states[p.Node] = p.State; p.BFD != nil {
			states[p.Node] += " " + p.BFD.State
		}
	}
	want := map[string]string{"near": "Established Up", "far": "Established"}
	const cause = "it is in no subnet of this node, and BFD works over one hop only"
	problem := fmt.Sprintf("%s: annotation tortie.io/bfd: no packets come from peer %s: %s", object, far.Prefix.Addr(), cause)
	problems := strings.Join(r.Problems, "\n")
	shown := strings.Contains(problems, problem) && strings.Contains(text.String(), cause)
	if object != "" {
		want["far"] += " Down"
	} else {
		shown = !strings.Contains(problems+text.String(), cause)
	}
	if !shown || states["near"] != want["near"] || states["far"] != want["far"] {
		return fmt.Errorf("sessions %v, want %v; problems %s, want %q; node peers:\n%s", states, want, problems, problem, text.String())
	}
	return nil
}
