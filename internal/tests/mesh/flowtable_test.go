package mesh

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// answers is the port of an echo server in a pod.
const answers = 7400

// beside runs a stage of the test during a connection in the flowtable, which must lose nothing.
func (n *tunnelled) beside(t *testing.T, stage func(*testing.T)) {
	t.Helper()
	c := n.converse(t)
	stage(t)
	c.intact(t)
}

// conversation is a UDP flow with a reply to each packet, as the flowtable requires.
type conversation struct {
	sent, answered atomic.Int64
	stop           chan struct{}
}

// converse begins a conversation between pods of the first two nodes, and returns when both have it in their
// flowtables. It ends with the test at the latest.
func (n *tunnelled) converse(t *testing.T) *conversation {
	t.Helper()
	from, server := n.always[0], netip.AddrPortFrom(n.always[1].V4, answers)
	conn := from.ListenUDP(t, netip.AddrPortFrom(from.V4, 0).String())
	c := &conversation{stop: make(chan struct{})}
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-t.Context().Done():
				return
			case <-tick.C:
				// A failed send gets no reply.
				_, _ = conn.WriteToUDPAddrPort([]byte("are you there"), server)
				c.sent.Add(1)
			}
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
			c.answered.Add(1)
		}
	}()
	port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
	meshtest.Eventually(t, func() error { return n.offloaded(fmt.Sprintf("src=%s dst=%s sport=%d ", from.V4, server.Addr(), port)) })
	return c
}

// intact ends the conversation, and fails the test if a packet has no reply.
func (c *conversation) intact(t *testing.T) {
	t.Helper()
	close(c.stop)
	meshtest.Eventually(t, func() error {
		if lost := c.sent.Load() - c.answered.Load(); lost != 0 {
			return fmt.Errorf("%d of %d packets have no answer", lost, c.sent.Load())
		}
		return nil
	})
	t.Logf("%d exchanges of a connection in the flowtable", c.sent.Load())
}

// offloaded returns an error unless the first two nodes have a connection, as the kernel shows it, in their flowtables.
func (n *tunnelled) offloaded(connection string) error {
	for _, node := range n.nodes[:2] {
		text, err := node.Try("cat", "/proc/net/nf_conntrack")
		found := false
		for line := range strings.Lines(text) {
			found = found || strings.Contains(line, connection) && strings.Contains(line, "[OFFLOAD]")
		}
		if !found {
			return fmt.Errorf("%s does not have %sin its flowtable (%w):\n%s", node.Name, connection, err, text)
		}
	}
	return nil
}
