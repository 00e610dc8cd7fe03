package netlinkx

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// batchSize is how many requests one system call carries. Their answers have to fit into the socket's receive buffer: the
// kernel drops what does not, and keeps no more than about 250 in the default one.
const batchSize = 128

// AddRoutes is AddRoute for many routes. The answer has one error for each route, in their order, nil where it was added.
// The kernel works through them in order. None may be Multipath. 10,000 routes take a third of the time of as many calls of AddRoute, since a
// system call, and a change of the thread, are paid once for a batch of them.
func (c *Conn) AddRoutes(routes []Route) []error {
	return c.batchRoutes("add", unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, routes)
}

// DeleteRoutes is DeleteRoute for many routes: see AddRoutes.
func (c *Conn) DeleteRoutes(routes []Route) []error {
	return c.batchRoutes("delete", unix.RTM_DELROUTE, 0, routes)
}

func (c *Conn) batchRoutes(verb string, kind, flags int, routes []Route) []error {
	errs := make([]error, len(routes))
	b, err := c.openBatch()
	if err != nil {
		return fill(errs, fmt.Errorf("%s %d routes: %w", verb, len(routes), err))
	}
	defer b.close()
	for from := 0; from < len(routes); from += batchSize {
		part := routes[from:min(from+batchSize, len(routes))]
		requests := make([][]byte, len(part))
		for i, r := range part {
			requests[i] = r.request(kind, flags, uint32(i+1))
		}
		answers, err := b.exchange(requests)
		if err != nil { // nobody knows how many of these arrived; the next Sync reads what is there
			fill(errs[from:], fmt.Errorf("%s %d routes: %w", verb, len(routes)-from, err))
			return errs
		}
		for i, answer := range answers {
			if answer != nil {
				errs[from+i] = fmt.Errorf("%s route %s: %w", verb, part[i], answer)
			}
		}
	}
	return errs
}

func fill(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// request encodes one rtnetlink request: rtnetlink(7).
func (r Route) request(kind, flags int, seq uint32) []byte {
	lib := r.toLibrary()
	msg := nl.NewRtMsg()
	msg.Family = uint8(nl.GetIPFamily(lib.Dst.IP))
	msg.Dst_len = uint8(r.Dst.Bits())
	msg.Scope, msg.Type = uint8(lib.Scope), uint8(lib.Type)
	msg.Protocol = uint8(cmp.Or(r.Protocol, ProtocolBoot))
	msg.Flags = uint32(lib.Flags)
	msg.Table = unix.RT_TABLE_UNSPEC // the attribute has room for all of them
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.Seq = seq
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(lib.Table))))
	req.AddData(nl.NewRtAttr(unix.RTA_DST, r.Dst.Addr().AsSlice()))
	if r.Via.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Via.AsSlice()))
	}
	if r.Src.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, r.Src.AsSlice()))
	}
	if r.Dev != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(r.Dev))))
	}
	if r.Metric != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(r.Metric)))
	}
	return req.Serialize()
}

// batch is a socket of its own: answers to many requests must not mix with those of others.
type batch struct {
	fd     int
	buffer []byte
}

func (c *Conn) openBatch() (b *batch, err error) {
	b = &batch{buffer: make([]byte, 64<<10)}
	err = c.ns.Do(func() (err error) {
		b.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	for _, set := range []func() error{
		// Without it an answer that says what failed repeats the request.
		func() error { return unix.SetsockoptInt(b.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) },
		func() error { return unix.SetsockoptTimeval(b.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout) },
		func() error { return unix.SetsockoptTimeval(b.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout) },
		func() error { return unix.Bind(b.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) },
	} {
		if err := set(); err != nil {
			b.close()
			return nil, fmt.Errorf("set up netlink socket: %w", err)
		}
	}
	return b, nil
}

func (b *batch) close() { _ = unix.Close(b.fd) }

// exchange sends requests that are numbered from 1 on and returns the kernel's answer to each.
func (b *batch) exchange(requests [][]byte) ([]error, error) {
	if err := unix.Sendto(b.fd, slices.Concat(requests...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	answers := make([]error, len(requests))
	for left := len(requests); left > 0; {
		n, _, err := unix.Recvfrom(b.fd, b.buffer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(b.buffer[:n])
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		for _, m := range messages {
			at := int(m.Header.Seq) - 1
			if m.Header.Type != unix.NLMSG_ERROR || at < 0 || at >= len(answers) || len(m.Data) < 4 {
				continue
			}
			left--
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				answers[at] = syscall.Errno(-code)
			}
		}
	}
	return answers, nil
}
