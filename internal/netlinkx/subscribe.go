package netlinkx

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Events selects what Subscribe watches.
type Events uint

// The kinds of change.
const (
	LinkEvents Events = 1 << iota
	AddrEvents
	RouteEvents
)

func (e Events) groups() []uint {
	var groups []uint
	if e&LinkEvents != 0 {
		groups = append(groups, unix.RTNLGRP_LINK)
	}
	if e&AddrEvents != 0 {
		groups = append(groups, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	}
	if e&RouteEvents != 0 {
		groups = append(groups, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	}
	return groups
}

// Subscribe returns a channel that becomes readable after changes of the kinds given, whoever made them. Changes between
// two reads become one wake-up, and changes that the kernel had no room to report are one too: the reader lists what it
// needs and never learns from the event itself. The channel is closed when ctx ends, or when the socket breaks: then
// subscribe again.
func (c *Conn) Subscribe(ctx context.Context, events Events) (<-chan struct{}, error) {
	var socket *nl.NetlinkSocket
	err := c.ns.Do(func() (err error) {
		socket, err = nl.Subscribe(unix.NETLINK_ROUTE, events.groups()...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	wake := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, socket.Close)
	go func() {
		defer close(wake)
		defer socket.Close()
		defer stop()
		for {
			_, _, err := socket.Receive()
			if ctx.Err() != nil || (err != nil && !passing(err)) {
				return
			}
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}()
	return wake, nil
}

// passing reports whether a receive error leaves the socket usable. ENOBUFS says that events were lost, which is a reason
// to wake the reader like any other.
func passing(err error) bool {
	return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
}
