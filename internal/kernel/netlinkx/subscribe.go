package netlinkx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Events selects what Subscribe watches.
type Events uint

// The kinds of change.
const (
	LinkEvents Events = 1 << iota
	AddrEvents
	RouteEvents
	RuleEvents
	// SettingEvents are changes of the kernel's parameters forwarding, rp_filter, proxy_arp and proxy_ndp.
	SettingEvents
	// neighbourEvents are of all links; SubscribeToNeighbours filters by link.
	neighbourEvents
)

func (e Events) groups() []int {
	var groups []int
	for _, g := range []struct {
		events Events
		groups []int
	}{
		{LinkEvents, []int{unix.RTNLGRP_LINK}},
		{AddrEvents, []int{unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}},
		{RouteEvents, []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}},
		{RuleEvents, []int{unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE}},
		{SettingEvents, []int{unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF}},
		{neighbourEvents, []int{unix.RTNLGRP_NEIGH}},
	} {
		if e&g.events != 0 {
			groups = append(groups, g.groups...)
		}
	}
	return groups
}

// Subscribe returns a channel that becomes readable after changes of the kinds given, by any program. Changes between
// two reads become one wake-up, as do changes that the kernel had no room to report: the wake-up carries no event, and
// the reader lists what it needs. The channel is closed when ctx ends, or when the socket breaks: then subscribe again.
func (c *Conn) Subscribe(ctx context.Context, events Events) (<-chan struct{}, error) {
	return c.subscribe(ctx, events, nil, nil)
}

// Wake-ups of SubscribeToOthers: the first promptWakes come at once, further ones at wakeInterval.
const (
	promptWakes  = 10
	wakeInterval = 200 * time.Millisecond
)

// SubscribeToOthers is Subscribe for a program that keeps its routes in the main table, on a machine where routing
// daemons may change theirs all the time. Of route changes it wakes for the protocols given, and for each route that
// replaces another, but not for this connection's own batches. A filter in the kernel drops the rest at no cost.
// Endless changes wake five times a second.
func (c *Conn) SubscribeToOthers(ctx context.Context, events Events, protocols ...Protocol) (<-chan struct{}, error) {
	return c.subscribeToOthers(ctx, events, protocols, &pace{interval: wakeInterval, burst: promptWakes})
}

// SubscribeToOthersAtOnce is SubscribeToOthers that wakes at once, however often that is.
func (c *Conn) SubscribeToOthersAtOnce(ctx context.Context, events Events, protocols ...Protocol) (<-chan struct{}, error) {
	return c.subscribeToOthers(ctx, events, protocols, nil)
}

func (c *Conn) subscribeToOthers(ctx context.Context, events Events, protocols []Protocol, p *pace) (<-chan struct{}, error) {
	filter, err := c.othersFilter(protocols)
	if err != nil {
		return nil, err
	}
	return c.subscribe(ctx, events, filter, p)
}

func (c *Conn) othersFilter(protocols []Protocol) (filter []unix.SockFilter, err error) {
	err = c.direct.with(c.ns, func(s *nlmsg.Socket) error {
		filter = othersFilter(s.Port, protocols)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	return filter, nil
}

func (c *Conn) listen(events Events, filter []unix.SockFilter) (socket *nlmsg.Events, err error) {
	err = c.ns.Do(func() (err error) {
		socket, err = nlmsg.Listen(unix.NETLINK_ROUTE, events.groups(), filter, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	return socket, nil
}

func (c *Conn) subscribe(ctx context.Context, events Events, filter []unix.SockFilter, p *pace) (<-chan struct{}, error) {
	socket, err := c.listen(events, filter)
	if err != nil {
		return nil, err
	}
	wake := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		defer close(wake)
		defer func() { _ = socket.Close() }()
		defer stop()
		for awaitEvent(socket) && p.wait(ctx) {
			socket.Discard(maxDiscard) // one wake-up covers all events that have come meanwhile
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}()
	return wake, nil
}

// maxDiscard bounds the events that are read at once. If they come faster, the next wake-up follows soon.
const maxDiscard = 1024

// awaitEvent returns true after an event, or when the kernel reports that it had no room for one; false if the socket
// was closed or is broken. One byte of an event is enough: the kernel drops the rest.
func awaitEvent(socket *nlmsg.Events) bool {
	var b [1]byte
	_, err := socket.Receive(b[:])
	return err == nil || errors.Is(err, unix.ENOBUFS)
}

// pace limits the rate of wake-ups: burst at once, then one in each interval. The nil pace does not limit it.
type pace struct {
	interval time.Duration
	burst    int
	free     time.Time // when the whole burst is available again
}

// wait returns true when the next wake-up may pass, and false if ctx has ended.
func (p *pace) wait(ctx context.Context) bool {
	if p == nil {
		return true
	}
	pause := p.next(time.Now())
	if pause <= 0 {
		return true
	}
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// next books a wake-up and returns how long it has to wait.
func (p *pace) next(now time.Time) time.Duration {
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(p.interval)
	return p.free.Sub(now) - time.Duration(p.burst)*p.interval
}

// Offsets in an event about a route: nlmsghdr, then rtmsg.
const (
	offsetKind     = 4
	offsetFlags    = 6
	offsetPort     = 12
	offsetTable    = unix.SizeofNlMsghdr + 4
	offsetProtocol = unix.SizeofNlMsghdr + 5
)

// othersFilter returns a BPF program that accepts events about other objects than routes, and the route events for
// SubscribeToOthers: https://docs.kernel.org/networking/filter.html. Jumps are counted from the next instruction.
func othersFilter(own uint32, protocols []Protocol) []unix.SockFilter {
	n := len(protocols)
	if n > 200 { // a jump goes no further
		return nil
	}
	drop := uint8(n) // from the first of the comparisons of protocols
	accept := drop + 1
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: offsetKind},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: onWire16(unix.RTM_NEWROUTE), Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: onWire16(unix.RTM_DELROUTE), Jf: 7 + accept},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: offsetTable},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: TableMain, Jf: 5 + drop},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetPort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: onWire32(own), Jt: 3 + drop},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: offsetFlags},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: onWire16(unix.NLM_F_REPLACE), Jt: 1 + accept},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: offsetProtocol},
	}
	for i, p := range protocols {
		f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(p), Jt: accept - uint8(i) - 1})
	}
	return slices.Concat(f, []unix.SockFilter{
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
	})
}

// onWire16 converts a number in host order to the value that a filter compares, as it loads in network order.
func onWire16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

func onWire32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}
