package policies_test

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// stream is a TCP connection in which both ends send all the time, or one of them.
type stream struct{ toServer, toClient atomic.Int64 }

// connect makes a stream that lives until the test ends.
func connect(t *testing.T, client, server *pod, port string, clientSends, serverSends bool) *stream {
	t.Helper()
	s := &stream{}
	var l net.Listener
	server.Within(t, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(server.addr.String(), port))
		return err
	})
	t.Cleanup(func() { l.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	var c net.Conn
	client.Within(t, func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second); return err })
	other := <-accepted
	t.Cleanup(func() { c.Close(); other.Close() })
	pump := func(from, to net.Conn, sends bool, arrived *atomic.Int64) {
		go func() {
			for b := make([]byte, 100); ; {
				n, err := to.Read(b)
				if err != nil {
					return
				}
				arrived.Add(int64(n))
			}
		}()
		go func() {
			for sends {
				if _, err := from.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the stream's pace
			}
		}()
	}
	pump(c, other, clientSends, &s.toServer)
	pump(other, c, serverSends, &s.toClient)
	return s
}

func (s *stream) total() int64 { return s.toServer.Load() + s.toClient.Load() }

// flows reports whether more packets arrive while many do in another stream with the same rate.
func (s *stream) flows(t *testing.T, beside *stream) bool {
	t.Helper()
	before, much := s.total(), beside.total()+100
	eventually(t, soon, "the stream beside goes on", func() bool { return beside.total() > much })
	return s.total() > before
}

// A connection that a changed policy forbids ends, whichever end sends; those that it allows lose nothing.
func TestForbiddenConnectionsEnd(t *testing.T) {
	n := newNode(t)
	server := n.start(t, "server", "10.90.1.1")
	client, other := n.start(t, "client", "10.90.1.2"), n.start(t, "other", "10.90.1.3")
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	streams := map[string]*stream{
		"the client sends":  connect(t, other, server, "7001", true, false),
		"the server sends":  connect(t, other, server, "7002", false, true),
		"both ends send":    connect(t, other, server, "7003", true, true),
		"from the isolated": connect(t, server, other, "7004", true, true),
	}
	kept := connect(t, client, server, "7005", true, true)
	for name, s := range streams {
		eventually(t, soon, name, func() bool { return s.total() > 10 })
	}
	n.policy(t, "allow", allowApp)
	eventually(t, soon, "ended", func() bool { return w.Seen().Ended >= 3 })
	for name, s := range streams {
		lives := name == "from the isolated"
		eventually(t, soon, fmt.Sprintf("%s: flows %v", name, lives), func() bool { return s.flows(t, kept) == lives })
	}
}

// An operator may keep forbidden connections.
func TestConnectionsAreKeptOnRequest(t *testing.T) {
	n := newNode(t)
	n.configure = func(o *policies.Options) { o.KeepConnections = true }
	server, other := n.start(t, "server", "10.90.2.1"), n.start(t, "other", "10.90.2.2")
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	s := connect(t, other, server, "7001", true, true)
	n.policy(t, "deny", denyAll)
	server.EchoUDP(t, "10.90.2.1:53")
	eventually(t, soon, "denied", func() bool { return !reaches(t, other, "10.90.2.1:53") })
	much := s.total() + 200
	eventually(t, soon, "the connection goes on", func() bool { return s.total() > much })
}

// A pod of another node may send before this one knows it: what a policy denies to such pods ends when it does.
func TestConnectionsBeforeAPodIsKnownEnd(t *testing.T) {
	n := newNode(t)
	far := netnstest.New(t)
	netnstest.Cable(t, n.ns, "eth1", far, "eth0")
	n.ns.Addr(t, "eth1", "172.30.0.1/24")
	far.Addr(t, "eth0", "172.30.0.2/24")
	far.Route(t, "10.90.14.0/24", "172.30.0.1", "")
	server := n.start(t, "server", "10.90.14.1")
	w, _ := n.work(t)
	const policies = "/apis/crd.projectcalico.org/v1/globalnetworkpolicies"
	n.put(t, policies, n.name,
		fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"GlobalNetworkPolicy","metadata":{"name":%q},"spec":{"types":["Ingress"],
		"namespaceSelector":"projectcalico.org/name == '%s'",
			"ingress":[{"action":"Deny","source":{"selector":"app == 'evil'"}},{"action":"Allow"}]}}`,
			n.name, n.name))
	eventually(t, soon, "in force", func() bool { return w.Seen().Policed == 1 })
	s := connect(t, &pod{NS: far, addr: netip.MustParseAddr("172.30.0.2")}, server, "7001", true, true)
	eventually(t, soon, "a stranger's stream", func() bool { return s.total() > 10 })
	n.bind(t, "evil", "elsewhere")
	n.note(t, "evil", "172.30.0.2")
	eventually(t, soon, "the stranger is known as a pod", func() bool { return w.Seen().Members == 1 })
	eventually(t, soon, "its connection has ended", func() bool { return w.Seen().Ended == 1 })
}

// talk makes a connection of UDP that lives until the test ends: the client sends first, then both send all the time.
func talk(t *testing.T, client, server *pod, port string) *stream {
	t.Helper()
	s := &stream{}
	near, far := net.JoinHostPort(client.addr.String(), port), net.JoinHostPort(server.addr.String(), port)
	sends := func(from *net.UDPConn, to string) {
		for {
			if _, err := from.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(to)); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the stream's pace
		}
	}
	counts := func(at *net.UDPConn, arrived *atomic.Int64, first func()) {
		for b := make([]byte, 100); ; {
			if _, err := at.Read(b); err != nil {
				return
			}
			if arrived.Add(1) == 1 {
				go first()
			}
		}
	}
	c, l := client.ListenUDP(t, near), server.ListenUDP(t, far)
	t.Cleanup(func() { c.Close(); l.Close() })
	go counts(l, &s.toServer, func() { sends(l, near) })
	go counts(c, &s.toClient, func() {})
	go sends(c, far)
	return s
}

// The next answer of an ended UDP connection would begin one that the policy allows, with the packets that it denies as
// answers.
func TestAnswersDoNotBeginEndedConnections(t *testing.T) {
	n := newNode(t)
	server := n.start(t, "server", "10.90.15.1")
	client, other := n.start(t, "client", "10.90.15.2"), n.start(t, "other", "10.90.15.3")
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	s, kept := talk(t, other, server, "7001"), talk(t, client, server, "7002")
	eventually(t, soon, "both ends send", func() bool { return s.toClient.Load() > 10 && kept.toClient.Load() > 10 })
	n.policy(t, "allow", allowApp)
	eventually(t, soon, "ended", func() bool { return w.Seen().Ended == 1 })
	eventually(t, soon, "nothing of it comes", func() bool { return !s.flows(t, kept) })
	n.remove(t, n.policyPath(), "allow")
	before := s.total()
	eventually(t, soon, "allowed again", func() bool { return s.total() > before })
}
