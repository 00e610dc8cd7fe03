package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// eventBuffer has room for the events of a transaction of some thousand changes. An overflow wakes the reader as well.
const eventBuffer = 1 << 20

// eventSize exceeds the kernel's largest datagram of events.
const eventSize = 1 << 16

// Events returns a channel that becomes readable after another program, or another Table, has changed the table.
// Changes between two reads become one wake-up. The channel is closed when ctx ends, or when the socket breaks: then
// subscribe again.
func (t *Table) Events(ctx context.Context) (<-chan struct{}, error) {
	var socket *nlmsg.Events
	err := within(t.ns, func() (err error) {
		socket, err = nlmsg.Listen(unix.NETLINK_NETFILTER, []int{unix.NFNLGRP_NFTABLES}, nil, eventBuffer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables events: %w", err)
	}
	wake := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		defer close(wake)
		defer func() { _ = socket.Close() }()
		defer stop()
		t.listen(socket, wake)
	}()
	return wake, nil
}

// listen wakes until the socket breaks or is closed.
func (t *Table) listen(socket *nlmsg.Events, wake chan<- struct{}) {
	touched := false
	datagram := make([]byte, eventSize)
	for {
		n, err := socket.Receive(datagram)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		if t.foreign(datagram[:n], err, &touched) {
			notify(wake)
		}
	}
}

// foreign reports whether a datagram of events, or with an error the loss of some, may be of a change by others.
// touched keeps, between datagrams of one transaction, whether it has changed the table.
func (t *Table) foreign(datagram []byte, lost error, touched *bool) (is bool) {
	if lost != nil {
		*touched = false
		return true
	}
	for rest := datagram; len(rest) > 0; {
		var m nlmsg.Message
		var err error
		if m, rest, err = nlmsg.Next(rest); err != nil {
			return true // it did not fit
		}
		made, ends := generationOf(m)
		*touched = *touched || isOf(m, TableName)
		is = is || ends && *touched && !t.isOwn(made)
		*touched = *touched && !ends
	}
	return is
}

func notify(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// isOf reports whether a change is in a table: all kinds of changes have the table's name in the same attribute.
func isOf(m nlmsg.Message, table string) bool {
	return m.Kind>>8 == unix.NFNL_SUBSYS_NFTABLES && len(m.Body) >= nlmsg.SizeofNfgenmsg && m.Body[0] == family &&
		nlmsg.Text(nlmsg.Find(m.Body[nlmsg.SizeofNfgenmsg:], unix.NFTA_TABLE_NAME)) == table
}

// generationOf returns the generation that a transaction made. The kernel sends it after the transaction's changes.
func generationOf(m nlmsg.Message) (made uint32, ok bool) {
	if m.Kind != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN || len(m.Body) < nlmsg.SizeofNfgenmsg {
		return 0, false
	}
	return nlmsg.Number(nlmsg.Find(m.Body[nlmsg.SizeofNfgenmsg:], unix.NFTA_GEN_ID)), true
}

// isOwn reports whether this Table made a generation. Its event may come while Sync still waits for the kernel's
// answer.
func (t *Table) isOwn(generation uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.own, generation)
}
