package policies_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Where a distant node reaches the API server, and another server.
const apiServerAt, otherAt = "172.30.0.2:6443", "172.30.0.2:80"

// distant is a node that reaches the API server by a link.
type distant struct {
	*node
	cut func() // ends its connections
}

// newDistant puts a cable between a node and the API server.
func newDistant(t *testing.T) *distant {
	t.Helper()
	n := &distant{node: newNode(t)}
	outside := netnstest.New(t)
	netnstest.Cable(t, n.ns, "eth1", outside, "eth0")
	n.ns.Addr(t, "eth1", "172.30.0.1/24")
	outside.Addr(t, "eth0", "172.30.0.2/24")
	server, err := url.Parse(n.api.Host)
	errtest.Must(t, err)
	n.cut = relay(t, outside, apiServerAt, server.Host)
	relay(t, outside, otherAt, server.Host)
	n.api = rest.CopyConfig(n.api)
	n.api.Host, n.api.ServerName = "https://"+apiServerAt, server.Hostname()
	n.api.Dial = func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = n.ns.Conn.Namespace().Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
	return n
}

// relay hands connections on to a server of the test's own namespace.
func relay(t *testing.T, ns *netnstest.NS, at, to string) (cut func()) {
	t.Helper()
	var l net.Listener
	ns.Within(t, func() (err error) { l, err = net.Listen("tcp", at); return err })
	var mu sync.Mutex
	var open []net.Conn
	cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
		open = nil
	}
	t.Cleanup(func() { l.Close(); cut() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			mu.Lock()
			open = append(open, c, s)
			mu.Unlock()
			go func() { _, _ = io.Copy(c, s); c.Close() }()
			go func() { _, _ = io.Copy(s, c); s.Close() }()
		}
	}()
	return cut
}

// answers is the agent's way to ask, from the node's namespace.
func (n *distant) answers(ctx context.Context, judged bool) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var by net.Dialer
	if judged {
		by.Control = netpol.AskJudgement
	}
	return n.ns.Conn.Namespace().Do(func() error { return cluster.Answers(n.api)(ctx, &by) }) == nil
}

// lockOut makes a host endpoint without a policy, cuts the node's connections to the API server, and then allows new ones.
func (n *distant) lockOut(t *testing.T, found func(*policies.Worker) bool, wayOpen bool) *policies.Worker {
	t.Helper()
	w, _ := n.work(t)
	w.SetHostRules(policy.HostRules{}) // no failsafe ports
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	n.calico(t, "HostEndpoint", "hostendpoints", n.name, fmt.Sprintf(`"spec":{"node":%q,"interfaceName":"*"}`, n.name))
	eventually(t, soon, "everything else is denied", func() bool { return !opens(t, n.ns, otherAt) })
	n.cut()
	eventually(t, soon, "the lockout is found", func() bool { return found(w) })
	if got := opens(t, n.ns, apiServerAt); got != wayOpen || opens(t, n.ns, otherAt) {
		t.Errorf("the API server is reached: %v, want %v, and no other port", got, wayOpen)
	}
	n.calico(t, "GlobalNetworkPolicy", "globalnetworkpolicies", n.name, fmt.Sprintf(`"spec":{"selector":"host == '%s'","types":["Egress"],
		"egress":[{"action":"Allow","protocol":"TCP","destination":{"ports":[6443]}}]}`, n.name))
	return w
}

// Policies of host endpoints that deny a node the API server leave it the way there, and nothing else, if that is guarded: it is told, and a correction
// reaches the node and closes the way.
func TestLockoutGuard(t *testing.T) {
	n := newDistant(t)
	n.configure = func(o *policies.Options) {
		o.APIServer = &policies.APIServer{Addresses: cluster.Endpoints(n.api), Answers: n.answers}
	}
	w := n.lockOut(t, func(w *policies.Worker) bool { s := w.Seen(); return s.LockedOut && len(s.Problems()) == 1 }, true)
	eventually(t, time.Minute, "a correction comes through, and the way is closed", func() bool {
		return !w.Seen().LockedOut && !strings.Contains(n.table(t), "original") && opens(t, n.ns, apiServerAt)
	})
}

// Without the guard no correction reaches the node.
func TestLockoutWithoutGuard(t *testing.T) {
	n := newDistant(t)
	n.lockOut(t, func(*policies.Worker) bool { return !n.answers(t.Context(), false) }, false)
	time.Sleep(2 * time.Second)
	if opens(t, n.ns, apiServerAt) {
		t.Error("a correction has come through")
	}
}
