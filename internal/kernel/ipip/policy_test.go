package ipip_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Policies judge what comes out of the tunnel by the inner packet: datagrams and, where the kernel has SCTP as in the virtual machine, associations.
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
		if _, err := e.Sync(t.Context(), onlyFrom(tt.from), nil); err != nil && !errors.Is(err, netpol.ErrNoLog) { // the machine has no nfnetlink_log
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
	port := []policy.PortRange{{First: 7000, Last: 7000, List: policy.List{Else: no, Steps: []policy.Step{{Set: 1, Verdict: policy.Verdict{Allow: true}}}}}}
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
