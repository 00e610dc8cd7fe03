package nft

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// CountForeign listens until ctx ends, and returns a function that counts, since its last call, the datagrams after
// which a channel of Events wakes.
func (t *Table) CountForeign(ctx context.Context) (count func() (int, error), err error) {
	var socket *nlmsg.Events
	err = within(t.ns, func() (err error) {
		socket, err = nlmsg.ListenUnwatched(unix.NETLINK_NETFILTER, []int{unix.NFNLGRP_NFTABLES}, eventBuffer)
		return err
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	touched := false
	return func() (n int, err error) {
		err = socket.Drain(make([]byte, eventSize), func(datagram []byte, lost error) {
			if t.foreign(datagram, lost, &touched) {
				n++
			}
		})
		return n, err
	}, nil
}
