package ipip_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Policies judge packets from the tunnel by the inner header: datagrams and, where the kernel has SCTP as in the
// virtual machine, associations.
func TestPolicy(t *testing.T) {
	a, b := pair(t, 1500)
	e := netpol.New(b.Namespace, "cali")
	t.Cleanup(e.Close)
	for _, port := range []uint16{7000, 7001} {
		b.pod.EchoUDP(t, netip.AddrPortFrom(b.podAddr(), port).String())
	}
	sctp := listenSCTP(t, b.pod)
	for _, tt := range []struct {
		name  string
		from  netip.Addr
		port  uint16
		opens bool
	}{
		{"from the pod", a.podAddr(), 7000, true},
		{"from the pod to another port", a.podAddr(), 7001, false},
		{"from the other node", addr(a.addr), 7000, false},
	} {
		// the machine has no nfnetlink_log
		if _, err := e.Sync(t.Context(), onlyFrom(tt.from), nil); err != nil && !errors.Is(err, netpol.ErrNoLog) {
			t.Fatal(err)
		}
		wait := 300 * time.Millisecond
		if tt.opens {
			wait = 10 * time.Second
		}
		if _, err := a.pod.AskUDP(t, "", netip.AddrPortFrom(b.podAddr(), tt.port).String(), "hello", wait); (err == nil) != tt.opens {
			t.Errorf("%s: %v, want it to pass: %v", tt.name, err, tt.opens)
		}
		if err := associate(t, a.pod, netip.AddrPortFrom(b.podAddr(), tt.port)); sctp && (err == nil) != tt.opens {
			t.Errorf("SCTP %s: %v, want it to pass: %v", tt.name, err, tt.opens)
		}
	}
}

// onlyFrom allows packets to port 7000 of UDP and SCTP from one address.
func onlyFrom(a netip.Addr) *policy.Ruleset {
	no := policy.Verdict{By: policy.ID{Kind: "NetworkPolicy", Namespace: "default", Name: "b"}}
	port := []policy.PortRange{
		{First: 7000, Last: 7000, List: policy.List{Else: no, Steps: []policy.Step{{Set: 1, Verdict: policy.Verdict{Allow: true}}}}},
	}
	return &policy.Ruleset{
		Closed: true, Members: map[netip.Addr][]policy.SetID{a: {1}},
		Endpoints: map[string]policy.Endpoint{"cali0": {UID: "b", Programs: [2]string{policy.Ingress: "b"}}},
		Programs: map[string]policy.Program{"b": {
			Ports: map[uint8][]policy.PortRange{unix.IPPROTO_UDP: port, unix.IPPROTO_SCTP: port}, Rest: policy.List{Else: no},
		}},
	}
}

// listenSCTP listens on both ports; false: the kernel has no SCTP.
func listenSCTP(t *testing.T, ns *netnstest.NS) bool {
	t.Helper()
	for _, port := range []int{7000, 7001} {
		fd, err := socketSCTP(t, ns)
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			t.Log("the kernel has no SCTP")
			return false
		}
		errtest.Must(t, errors.Join(err, unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.Listen(fd, 8)))
	}
	return true
}

// associate returns nil when there is an association.
func associate(t *testing.T, ns *netnstest.NS, to netip.AddrPort) error {
	t.Helper()
	fd, err := socketSCTP(t, ns)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(poll, 2000); n == 0 || err != nil {
		return errors.Join(err, unix.ETIMEDOUT)
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

func socketSCTP(t *testing.T, ns *netnstest.NS) (fd int, err error) {
	t.Helper()
	err = ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return err
	})
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
	}
	return fd, err
}

// A host endpoint for tunl0 judges packets from the tunnel, by whichever device, and counts them; one for another link
// does not.
func TestHostEndpoint(t *testing.T) {
	a, b := pair(t, 1500)
	e := netpol.New(b.Namespace, "cali")
	t.Cleanup(e.Close)
	b.pod.EchoUDP(t, netip.AddrPortFrom(b.podAddr(), 7000).String())
	b.EchoUDP(t, netip.AddrPortFrom(b.tunnelAddr(), 7000).String())
	peers := ipip.Peers{Local: addr(b.addr), MTU: tunnelMTU, Nodes: []netip.Addr{addr(a.addr)}}
	for name, p := range map[string]ipip.Peers{"tunl0": {}, "a device of its own": peers} {
		_, err := syncPeers(t, b.NS, p)
		errtest.Must(t, err)
		for link, opens := range map[string]bool{ipip.Device: false, "eth0": true} {
			for stage, to := range map[policy.Stage]netip.Addr{policy.Forwarded: b.podAddr(), policy.Terminal: b.tunnelAddr(),
				policy.Untranslated: b.podAddr(), policy.Untracked: b.podAddr()} {
				if _, err := e.Sync(t.Context(), closedLink(link, stage), nil); err != nil && !errors.Is(err, netpol.ErrNoLog) {
					t.Fatal(err)
				}
				wait := 300 * time.Millisecond
				if opens {
					wait = 10 * time.Second
				}
				before := dropped(t, e)
				if _, err := a.pod.AskUDP(t, "", netip.AddrPortFrom(to, 7000).String(), "hello", wait); (err == nil) != opens {
					t.Errorf("%s, host endpoint %s, stage %v: %v, want it to pass: %v", name, link, stage, err, opens)
				}
				if counted := dropped(t, e) > before; counted == opens {
					t.Errorf("%s, host endpoint %s, stage %v: counted is %v", name, link, stage, counted)
				}
			}
		}
	}
}

// closedLink denies port 7000 of UDP at a link.
func closedLink(link string, stage policy.Stage) *policy.Ruleset {
	all := policy.List{Else: policy.Verdict{Allow: true}}
	host, key := policy.Host{Name: "host"}, fmt.Sprint("closed-", stage) // a key has one program
	host.Programs[stage][policy.Ingress] = key
	return &policy.Ruleset{
		Hosts: map[string]policy.Host{link: host},
		Programs: map[string]policy.Program{key: {Sequence: []policy.Segment{
			{When: policy.Program{Ports: map[uint8][]policy.PortRange{unix.IPPROTO_UDP: {{First: 7000, Last: 7000, List: all}}}}, Then: policy.Deny,
				Verdict: policy.Verdict{By: policy.ID{Kind: "GlobalNetworkPolicy", Name: "closed"}}},
			{When: policy.Program{Rest: all}, Then: policy.Allow, Verdict: policy.Verdict{Allow: true}},
		}}},
	}
}

// dropped returns the number of packets that policies have dropped.
func dropped(t *testing.T, e *netpol.Engine) (packets uint64) {
	t.Helper()
	counters, err := e.Counters(t.Context())
	errtest.Must(t, err)
	for _, c := range counters {
		packets += c.Packets
	}
	return packets
}
