package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

const (
	// answerTimeout bounds all exchanges with the kernel for one Sync.
	answerTimeout = 20 * time.Second
	family        = unix.NFPROTO_INET

	// batchGeneration is NFNL_BATCH_GENID of linux/netfilter/nfnetlink.h.
	batchGeneration = 1
)

// socket is a netlink socket for one table, usually for one Sync.
type socket struct {
	conn
	table string
}

// conn is the interface of *nlmsg.Socket.
type conn interface {
	Execute(request nlmsg.Message, take func(nlmsg.Message) error) error
	Batch(requests []nlmsg.Message) error
	Close()
}

// dial opens a socket in a namespace, or in the process's if it is nil.
func dial(ctx context.Context, ns *netlinkx.Namespace) (socket, error) {
	s, err := open(ctx, ns)
	return socket{s, TableName}, err
}

func open(ctx context.Context, ns *netlinkx.Namespace) (s *nlmsg.Socket, err error) {
	timeout := answerTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(end), time.Millisecond))
	}
	err = within(ns, func() (err error) {
		s, err = nlmsg.Open(unix.NETLINK_NETFILTER, timeout)
		return err
	})
	return s, err
}

func within(ns *netlinkx.Namespace, f func() error) error {
	if ns == nil {
		return f()
	}
	return ns.Do(f)
}

// message returns a request about an object of family inet.
func message(kind int, flags uint16, attrs nlmsg.Attributes) nlmsg.Message {
	return nlmsg.Netfilter(unix.NFNL_SUBSYS_NFTABLES, kind, flags, family, attrs)
}

// ask calls take with the family and the attributes of each part of the answer; take must not keep them. An interrupted
// list is not an error: readers compare generations, and writers name one.
func (s socket) ask(request nlmsg.Message, take func(family uint8, attrs []byte)) error {
	err := s.Execute(request, func(m nlmsg.Message) error {
		if len(m.Body) >= nlmsg.SizeofNfgenmsg {
			take(m.Body[0], m.Body[nlmsg.SizeofNfgenmsg:])
		}
		return nil
	})
	if errors.Is(err, nlmsg.ErrInterrupted) {
		return nil
	}
	return err
}

// generation returns the number of the namespace's last transaction, by any program.
func (s socket) generation() (g uint32, err error) {
	answered := false
	err = s.ask(message(unix.NFT_MSG_GETGEN, 0, nil), func(_ uint8, b []byte) {
		g, answered = nlmsg.Number(nlmsg.Find(b, unix.NFTA_GEN_ID)), true
	})
	if err == nil && !answered {
		err = errors.New("no answer")
	}
	if err != nil {
		return 0, s.explain(fmt.Errorf("ask for the generation of nftables: %w", err))
	}
	return g, nil
}

// successor returns the generation after g; 0 is skipped.
func successor(g uint32) uint32 {
	if g++; g == 0 {
		g++
	}
	return g
}

// commit sends a transaction, which the kernel refuses as a whole unless the generation is still the one given.
func (s socket) commit(generation uint32, requests []nlmsg.Message) error {
	return s.Batch(append(begun(generation, requests), boundary(unix.NFNL_MSG_BATCH_END, 0)))
}

// check sends a transaction without its end: the kernel checks and aborts it.
func (s socket) check(requests []nlmsg.Message) error { return s.Batch(begun(0, requests)) }

// begun returns a transaction without its end.
func begun(generation uint32, requests []nlmsg.Message) []nlmsg.Message {
	batch := make([]nlmsg.Message, 0, len(requests)+2)
	batch = append(batch, boundary(unix.NFNL_MSG_BATCH_BEGIN, generation))
	batch = append(batch, requests...)
	// The kernel reports each request that fails. One answer for success is enough: of thousands, some would be lost.
	batch[len(batch)-1].Flags |= unix.NLM_F_ACK
	return batch
}

// boundary returns the message that begins or ends a transaction.
func boundary(kind uint16, generation uint32) nlmsg.Message {
	m := nlmsg.Message{Kind: kind,
		Body: binary.BigEndian.AppendUint16([]byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)}
	if generation != 0 {
		var a nlmsg.Attributes
		a.Number(batchGeneration, generation)
		m.Body = append(m.Body, a...)
	}
	return m
}

// stale reports whether the kernel refused a transaction because there was another one in between.
func stale(err error) bool { return errors.Is(err, unix.ERESTART) }

// explain adds a remedy to the kernel's error: ENOENT, for example, can mean a missing kind of chain or expression.
func (s socket) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: needs CAP_NET_ADMIN, and a table that no other process has made its own", err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: a rule of another program in the table uses what has to go: see nft -a list table inet %s", err, s.table)
	case errors.Is(err, fs.ErrNotExist), netlinkx.IsUnsupported(err), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: the kernel may lack a part of nftables: load modules nf_tables, nft_chain_nat, nft_ct and nft_masq, or set "+
			"CONFIG_NF_TABLES_INET", err)
	}
	return err
}
