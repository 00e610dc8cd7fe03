package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// The annotation of a BGPPeer and the Secret that it names make a session with a router that TCP-AO signs. The Secret's
// keys are rolled over while the session stays up.
func TestTCPAOFromSecret(t *testing.T) {
	_, noBIRD := bgptest.AOBirdDir()
	inMachine(t, errors.Join(tcpao.Check(), noBIRD), []string{"-newest", "-bird"}, func(t *testing.T) {
		bgptest.KeepAO(t)
		c := meshtest.NewCluster(t)
		c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
		n := c.NewNode(t, "node", 0, 20)
		n.Claim(t, "10.90.20.0/26")
		router := netnstest.New(t)
		netnstest.Cable(t, router, "eth0", c.Fabric, "router")
		c.Fabric.Run(t, "ip", "link", "set", "router", "master", "br0")
		router.Addr(t, "eth0", "172.31.1.2/24")

		first := bgptest.AOKey{Send: 11, Recv: 1, Secret: "pass-one", Algorithm: "hmac sha1"}
		second := bgptest.AOKey{Send: 12, Recv: 2, Secret: "pass-two", Algorithm: "hmac sha256"}
		preferred := func(k bgptest.AOKey) bgptest.AOKey { k.Use = "preferred;"; return k }
		const one, two = "1/11 hmac-sha1-96 pass-one\n", "2/12 hmac-sha256-96 pass-two\n"
		keys := func(text string) { t.Helper(); c.SetSecret(t, "bgp-keys", "router", text) }

		bird := (&bgptest.Host{NS: router, T: t, V4: netip.MustParseAddr("172.31.1.2")}).AOBird(n.Prefix.Addr(), true, first)
		keys(one)
		peer := newBGPPeer("router", "172.31.1.2", func(s *api.BGPPeerSpec) { s.ASNumber = 65000 })
		peer.Annotations = map[string]string{api.AnnotationTCPAO: "bgp-keys/router"}
		c.Create(t, peer)
		meshtest.Start(t, n)
		meshtest.Eventually(t, func() error { return n.Has(t, "192.0.2.0/24 via 172.31.1.2") })
		meshtest.Eventually(t, func() error {
			if routes := bird.Control("show", "route"); !strings.Contains(routes, "10.90.20.0/26") {
				return fmt.Errorf("BIRD has\n%s", routes)
			}
			return nil
		})
		bird.WaitSigns(11, 1)
		since := session(t, n).Since

		bird.Set(preferred(first), second)
		keys(one + two)
		keys(two + one)
		bird.WaitSigns(12, 1)
		bird.Set(first, preferred(second))
		bird.WaitSigns(12, 2)
		keys(two)
		bird.Set(preferred(second))
		bird.WaitSigns(12, 2)
		if p := session(t, n); p.State != "Established" || !p.Since.Equal(since) || !p.TCPAO || p.LastError != "" {
			t.Errorf("session since %s: %+v", since, p)
		}
		bird.OneSession()
		if text := n.Tail(1 << 20); strings.Contains(text, "pass-") {
			t.Errorf("a secret is in the log:\n%s", text)
		}
	})
}

// session returns a node's only session.
func session(t testing.TB, n *meshtest.Node) nodestatus.Peer {
	t.Helper()
	r, err := n.Status()
	errtest.Must(t, err)
	if len(r.Peers) != 1 {
		t.Fatalf("peers: %+v", r.Peers)
	}
	return r.Peers[0]
}
