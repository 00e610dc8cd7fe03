package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// eventBuffer takes the notes of a transaction of some thousand changes. What does not fit is a reason to look as well.
const eventBuffer = 1 << 20

// Events returns a channel that becomes readable after somebody else than this Table has changed something in the table.
// Changes between two reads become one wake-up. The channel is closed when ctx ends, or when the socket breaks: then ask again.
func (t *Table) Events(ctx context.Context) (<-chan struct{}, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.netns})
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	err = errors.Join(conn.SetReadBuffer(eventBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to nftables events: %w", err)
	}
	wake := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		defer close(wake)
		defer conn.Close()
		defer stop()
		t.listen(conn, wake)
	}()
	return wake, nil
}

// listen wakes until the socket breaks or is closed.
func (t *Table) listen(conn *netlink.Conn, wake chan<- struct{}) {
	touched := false
	for {
		messages, err := conn.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			touched = false
			notify(wake) // something was lost
			continue
		}
		if err != nil {
			return
		}
		for _, m := range messages {
			made, ends := generationOf(m)
			touched = touched || isOurs(m)
			if ends && touched && !t.isOwn(made) {
				notify(wake)
			}
			touched = touched && !ends
		}
	}
}

func notify(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// isOurs reports that a change is one of our table: all kinds of changes have the table's name in the same attribute.
func isOurs(m netlink.Message) bool {
	return m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES && len(m.Data) >= 4 && m.Data[0] == family &&
		text(find(m.Data[4:], unix.NFTA_TABLE_NAME)) == TableName
}

// generationOf returns the generation that a transaction made. The kernel tells it after the transaction's changes.
func generationOf(m netlink.Message) (made uint32, ok bool) {
	if m.Header.Type != subsystem|unix.NFT_MSG_NEWGEN || len(m.Data) < 4 {
		return 0, false
	}
	return number(find(m.Data[4:], unix.NFTA_GEN_ID)), true
}

// isOwn reports that this Table made a generation. The note of it may come while Sync still waits for the kernel's answer.
func (t *Table) isOwn(generation uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.own, generation)
}
