package mesh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const (
	guardedNamespace = "guarded"
	guardedPort      = 9000
	// noted is the plugin's annotation with a pod's addresses.
	noted = "cni.projectcalico.org/podIPs"
)

// guarded is a mesh with pods as objects in the API server, and with agents that enforce policies.
type guarded struct {
	*meshtest.Cluster
	client  *kubernetes.Clientset
	objects dynamic.Interface
	nodes   []*meshtest.Node
	arrived *arrivals
	senders atomic.Uint64 // number of the last sender
}

// newGuarded returns when all agents are ready and know each other.
func newGuarded(t testing.TB, size int) *guarded {
	t.Helper()
	g := &guarded{Cluster: meshtest.NewCluster(t), arrived: &arrivals{}}
	g.Server.DefineClusterNetworkPolicy(t)
	g.Env = []string{"TORTIE_POLICY=on"}
	admin := rest.CopyConfig(g.Admin)
	admin.QPS, admin.Burst = 1000, 1000
	var err error
	if g.client, err = kubernetes.NewForConfig(admin); err != nil {
		t.Fatal(err)
	}
	if g.objects, err = dynamic.NewForConfig(admin); err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guardedNamespace}}
	if _, err := g.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	for i := range size {
		n := g.NewNode(t, fmt.Sprintf("node-%d", 10+i), 0, 10+i)
		n.Claim(t, blockOf(n))
		g.nodes = append(g.nodes, n)
	}
	meshtest.Start(t, g.nodes...)
	meshtest.Settle(t, g.nodes...)
	return g
}

// address returns an address of a node's block.
func address(n *meshtest.Node, ordinal int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 90, n.Prefix.Addr().As4()[3], byte(ordinal)})
}

// register creates the object of a pod, with its address.
func (g *guarded) register(t testing.TB, n *meshtest.Node, name string, addr netip.Addr, labels map[string]string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{noted: addr.String() + "/32"}},
		Spec:       corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "c", Image: "pause"}}},
	}
	_, err := g.client.CoreV1().Pods(guardedNamespace).Create(t.Context(), pod, metav1.CreateOptions{})
	return err
}

// wiring returns the plugin's network configuration of a pod.
func wiring(ns *netnstest.NS, name string, addr netip.Addr) podnet.Config {
	return podnet.Config{
		Netns: ns.Path(), IfName: "eth0", HostVeth: podnet.HostVethName(podnet.DefaultVethPrefix, guardedNamespace, name),
		Addresses: []netip.Addr{addr}, MTU: 1400,
	}
}

// permanent creates a pod that stays until the test ends, with a server of guardedPort.
func (g *guarded) permanent(t testing.TB, n *meshtest.Node, name string, ordinal int, labels map[string]string) *meshtest.Pod {
	t.Helper()
	p := &meshtest.Pod{NS: netnstest.New(t), V4: address(n, ordinal)}
	errtest.Must(t, g.register(t, n, name, p.V4, labels))
	n.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), wiring(p.NS, name, p.V4))
		return err
	})
	g.arrived.listen(t, p.NS)
	return p
}

// arrivals counts packets by the numbers of their senders.
type arrivals struct {
	lock sync.Mutex
	of   map[uint64]*arrival
}

// arrival records the packets of a sender.
type arrival struct {
	count       int
	first, last time.Time
}

// listen counts the packets that arrive in a namespace, at any address, until the test ends.
func (a *arrivals) listen(t testing.TB, ns *netnstest.NS) {
	t.Helper()
	conn := ns.ListenUDP(t, fmt.Sprintf("0.0.0.0:%d", guardedPort))
	go func() {
		buf := make([]byte, 100)
		for {
			size, err := conn.Read(buf)
			if err != nil {
				return
			}
			if size == 8 {
				a.note(binary.BigEndian.Uint64(buf))
			}
		}
	}()
}

func (a *arrivals) note(number uint64) {
	now := time.Now()
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.of == nil {
		a.of = map[uint64]*arrival{}
	}
	if a.of[number] == nil {
		a.of[number] = &arrival{first: now}
	}
	a.of[number].count++
	a.of[number].last = now
}

// from returns the packets of a sender so far.
func (a *arrivals) from(s *sender) arrival {
	a.lock.Lock()
	defer a.lock.Unlock()
	if found := a.of[s.number]; found != nil {
		return *found
	}
	return arrival{}
}

// all reports whether a packet of each sender has arrived.
func (a *arrivals) all(senders []*sender) bool {
	return !slices.ContainsFunc(senders, func(s *sender) bool { return a.from(s).count == 0 })
}

// begun returns when a packet of each sender had arrived.
func (a *arrivals) begun(senders []*sender) (last time.Time) {
	for _, s := range senders {
		if first := a.from(s).first; first.After(last) {
			last = first
		}
	}
	return last
}

// ended returns when the last packet of any of the senders arrived.
func (a *arrivals) ended(senders []*sender) (last time.Time) {
	for _, s := range senders {
		if came := a.from(s).last; came.After(last) {
			last = came
		}
	}
	return last
}

// forget resets the counts of senders.
func (a *arrivals) forget(senders []*sender) {
	a.lock.Lock()
	defer a.lock.Unlock()
	for _, s := range senders {
		delete(a.of, s.number)
	}
}

// sender sends its number from a pod. Each packet has a source port of its own, and so is the first of a connection.
type sender struct {
	name   string
	number uint64
	sent   atomic.Int64
	stop   chan struct{}
	done   chan error
}

// send starts a sender, which ends with the test unless it is ended before.
func (g *guarded) send(t testing.TB, name string, from *netnstest.NS, to netip.Addr, every time.Duration) *sender {
	s := &sender{name: name, number: g.senders.Add(1), stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { s.done <- from.Do(func() error { return s.run(t, to, every) }) }()
	return s
}

// run sends until it is stopped or the test ends. A packet that the pod's own kernel refuses, as the pod has no route
// yet, does not count.
func (s *sender) run(t testing.TB, to netip.Addr, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	packet := binary.BigEndian.AppendUint64(nil, s.number)
	for {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if unix.Sendto(fd, packet, unix.MSG_DONTWAIT, &unix.SockaddrInet4{Port: guardedPort, Addr: to.As4()}) == nil {
			s.sent.Add(1)
		}
		unix.Close(fd)
		select {
		case <-tick.C:
		case <-s.stop:
			return nil
		case <-t.Context().Done():
			return nil
		}
	}
}

// end stops the sender, and returns once it sends no more.
func (s *sender) end() error {
	close(s.stop)
	return <-s.done
}

// endAll ends senders.
func endAll(senders []*sender) (err error) {
	for _, s := range senders {
		err = errors.Join(err, s.end())
	}
	return err
}
