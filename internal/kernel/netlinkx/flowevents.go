package netlinkx

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// More of linux/netfilter/nfnetlink_conntrack.h and nfnetlink_compat.h.
const (
	ctNew                = 0 // IPCTNL_MSG_CT_NEW
	ctaProtoInfo         = 4
	ctaProtoInfoTCP      = 1
	ctaProtoInfoTCPState = 1
	tcpLastACK           = 6 // TCP_CONNTRACK_LAST_ACK; TIME_WAIT and CLOSE follow
	ctaCountersOrig      = 9
	ctaCountersReply     = 10
	ctaCountersPackets   = 1
	ctaCountersBytes     = 2
	groupConntrackNew    = 1 // NFNLGRP_CONNTRACK_NEW
	groupConntrackEnded  = 3 // NFNLGRP_CONNTRACK_DESTROY
)

// flowAccounting makes the kernel count packets and bytes of connections that begin afterwards, in the namespace of the
// calling thread.
var flowAccounting = sysctl.Key{"net", "netfilter", "nf_conntrack_acct"}

// Count is the traffic of one direction.
type Count struct{ Packets, Bytes uint64 }

// TrackedFlow is a Flow with its conntrack ID and its traffic since CountFlows: Sent by the client, Received by it.
type TrackedFlow struct {
	Flow
	ID             uint32
	Sent, Received Count
	// Closed: both ends have ended it, and the kernel keeps it for a while. Set for TCP only.
	Closed bool
}

// FlowEvent is the beginning or end of a connection.
type FlowEvent struct {
	TrackedFlow
	Ended bool
}

// CountFlows makes the kernel count packets and bytes of connections that begin from now on. It is never undone, as
// other programs may rely on it meanwhile. A kernel that tracks no connections counts none.
func (c *Conn) CountFlows(root sysctl.Root) error {
	return c.ns.Do(func() error {
		if err := root.Set(flowAccounting, "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("count packets of connections: %w", err)
		}
		return nil
	})
}

// FlowEvents is a socket that receives the beginnings and ends of connections. It is for one goroutine; Close may be
// called by others.
type FlowEvents struct {
	socket *nlmsg.Events
	buffer []byte
}

// flowDatagram is more than the kernel needs for one event.
const flowDatagram = 8 << 10

// FlowEvents returns a socket for the events from now on. The kernel buffers up to size bytes of them, and counts some
// 1 kB for each.
func (c *Conn) FlowEvents(size int) (*FlowEvents, error) {
	e := &FlowEvents{buffer: make([]byte, flowDatagram)}
	err := c.ns.Do(func() (err error) {
		e.socket, err = nlmsg.ListenUnwatched(unix.NETLINK_NETFILTER, []int{groupConntrackNew, groupConntrackEnded}, size)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a socket for events of connections: %w", err)
	}
	return e, nil
}

// Close closes the socket.
func (e *FlowEvents) Close() error { return e.socket.Close() }

// Read calls take with the events that have come, until it returns false. It does not wait: events wake no goroutine,
// so that connections do not pay for it. lost reports that the kernel had no room for some. The error means that the
// socket was closed or is broken.
func (e *FlowEvents) Read(take func(FlowEvent) (more bool)) (lost bool, err error) {
	more := true
	hand := func(datagram []byte, err error) {
		if err != nil {
			lost = true
			return
		}
		for len(datagram) > 0 {
			var m nlmsg.Message
			if m, datagram, err = nlmsg.Next(datagram); err != nil {
				return
			}
			if event, ok := parseFlowEvent(m); ok {
				more = take(event) && more
			}
		}
	}
	err = e.socket.DrainWhile(e.buffer, hand, func() bool { return more })
	return lost, err
}

func parseFlowEvent(m nlmsg.Message) (e FlowEvent, ok bool) {
	if len(m.Body) < nlmsg.SizeofNfgenmsg {
		return e, false
	}
	switch m.Kind {
	case ctnetlink<<8 | ctNew:
	case ctnetlink<<8 | ctDelete:
		e.Ended = true
	default:
		return e, false
	}
	e.TrackedFlow = parseFlow(m.Body).tracked(m.Body[nlmsg.SizeofNfgenmsg:])
	return e, true
}

func (f flow) tracked(attrs []byte) TrackedFlow {
	state := nlmsg.Find(nlmsg.Find(nlmsg.Find(attrs, ctaProtoInfo), ctaProtoInfoTCP), ctaProtoInfoTCPState)
	return TrackedFlow{
		Closed: len(state) == 1 && state[0] >= tcpLastACK,
		Flow:   f.public(attrs), ID: nlmsg.Number(nlmsg.Find(attrs, ctaID)),
		Sent: countOf(nlmsg.Find(attrs, ctaCountersOrig)), Received: countOf(nlmsg.Find(attrs, ctaCountersReply)),
	}
}

func countOf(attrs []byte) Count {
	return Count{nlmsg.Number64(nlmsg.Find(attrs, ctaCountersPackets)), nlmsg.Number64(nlmsg.Find(attrs, ctaCountersBytes))}
}

// dumpTime bounds how long the kernel may take for a part of a list.
const dumpTime = 10 * time.Second

// Flows calls take with each connection that is tracked now, with some maybe twice if the table changes meanwhile.
func (c *Conn) Flows(take func(TrackedFlow)) error {
	err := c.tracked(dumpTime, func(t tracker, _ int) error {
		request := nlmsg.Netfilter(ctnetlink, ctGet, unix.NLM_F_DUMP, uint8(FamilyAll), nil)
		err := t.socket.Execute(request, func(m nlmsg.Message) error {
			if len(m.Body) >= nlmsg.SizeofNfgenmsg {
				take(parseFlow(m.Body).tracked(m.Body[nlmsg.SizeofNfgenmsg:]))
			}
			return nil
		})
		if errors.Is(err, nlmsg.ErrInterrupted) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}
