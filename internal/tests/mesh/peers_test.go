package mesh

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// Sessions may be lost, fail to come up, be reset, or have an unresponsive peer, without packet loss or failed probes.
func TestPeers(t *testing.T) {
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	p := newPair(t, c, 0)
	all := append(p.nodes(), newPair(t, c, 1).nodes()...)
	meshtest.Start(t, all...)
	meshtest.Settle(t, all...)

	t.Run("port", func(t *testing.T) {
		packets := p.traffic(t)
		p.a.Run(t, "nft", "add table inet closed; add chain inet closed in { type filter hook input priority 0; }; "+
			"add chain inet closed out { type filter hook output priority 0; }; "+
			"add rule inet closed in tcp dport 179 drop; add rule inet closed out tcp dport 179 drop")
		// Without a restart, nothing happens before the hold time expires.
		p.a.Signal(t, syscall.SIGKILL)
		p.a.Start(t, meshtest.Build)
		meshtest.Eventually(t, func() error { return p.a.Probe("/readyz") })
		meshtest.Eventually(t, func() error { return p.a.SettledWithoutPeers() })
		packets.Onward(t, 7*time.Second)
		p.a.Run(t, "nft", "delete", "table", "inet", "closed")
		meshtest.Settle(t, all...)
		packets.Intact(t)
	})

	t.Run("password", func(t *testing.T) {
		packets := p.traffic(t)
		for _, password := range []string{"one", "another"} {
			changed := time.Now()
			c.SetPassword(t, password)
			// Sessions are established again, which needs the same password at both ends.
			meshtest.Eventually(t, func() error {
				for _, n := range all {
					if err := n.SessionsSince(changed, len(all)-1); err != nil {
						return err
					}
				}
				return nil
			})
			for _, n := range all {
				if text := n.Tail(1 << 20); strings.Contains(text, "pass-"+password) {
					t.Errorf("%s has the password in its log", n.Name)
				}
			}
		}
		meshtest.Settle(t, all...)
		packets.Intact(t)
	})

	t.Run("stopped peer", func(t *testing.T) {
		packets := p.traffic(t)
		// A stopped process keeps its connections, and the kernel accepts new ones, but neither is answered.
		stopped := all[2]
		errtest.Must(t, stopped.Cmd.Process.Signal(syscall.SIGSTOP))
		for range 2 {
			for _, path := range []string{"/livez", "/readyz"} {
				meshtest.Eventually(t, func() error { return p.a.Probe(path) })
			}
			// Again, for an agent that has never had a session with it.
			p.a.Signal(t, syscall.SIGTERM)
			p.a.Start(t, meshtest.Build)
		}
		meshtest.Eventually(t, func() error { return p.a.Probe("/readyz") })
		meshtest.Eventually(t, func() error { return p.b.Probe("/readyz") })
		packets.Onward(t, 2*time.Second)
		errtest.Must(t, stopped.Cmd.Process.Signal(syscall.SIGCONT))
		meshtest.Settle(t, all...)
		packets.Intact(t)
	})

	t.Run("peers", func(t *testing.T) {
		packets := p.traffic(t)
		// First a session without routes in use, then all sessions of the first node.
		for _, n := range all[2:] {
			n.Signal(t, syscall.SIGKILL)
			packets.Onward(t, 2*time.Second)
		}
		p.b.Signal(t, syscall.SIGKILL)
		if err := p.a.Probe("/readyz"); err != nil {
			t.Error(err)
		}
		packets.Onward(t, tier.Size(5*time.Second, 20*time.Second))
		for _, path := range []string{"/livez", "/readyz"} {
			if err := p.a.Probe(path); err != nil {
				t.Error(err)
			}
		}
		for _, n := range all[1:] {
			n.Start(t, meshtest.Build)
		}
		meshtest.Settle(t, all...)
		packets.Intact(t)
	})
}

// TestMeshPeerDown drops BGP at one node, as a firewall does: the others report it on its Node, with one text, and so
// does the node.
func TestMeshPeerDown(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	var nodes []*meshtest.Node
	for i := range 3 {
		n, _ := c.NewNodeWithPod(t, 0, 10+i)
		n.Start(t, meshtest.Build)
		nodes = append(nodes, n)
	}
	meshtest.Settle(t, nodes...)
	bad := nodes[2]
	bad.Run(t, "nft", "add table inet hostfw; add chain inet hostfw i { type filter hook input priority -10; }; add chain inet hostfw o { "+
		"type filter hook output priority -10; }; add rule inet hostfw i tcp dport 179 drop; add rule inet hostfw i tcp sport 179 drop")
	text := fmt.Sprintf("other nodes have no BGP session with %s at %s: ", bad.Name, bad.Prefix.Addr())
	meshtest.Within(t, 4*meshtest.Patience, func() error { // the hold time and as much again
		return errors.Join(bad.HasEvent(t, "Node", bad.Name, "PeerDown", bad, bad.Name+" has no BGP session with any of 2 nodes"),
			either(bad.HasEvent(t, "Node", bad.Name, "PeerDown", nodes[0], text), bad.HasEvent(t, "Node", bad.Name, "PeerDown", nodes[1], text)))
	})
	for _, n := range nodes[:2] {
		if events := n.Events(t, "Node", n.Name); hasReason(events, "PeerDown") {
			t.Errorf("a node that BGP reaches is blamed: %+v", events)
		}
	}
}

// either is nil if one of two is.
func either(a, b error) error {
	if a == nil || b == nil {
		return nil
	}
	return errors.Join(a, b)
}
