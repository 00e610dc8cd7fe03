package mesh

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// monitor records every change of a node's links, addresses, routes, rules and nftables, by any process. The kernel's
// own updates of neighbour entries are not included.
type monitor struct {
	node *meshtest.Node

	mu     sync.Mutex // guards all below
	events map[string]int
	routes map[string]time.Time // last creation of a route, by destination
	missed error
}

// groups is a bit set of rtnetlink multicast groups.
const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV4_RULE |
	unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE | 1<<(unix.RTNLGRP_IPV6_RULE-1)

// nftGroup is the bit of NFNLGRP_NFTABLES.
const nftGroup = 1 << (unix.NFNLGRP_NFTABLES - 1)

func listen(t testing.TB, n *meshtest.Node) *monitor {
	t.Helper()
	e := &monitor{node: n}
	e.reset()
	e.subscribe(t, unix.NETLINK_ROUTE, groups, e.route)
	e.subscribe(t, unix.NETLINK_NETFILTER, nftGroup,
		func(m syscall.NetlinkMessage) { e.note(fmt.Sprintf("nftables message %d", m.Header.Type&0xff)) })
	return e
}

func (e *monitor) subscribe(t testing.TB, protocol int, groups uint32, each func(syscall.NetlinkMessage)) {
	t.Helper()
	var fd int
	e.node.Within(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		return err
	})
	// A file lets the runtime poll the socket without a thread.
	file := os.NewFile(uintptr(fd), "netlink")
	t.Cleanup(func() { file.Close() })
	errtest.Must(t, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}))
	errtest.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	go func() {
		buf := make([]byte, 64<<10)
		for {
			size, err := file.Read(buf)
			var messages []syscall.NetlinkMessage
			if err == nil {
				messages, err = syscall.ParseNetlinkMessage(buf[:size])
			}
			if err != nil {
				e.fail(err)
				return
			}
			for _, m := range messages {
				each(m)
			}
		}
	}()
}

func (e *monitor) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.missed = err
}

func (e *monitor) note(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events[what]++
}

var kinds = map[uint16]string{
	unix.RTM_NEWLINK: "link", unix.RTM_DELLINK: "link removed", unix.RTM_NEWADDR: "address", unix.RTM_DELADDR: "address removed",
	unix.RTM_NEWROUTE: "route", unix.RTM_DELROUTE: "route removed", unix.RTM_NEWRULE: "rule", unix.RTM_DELRULE: "rule removed",
}

func (e *monitor) route(m syscall.NetlinkMessage) {
	kind, dst := kinds[m.Header.Type], ""
	if m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE {
		dst = destination(m)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events[strings.TrimSpace(kind+" "+dst)]++
	if m.Header.Type == unix.RTM_NEWROUTE {
		e.routes[dst] = time.Now()
	}
}

// destination returns the IPv4 prefix of a route message.
func destination(m syscall.NetlinkMessage) string {
	attrs, err := syscall.ParseNetlinkRouteAttr(&m)
	if err != nil {
		return err.Error()
	}
	for _, a := range attrs {
		if addr, ok := netip.AddrFromSlice(a.Value); ok && a.Attr.Type == unix.RTA_DST {
			return netip.PrefixFrom(addr, int(m.Data[1])).String()
		}
	}
	return "default"
}

// made returns the time at which a route to dst was created.
func (e *monitor) made(dst string) (time.Time, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.routes[dst]
	if !ok {
		return at, fmt.Errorf("%s has no route to %s; recorded changes: %s", e.node.Name, dst, counts(e.events))
	}
	return at, e.missed
}

// reset discards the recorded changes.
func (e *monitor) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events, e.routes = map[string]int{}, map[string]time.Time{}
}

// all returns the changes since the last reset.
func (e *monitor) all() (map[string]int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.events), e.missed
}

// unchanged fails the test if anything was changed on nodes whose agents or sessions have ended and come back.
func unchanged(t testing.TB, monitors ...*monitor) {
	t.Helper()
	for _, e := range monitors {
		if events, err := e.all(); err != nil || len(events) > 0 {
			t.Errorf("%s: changed are %s, %v; want nothing", e.node.Name, counts(events), err)
		}
	}
}

// counts formats a map in order.
func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d× %s", m[k], k))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// A monitor that receives no event would find every node quiet.
func TestMonitorReceives(t *testing.T) {
	p, _ := pairOfPods(t)
	e := listen(t, &meshtest.Node{NS: p.NS, Name: "p"})
	p.Run(t, "ip", "addr", "add", "10.0.9.1/32", "dev", "lo")
	p.Run(t, "ip", "route", "add", "10.1.0.0/16", "via", "10.0.0.2")
	p.Run(t, "ip", "route", "del", "10.1.0.0/16")
	p.Run(t, "ip", "rule", "add", "pref", "7", "table", "7")
	p.Run(t, "ip", "link", "set", "eth0", "mtu", "1400")
	p.Run(t, "nft", "add table inet t; add set inet t s { type ipv4_addr; }; add element inet t s { 10.0.0.1 }")
	meshtest.Eventually(t, func() error {
		events, err := e.all()
		errtest.Must(t, err)
		for _, want := range []string{
			"address", "route 10.1.0.0/16", "route removed 10.1.0.0/16", "rule", "link",
			fmt.Sprintf("nftables message %d", unix.NFT_MSG_NEWTABLE), fmt.Sprintf("nftables message %d", unix.NFT_MSG_NEWSETELEM),
		} {
			if events[want] == 0 {
				return fmt.Errorf("not recorded: %s; recorded: %s", want, counts(events))
			}
		}
		return nil
	})
}
