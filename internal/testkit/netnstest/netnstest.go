// Package netnstest gives tests scratch network namespaces, which are removed with the test. It never changes the
// namespace that the test runs in, and fails a test that lacks the permissions instead of skipping it.
package netnstest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// NS is a scratch namespace with an open connection.
type NS struct {
	*netlinkx.Namespace
	Conn *netlinkx.Conn
}

// NewNamespace makes an empty namespace that nothing but the returned reference keeps alive. The caller's own namespace
// does not change.
func NewNamespace() (ns *netlinkx.Namespace, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			ns, err = netlinkx.CurrentNamespace()
		}
	}()
	<-done
	return ns, err
}

// IPIP returns nil if the kernel has IPIP, or can load it, and ipip.ErrNoIPIP if not.
func IPIP() error {
	return try(func(c *netlinkx.Conn) error {
		_, err := ipip.New(c).Sync(context.Background(), ipip.Tunnel{MTU: 1480})
		return err
	})
}

// WireGuard returns nil if the kernel has WireGuard, or can load it, and wireguard.ErrNoWireGuard if not.
func WireGuard() error {
	return try(func(c *netlinkx.Conn) error {
		_, err := wireguard.New(c, 0, nil).Merge(context.Background(), wireguard.Device{Port: wireguard.DefaultPort4, MTU: 1440})
		return err
	})
}

// try runs fn with a connection into a namespace of its own.
func try(fn func(*netlinkx.Conn) error) error {
	ns, err := NewNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	conn, err := netlinkx.OpenAt(ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	return fn(conn)
}

// New makes a namespace with lo up. It ends with the test.
func New(t testing.TB) *NS {
	t.Helper()
	ns, err := NewNamespace()
	if err != nil {
		t.Fatalf("make scratch namespace (tests of the kernel need root): %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	conn, err := netlinkx.OpenAt(ns)
	errtest.Must(t, err)
	t.Cleanup(conn.Close)
	n := &NS{Namespace: ns, Conn: conn}
	n.Up(t, "lo")
	return n
}

// Link returns the link called name.
func (n *NS) Link(t testing.TB, name string) netlinkx.Link {
	t.Helper()
	l, err := n.Conn.LinkByName(name)
	errtest.Must(t, err)
	return l
}

// Up brings a link up and returns it.
func (n *NS) Up(t testing.TB, name string) netlinkx.Link {
	t.Helper()
	errtest.Must(t, n.Conn.SetUp(n.Link(t, name).Index))
	return n.Link(t, name)
}

// Addr puts an address, in CIDR form, on a link.
func (n *NS) Addr(t testing.TB, link, cidr string) {
	t.Helper()
	errtest.Must(t, n.Conn.AddUniqueAddr(n.Link(t, link).Index, netip.MustParsePrefix(cidr)))
}

// Route adds a route via next hop and link; either may be empty.
func (n *NS) Route(t testing.TB, dst, via, dev string) {
	t.Helper()
	r := netlinkx.Route{Dst: netip.MustParsePrefix(dst)}
	if via != "" {
		r.Via = netip.MustParseAddr(via)
	} else {
		r.Scope = netlinkx.ScopeLink
	}
	if dev != "" {
		r.Dev = n.Link(t, dev).Index
	}
	errtest.Must(t, n.Conn.AddRoute(r))
}

// Within runs fn inside the namespace and fails the test with fn's error.
func (n *NS) Within(t testing.TB, fn func() error) {
	t.Helper()
	errtest.Must(t, n.Do(fn))
}

// Run runs a program inside the namespace and returns its standard output. The test fails if the program fails.
func (n *NS) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	needtest.Program(t, name)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out, diag strings.Builder
	err := n.Do(func() error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.Stderr = &out, &diag
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.String(), diag.String())
	}
	return out.String()
}

// Start starts a program inside the namespace and returns its process ID. The program is killed at the end of the test.
func (n *NS) Start(t testing.TB, name string, args ...string) int {
	t.Helper()
	needtest.Program(t, name)
	cmd := exec.Command(name, args...)
	n.Within(t, cmd.Start)
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// Cable joins two namespaces with a veth pair, both ends up.
func Cable(t testing.TB, a *NS, aName string, b *NS, bName string) {
	t.Helper()
	err := a.Conn.AddVeth(netlinkx.Veth{
		Name: aName, TxQueueLen: 1000, PeerName: bName, PeerNamespace: b.Namespace, PeerTxQueueLen: 1000,
	})
	errtest.Must(t, err)
	a.withoutDAD(t, aName)
	b.withoutDAD(t, bName)
	a.Up(t, aName)
	b.Up(t, bName)
}

// LinkLocal returns the first of LinkLocals.
func (n *NS) LinkLocal(t testing.TB, link string) netip.Addr {
	t.Helper()
	all := n.LinkLocals(t, link)
	if len(all) == 0 {
		t.Fatalf("%s has no link-local address", link)
	}
	return all[0]
}

// LinkLocals returns the link-local addresses of a link, without a zone.
func (n *NS) LinkLocals(t testing.TB, link string) (all []netip.Addr) {
	t.Helper()
	addrs, err := n.Conn.Addrs(n.Link(t, link).Index, netlinkx.IPv6)
	errtest.Must(t, err)
	for _, a := range addrs {
		if a.Prefix.Addr().IsLinkLocalUnicast() {
			all = append(all, a.Prefix.Addr())
		}
	}
	return all
}

// withoutDAD makes link-local addresses usable a second or two earlier.
func (n *NS) withoutDAD(t testing.TB, link string) {
	t.Helper()
	n.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", link, "accept_dad"}, "0")
	})
}

// Writes waits until the kernel has finished the effects of earlier changes of the namespace, such as duplicate address
// detection. It returns a function that counts the changes of links, addresses, routes, rules, neighbours and
// forwarding entries by processes since the last call. Changes of links and forwarding entries count with any cause, as
// their events need not have a sender.
func (n *NS) Writes(t testing.TB) func() int {
	t.Helper()
	events := n.routeEvents(t, append([]int{unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE}, changed...))
	count := func() (made int) {
		t.Helper()
		drain(t, events, func(m nlmsg.Message, sent bool) {
			if sent || withoutSender(m) {
				made++
			}
		})
		return made
	}
	const rest = 4 // checks without a change, over 150 ms; a later effect would show as a write of a link
	calm := 0
	waittest.For(t, 10*time.Second, func() error {
		addrs, err := n.Conn.Addrs(0, netlinkx.IPv6)
		errtest.Must(t, err)
		calm++
		if count() > 0 || slices.ContainsFunc(addrs, func(a netlinkx.Addr) bool { return a.Tentative }) {
			calm = 0
		}
		if calm < rest {
			return errors.New("the kernel does not stop changing the namespace")
		}
		return nil
	})
	return count
}

// withoutSender reports an event of a kind that has no sender although a process may have caused it.
func withoutSender(m nlmsg.Message) bool {
	switch m.Kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return true
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return m.Body[0] == unix.AF_BRIDGE
	}
	return false
}

// changed are the groups of the objects that the agent keeps in a namespace.
var changed = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
}

// Changes returns a function that counts how often processes have changed addresses, routes and neighbours, or made and
// removed links, since the last call. Changes of the kernel's own have no sender, and do not count.
func (n *NS) Changes(t testing.TB) func() int {
	t.Helper()
	events := n.routeEvents(t, changed)
	return func() (made int) {
		t.Helper()
		drain(t, events, func(_ nlmsg.Message, sent bool) {
			if sent {
				made++
			}
		})
		return made
	}
}

// routeEvents opens a socket that receives the events of groups of rtnetlink until the test ends. The kernel queues
// them there before it answers the request that causes them.
func (n *NS) routeEvents(t testing.TB, groups []int) (events *nlmsg.Events) {
	t.Helper()
	n.Within(t, func() (err error) {
		events, err = nlmsg.ListenUnwatched(unix.NETLINK_ROUTE, groups, 1<<20)
		return err
	})
	t.Cleanup(func() { _ = events.Close() })
	return events
}

// drain calls take with each queued event. sent: a process has caused it.
func drain(t testing.TB, events *nlmsg.Events, take func(m nlmsg.Message, sent bool)) {
	t.Helper()
	const senderAt = 12 // in the header of a message
	err := events.Drain(make([]byte, 1<<16), func(datagram []byte, err error) {
		errtest.Must(t, err)
		sent := binary.NativeEndian.Uint32(datagram[senderAt:]) != 0
		m, _, err := nlmsg.Next(datagram)
		errtest.Must(t, err)
		take(m, sent)
	})
	errtest.Must(t, err)
}

// Dying makes a namespace with a veth pair into host, and deletes the namespace while the kernel's cleanup worker is
// busy, so that the host's end of the pair stays for a moment. It returns the name of that end. A prepare function
// other than nil creates the pair, and more, itself. The kernel may still be faster.
func Dying(t testing.TB, host *NS, name string, prepare func(*netlinkx.Namespace)) string {
	t.Helper()
	bulk := make([]*netlinkx.Namespace, 16)
	for i := range bulk {
		bulk[i] = temporary(t)
		cableOnce(t, host, fmt.Sprintf("bulk%d", i), bulk[i])
	}
	last := temporary(t)
	if prepare == nil {
		prepare = func(ns *netlinkx.Namespace) { cableOnce(t, host, name, ns) }
	}
	prepare(last)
	waittest.For(t, 10*time.Second, func() error { return left(last) })
	// A netlink socket keeps its namespace for one RCU grace period after it is closed, for which the system call waits by
	// MEMBARRIER_CMD_GLOBAL.
	const global = 1
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	for tick, all := time.Tick(time.Millisecond), append(bulk, last); len(all) > 0; all = all[1:] {
		errtest.Must(t, all[0].Close())
		<-tick // The first namespace to be deleted starts a cleanup batch of its own; the others wait for it.
	}
	// The kernel may still run the work that releases its sockets: the grace period only permits it.
	waittest.For(t, 10*time.Second, func() error {
		link, err := host.Conn.LinkByName(name)
		if err != nil {
			return nil // it was faster
		}
		alive, err := host.Conn.PeerAlive(link)
		if alive {
			return fmt.Errorf("the namespace of the other end of %s lives", name)
		}
		return err
	})
	return name
}

// left returns an error while a thread of this process is in a namespace, which keeps the namespace, or while a thread
// that is about to end has no readable namespace. In a user namespace no thread can return to the namespace of the
// process: the runtime ends threads that have left it, after the call for which they did.
func left(ns *netlinkx.Namespace) error {
	var st unix.Stat_t
	if err := unix.Fstat(ns.Fd(), &st); err != nil {
		return err
	}
	const tasks = "/proc/self/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return err
	}
	for _, thread := range threads {
		path := filepath.Join(tasks, thread.Name())
		in, err := os.Readlink(path + "/ns/net")
		if err == nil && in != fmt.Sprintf("net:[%d]", st.Ino) {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("thread %s is in namespace %q, and has not ended", thread.Name(), in)
		}
	}
	return nil
}

func temporary(t testing.TB) *netlinkx.Namespace {
	t.Helper()
	ns, err := NewNamespace()
	errtest.Must(t, err)
	return ns
}

func cableOnce(t testing.TB, host *NS, name string, ns *netlinkx.Namespace) {
	t.Helper()
	errtest.Must(t, host.Conn.AddVeth(netlinkx.Veth{Name: name, PeerName: "eth0", PeerNamespace: ns}))
}

// ListenUDP opens a UDP socket inside the namespace, bound to addr ("10.0.0.5:7000"). It is closed with the test.
func (n *NS) ListenUDP(t testing.TB, addr string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	n.Within(t, func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

// EchoUDP answers every datagram to addr inside the namespace with "<source address> <payload>" until the test ends.
// The source address is the one at the receiver.
func (n *NS) EchoUDP(t testing.TB, addr string) {
	t.Helper()
	conn := n.ListenUDP(t, addr)
	go func() {
		buf := make([]byte, 65536)
		for {
			size, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			conn.WriteToUDPAddrPort(append([]byte(from.Addr().Unmap().String()+" "), buf[:size]...), from)
		}
	}()
}

// Ports of AskUDP, below the kernel's own choice and the ports of Services.
const firstPort, ports = 20000, 10000

var asked atomic.Uint32

// AskUDP sends payload from inside the namespace to addr, from the address local if it is not empty, and returns the
// reply. Without local each call has its own port: with the same port the kernel would continue an earlier connection,
// with the NAT and policies of that time. It retransmits every 200 ms, as address resolution may drop the first
// packets, and returns an error after wait.
func (n *NS) AskUDP(t testing.TB, local, addr, payload string, wait time.Duration) (string, error) {
	t.Helper()
	if local == "" {
		host := "[::]"
		if netip.MustParseAddrPort(addr).Addr().Is4() {
			host = "0.0.0.0"
		}
		local = fmt.Sprintf("%s:%d", host, firstPort+asked.Add(1)%ports)
	}
	conn := n.ListenUDP(t, local)
	defer conn.Close()
	deadline := time.Now().Add(wait)
	buf := make([]byte, 65536)
	for {
		_, sendErr := conn.WriteToUDPAddrPort([]byte(payload), netip.MustParseAddrPort(addr))
		conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		size, err := conn.Read(buf)
		if err == nil {
			return string(buf[:size]), nil
		}
		if time.Now().After(deadline) {
			return "", errors.Join(fmt.Errorf("no answer from %s in %v", addr, wait), sendErr, err)
		}
	}
}
