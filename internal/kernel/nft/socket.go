package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

const (
	// answerTimeout bounds all exchanges with the kernel for one Sync.
	answerTimeout = 20 * time.Second
	subsystem     = unix.NFNL_SUBSYS_NFTABLES << 8
	family        = unix.NFPROTO_INET

	// batchGeneration is NFNL_BATCH_GENID of linux/netfilter/nfnetlink.h.
	batchGeneration = 1
)

// socket is a netlink socket for one Sync.
type socket struct{ *netlink.Conn }

// dial opens a socket in the namespace of a file descriptor, or the thread's own if that is 0.
func dial(ctx context.Context, netns int) (socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return socket{}, fmt.Errorf("open nftables socket: %w", err)
	}
	deadline := time.Now().Add(answerTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return socket{}, fmt.Errorf("set deadline of nftables socket: %w", err)
	}
	return socket{conn}, nil
}

// message makes a request; family and version go before its attributes.
func message(kind int, flags netlink.HeaderFlags, attrs attributes) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(subsystem | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
}

// ask returns the attributes of each part of the answer.
func (s socket) ask(kind int, flags netlink.HeaderFlags, attrs attributes) ([][]byte, error) {
	answer, err := s.Execute(message(kind, flags, attrs))
	if err != nil {
		return nil, err
	}
	var parts [][]byte
	for _, m := range answer {
		if len(m.Data) >= 4 {
			parts = append(parts, m.Data[4:])
		}
	}
	return parts, nil
}

// generation counts the transactions of the namespace, whosever they are.
func (s socket) generation() (uint32, error) {
	answer, err := s.ask(unix.NFT_MSG_GETGEN, 0, nil)
	if err != nil {
		return 0, explain(fmt.Errorf("ask for the generation of nftables: %w", err))
	}
	if len(answer) != 1 {
		return 0, errors.New("ask for the generation of nftables: no answer")
	}
	return number(find(answer[0], unix.NFTA_GEN_ID)), nil
}

// successor is the generation after g; there is none with number 0.
func successor(g uint32) uint32 {
	if g++; g == 0 {
		g++
	}
	return g
}

// commit sends a transaction, which the kernel refuses as a whole unless the generation is still the one given.
func (s socket) commit(generation uint32, requests []netlink.Message) error {
	batch := make([]netlink.Message, 0, len(requests)+2)
	batch = append(batch, boundary(unix.NFNL_MSG_BATCH_BEGIN, generation))
	batch = append(batch, requests...)
	// The kernel reports each request that fails. One answer for success is enough: of thousands, some would get lost.
	batch[len(batch)-1].Header.Flags |= netlink.Acknowledge
	batch = append(batch, boundary(unix.NFNL_MSG_BATCH_END, 0))
	size := 0
	for _, m := range batch {
		size += unix.NLMSG_HDRLEN + len(m.Data) + padding(len(m.Data))
	}
	// What makes it a transaction is that it is one piece.
	if err := s.SetWriteBuffer(size + 4096); err != nil {
		return fmt.Errorf("make room for a transaction of %d bytes: %w", size, err)
	}
	sent, err := s.SendMessages(batch)
	if err != nil {
		return err
	}
	return s.awaitAnswer(sent[len(sent)-2].Header.Sequence)
}

// boundary begins or ends a transaction.
func boundary(kind netlink.HeaderType, generation uint32) netlink.Message {
	m := netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request},
		Data:   binary.BigEndian.AppendUint16([]byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES),
	}
	if generation != 0 {
		var a attributes
		a.number(batchGeneration, generation)
		m.Data = append(m.Data, a...)
	}
	return m
}

func (s socket) awaitAnswer(sequence uint32) error {
	for {
		answer, err := s.Receive()
		if err != nil {
			return err
		}
		for _, m := range answer {
			if m.Header.Type == netlink.Error && m.Header.Sequence == sequence {
				return nil
			}
		}
	}
}

// stale reports that the kernel refused a transaction because there was another one in between.
func stale(err error) bool { return errors.Is(err, unix.ERESTART) }

// explain adds what the kernel leaves out: it answers "no such file" for a kind of chain or expression that it does not have.
func explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: needs CAP_NET_ADMIN, and a table that no other process has made its own", err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: a rule that somebody else has put into the table uses what has to go: see nft -a list table inet %s", err, TableName)
	case errors.Is(err, fs.ErrNotExist), netlinkx.IsUnsupported(err), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: the kernel may lack a part of nftables: load modules nf_tables, nft_chain_nat, nft_ct and nft_masq, or set CONFIG_NF_TABLES_INET", err)
	}
	return err
}
