package policy

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

var inVM = flag.Bool("in-vm", false, "the kernel must have SCTP: this is the virtual machine of TestAssociations")

// The kernel's own associations of SCTP, not only their first packets, are judged by both pods' policies, and end when
// a policy has come to forbid them. Where this kernel has no SCTP the test runs in a virtual machine, with TestSCTP.
func TestAssociations(t *testing.T) {
	fd, err := sctp(unix.AF_INET)
	if err == nil {
		unix.Close(fd)
		for name, f := range allFamilies {
			t.Run(name, func(t *testing.T) { associations(t, f) })
			t.Run(name+" heartbeats", func(t *testing.T) { heartbeats(t, f) })
		}
		return
	}
	if *inVM {
		t.Fatalf("the virtual machine has no SCTP: %v", err)
	}
	cmd := exec.Command(labtest.Binary(t), "vm", "-count", "-mem", "1024", "-timeout", "15m", "-programs", "", "--",
		os.Args[0], "-test.run=^(TestSCTP|TestAssociations)$", "-test.v", "-test.timeout=14m", "-in-vm")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("in the virtual machine: %v", err)
	}
}

// served and other are ports on which the pod web serves SCTP.
const served, other = 36412, 36413

// peers are two pods of a node; web serves SCTP.
type peers struct {
	policytest.Cluster
	enforcer
	host, client *netnstest.NS
	*policy.Compiled
}

func newPeers(t *testing.T, f family) *peers {
	host, client, web := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	host.Within(t, func() error {
		return errors.Join(sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1"),
			sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1"))
	})
	c := &peers{host: host, client: client, enforcer: newEnforcer(t, host)}
	c.Namespaces = []api.Namespace{{Meta: api.Meta{Name: "a"}}}
	for i, p := range []struct {
		*netnstest.NS
		app  string
		addr netip.Addr
	}{{client, "client", f.client}, {web, "web", f.web}} {
		one := pod(fmt.Sprint("pod-", i), p.app, p.addr, true)
		one.Labels = map[string]string{"app": p.app}
		c.Pods = append(c.Pods, one)
		cable(t, host, policytest.Link(i), p.NS, p.addr)
	}
	serveSCTP(t, web, netip.AddrPortFrom(f.web, served))
	serveSCTP(t, web, netip.AddrPortFrom(f.web, other))
	return c
}

func (c *peers) under(t *testing.T, policies ...api.NetworkPolicy) {
	t.Helper()
	c.NetworkPolicies = policies
	c.Compiled = policy.Compile(c.State())
	c.sync(t, &c.Ruleset, nil)
}

// end ends associations that a program of one of the pods denies, as the agent does, and returns how many these are.
func (c *peers) end(t *testing.T, d policy.Direction) (ended int) {
	t.Helper()
	ended, err := c.host.Conn.DeleteFlowsIf(func(flow netlinkx.Flow) bool {
		link, peer := policytest.Link(0), flow.Server
		if d == policy.Ingress {
			link, peer = policytest.Link(1), flow.Client
		}
		return !c.Decide(link, d, peer, policy.Packet{Protocol: flow.Protocol, Port: flow.Port, SourcePort: flow.SourcePort}).Allow
	}, func(all []netlinkx.Flow) error { return c.engine.End(t.Context(), all) })
	errtest.Must(t, err)
	return ended
}

func associations(t *testing.T, f family) {
	c := newPeers(t, f)
	rules := fmt.Sprintf("[{from: %s, ports: [{protocol: SCTP, port: %d}]}]", pods("client"), served)
	oneWay := []api.NetworkPolicy{ingress("web", rules), egress("web", "[]"), ingress("client", "[]")}
	c.under(t, oneWay...)
	open, err := associate(t, c.client, netip.AddrPortFrom(f.web, served))
	errtest.Must(t, err)
	if err := echoes(open, 10*time.Second); err != nil {
		t.Errorf("allowed: %v", err)
	}
	if _, err := associate(t, c.client, netip.AddrPortFrom(f.web, other)); !errors.Is(err, unix.EINPROGRESS) {
		t.Errorf("a port that is not allowed: %v", err)
	}
	c.under(t, append(oneWay, egress("client", fmt.Sprintf("[{to: %s, ports: [{protocol: SCTP, port: %d}]}]", pods("web"), other)))...)
	if _, err := associate(t, c.client, netip.AddrPortFrom(f.web, served)); !errors.Is(err, unix.EINPROGRESS) {
		t.Errorf("egress to another port alone: %v", err)
	}
	ended := c.end(t, policy.Egress)
	if err := echoes(open, time.Second); ended != 1 || err == nil {
		t.Errorf("after a policy forbids it: %d ended, %v", ended, err)
	}
}

// A heartbeat of the end that may send would begin an association that has ended anew, with the packets that the policy
// denies for answers.
func heartbeats(t *testing.T, f family) {
	c := newPeers(t, f)
	c.under(t)
	open, err := associate(t, c.client, netip.AddrPortFrom(f.web, served))
	errtest.Must(t, err)
	errtest.Must(t, echoes(open, 10*time.Second))
	c.under(t, ingress("web", "[]"))
	ended := c.end(t, policy.Ingress)
	if err := echoes(open, 10*time.Second); ended != 1 || err == nil {
		t.Errorf("%d ended, %v", ended, err)
	}
}

// cable connects a pod to its node.
func cable(t *testing.T, host *netnstest.NS, link string, pod *netnstest.NS, a netip.Addr) {
	t.Helper()
	netnstest.Cable(t, host, link, pod, "eth0")
	gateway, prefix := "169.254.1.1", "169.254.1.1/32"
	if a.Is6() {
		gateway, prefix = "fd99::1", "fd99::1/128"
	}
	host.Addr(t, link, prefix)
	host.Route(t, netip.PrefixFrom(a, a.BitLen()).String(), "", link)
	pod.Addr(t, "eth0", netip.PrefixFrom(a, a.BitLen()).String())
	pod.Route(t, netip.PrefixFrom(netip.MustParseAddr(gateway), a.BitLen()).String(), "", "eth0")
	pod.Route(t, map[bool]string{true: "0.0.0.0/0", false: "::/0"}[a.Is4()], gateway, "")
}

func sctp(family int) (fd int, err error) {
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
}

// socket opens a socket of SCTP for an address.
func socket(at netip.AddrPort) (fd int, addr unix.Sockaddr, err error) {
	if at.Addr().Is4() {
		fd, err = sctp(unix.AF_INET)
		return fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}, err
	}
	fd, err = sctp(unix.AF_INET6)
	return fd, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}, err
}

// serveSCTP echoes what comes.
func serveSCTP(t *testing.T, ns *netnstest.NS, at netip.AddrPort) {
	t.Helper()
	ns.Within(t, func() error {
		fd, addr, err := socket(at)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), "sctp")
		defer file.Close()
		if err := errors.Join(beatOften(fd), unix.Bind(fd, addr), unix.Listen(fd, 8)); err != nil {
			return err
		}
		l, err := net.FileListener(file) // which takes it for TCP
		if err == nil {
			netnstest.Echo(t, l)
		}
		return err
	})
}

// beatOften makes an idle socket's associations send heartbeats, by a struct sctp_paddrparams.
func beatOften(fd int) error {
	const peerAddrParams, size, interval, flags, enable = 9, 152, 132, 146, 1
	var params [size]byte
	binary.NativeEndian.PutUint32(params[interval:], 200) // ms
	binary.NativeEndian.PutUint32(params[flags:], enable)
	return unix.SetsockoptString(fd, unix.IPPROTO_SCTP, peerAddrParams, string(params[:]))
}

// associate opens an association; without an answer within a second the error is EINPROGRESS.
func associate(t *testing.T, ns *netnstest.NS, to netip.AddrPort) (c net.Conn, err error) {
	t.Helper()
	for c == nil {
		err = ns.Do(func() error {
			fd, addr, err := socket(to)
			if err != nil {
				return err
			}
			file := os.NewFile(uintptr(fd), "sctp")
			defer file.Close()
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1}); err != nil {
				return err
			}
			if err := unix.Connect(fd, addr); err != nil {
				return err
			}
			c, err = net.FileConn(file)
			return err
		})
		if err != nil && !errors.Is(err, unix.EINTR) { // Go's runtime sends signals
			return nil, err
		}
	}
	t.Cleanup(func() { c.Close() })
	return c, nil
}

// echoes sends a byte and waits for it.
func echoes(c net.Conn, limit time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}
