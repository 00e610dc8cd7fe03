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

// Where a distant node reaches the API server, and others.
const apiServerAt, otherAt, deniedAt = "172.30.0.2:6443", "172.30.0.2:80", "172.30.0.2:81"

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
	relay(t, outside, deniedAt, server.Host)
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
	limit := soon
	var by net.Dialer
	if judged {
		limit = time.Second
		by.Control = netpol.AskJudgement
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return n.ns.Conn.Namespace().Do(func() error { return cluster.Answers(n.api)(ctx, &by) }) == nil
}

// guarded makes Workers guard against lockouts.
func (n *distant) guarded(patience time.Duration) {
	n.configure = func(o *policies.Options) {
		o.APIServer = &policies.APIServer{Addresses: cluster.Endpoints(n.api), Answers: n.answers, Patience: patience}
	}
}

// hostEndpoint makes one for all links.
func (n *distant) hostEndpoint(t *testing.T) {
	t.Helper()
	n.calico(t, "HostEndpoint", "hostendpoints", n.name, fmt.Sprintf(`"spec":{"node":%q,"interfaceName":"*"}`, n.name))
}

// hosts makes a GlobalNetworkPolicy for the host endpoint, of rules of egress.
func (n *distant) hosts(t *testing.T, name string, order int, rules string) {
	t.Helper()
	n.calico(t, "GlobalNetworkPolicy", "globalnetworkpolicies", name,
		fmt.Sprintf(`"spec":{"order":%d,"selector":"host == '%s'","types":["Egress"],"egress":[%s]}`, order, n.name, rules))
}

// isJudged reports whether the API server has answered through host endpoints.
func (n *distant) isJudged(t *testing.T) bool {
	t.Helper()
	table := n.table(t)
	return strings.Contains(table, "host-output-") && !strings.Contains(table, "original")
}

// lockOut makes a host endpoint without a policy, cuts the node's connections to the API server, and then allows new
// ones.
func (n *distant) lockOut(t *testing.T, found func(*policies.Worker) bool, wayOpen bool) *policies.Worker {
	t.Helper()
	w, _ := n.work(t)
	w.SetHostRules(policy.HostRules{}) // no failsafe ports
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	n.hostEndpoint(t)
	eventually(t, soon, "everything else is denied", func() bool { return !opens(t, n.ns, otherAt) })
	n.cut()
	eventually(t, soon, "the lockout is found", func() bool { return found(w) })
	eventually(t, soon, fmt.Sprintf("the API server is reached: %v, and no other port", wayOpen), func() bool {
		return opens(t, n.ns, apiServerAt) == wayOpen && !opens(t, n.ns, otherAt)
	})
	n.hosts(t, n.name, 0, allows("6443"))
	return w
}

// allows is a rule for ports of TCP.
func allows(ports string) string {
	return `{"action":"Allow","protocol":"TCP","destination":{"ports":[` + ports + `]}}`
}

// Policies of host endpoints that deny a node the API server leave open the way to it, and nothing else, if that is
// guarded: the lockout is reported, and a correction reaches the node and closes the way. An agent that starts with
// them knows no former policies.
func TestLockoutGuard(t *testing.T) {
	n := newDistant(t)
	n.guarded(0)
	n.hostEndpoint(t)
	w := n.lockOut(t, func(w *policies.Worker) bool { s := w.Seen(); return s.LockedOut && len(s.Problems()) == 1 }, true)
	eventually(t, time.Minute, "a correction comes through, and the way is closed", func() bool {
		return !w.Seen().LockedOut && n.isJudged(t) && opens(t, n.ns, apiServerAt)
	})
}

// Policies that deny the API server for as long as the guard is patient are rolled back, until they change: what the
// node reached before it reaches again, and no more.
func TestLockoutIsRolledBack(t *testing.T) {
	n := newDistant(t)
	n.guarded(5 * time.Second)
	w, _ := n.work(t)
	w.SetHostRules(policy.HostRules{})
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	n.hosts(t, n.name, 2, allows("6443,80"))
	n.hostEndpoint(t)
	eventually(t, soon, "the API server answers through the policy", func() bool { return n.isJudged(t) && !opens(t, n.ns, deniedAt) })

	n.hosts(t, n.name+"-denies", 1, `{"action":"Deny"}`)
	eventually(t, soon, "a policy denies everything", func() bool { return !opens(t, n.ns, otherAt) })
	n.cut()
	eventually(t, soon, "the way to the API server is open meanwhile",
		func() bool { return !w.Seen().RolledBack && opens(t, n.ns, apiServerAt) })
	isBack := func() bool {
		s := w.Seen()
		return s.LockedOut && s.RolledBack && len(s.Problems()) == 1 && opens(t, n.ns, otherAt) && opens(t, n.ns, apiServerAt) &&
			!opens(t, n.ns, deniedAt)
	}
	eventually(t, time.Minute, "the policy before it is back", isBack)

	before := w.Seen().Applies
	n.policy(t, "other", `{"podSelector":{}}`)
	eventually(t, time.Minute, "another policy is in force", func() bool { return w.Seen().Applies > before })
	if !isBack() {
		t.Errorf("a policy that is for pods ends the rollback: %+v", w.Seen())
	}
	n.hosts(t, n.name+"-allows", 0, allows("6443,81"))
	eventually(t, time.Minute, "a correction is in force", func() bool {
		return !w.Seen().LockedOut && n.isJudged(t) && opens(t, n.ns, deniedAt) && !opens(t, n.ns, otherAt)
	})
}

// Without policies before them there are no host endpoints again.
func TestFirstLockoutIsRolledBack(t *testing.T) {
	n := newDistant(t)
	n.guarded(0)
	w, _ := n.work(t)
	w.SetHostRules(policy.HostRules{})
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	n.hostEndpoint(t)
	eventually(t, soon, "the node is as it was", func() bool { return w.Seen().RolledBack && opens(t, n.ns, otherAt) })
}

// Without the guard no correction reaches the node.
func TestLockoutWithoutGuard(t *testing.T) {
	n := newDistant(t)
	w := n.lockOut(t, func(*policies.Worker) bool { return !n.answers(t.Context(), true) }, false)
	denied := func() (packets int) {
		for _, d := range w.Denials() {
			if d.Port == 6443 {
				packets += d.Packets
			}
		}
		return packets
	}
	before := denied()
	eventually(t, soon, "the agent tries to reach the API server", func() bool { return denied() > before+1 })
	if opens(t, n.ns, apiServerAt) {
		t.Error("a correction has come through")
	}
}
