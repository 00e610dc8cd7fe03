package netpol

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/policy"
)

// LogGroup is the nfnetlink_log group for packets that a policy has denied.
const LogGroup = 1791

// Drop is a packet that a policy has denied, or that a Log rule has matched.
type Drop struct {
	// Why is the text of Denied: "ingress NetworkPolicy default/web". If the packet is Logged, the index of the rule
	// follows: "... rule 2".
	Why      string
	Logged   bool
	Src, Dst netip.Addr
	Protocol uint8
	// SrcPort and DstPort are 0 for protocols without ports.
	SrcPort, DstPort uint16
	// ICMP is type << 8 | code for ICMP and ICMPv6.
	ICMP uint16
	// Bytes is the length of the packet.
	Bytes uint64
}

// dropBuffer is how many Drops wait for the reader; more are left out.
const dropBuffer = 64

// Constants of linux/netfilter/nfnetlink_log.h.
const (
	logPacket       = 0  // NFULNL_MSG_PACKET
	logConfig       = 1  // NFULNL_MSG_CONFIG
	logCommand      = 1  // NFULA_CFG_CMD
	logMode         = 2  // NFULA_CFG_MODE
	logTimeout      = 4  // NFULA_CFG_TIMEOUT, in hundredths of a second
	logBind         = 1  // NFULNL_CFG_CMD_BIND
	logCopyPacket   = 2  // NFULNL_COPY_PACKET
	logPayload      = 9  // NFULA_PAYLOAD
	logPrefix       = 10 // NFULA_PREFIX
	logFlush        = 10 // a tenth of a second
	logBytes        = 128
	logDatagramSize = 1 << 16
)

// Drops returns a channel of packets of a namespace that policies have denied, or that Log rules have matched; nil is
// the process's namespace. They are a sample: the kernel reports up to five per second for each policy and direction.
// The channel is closed when ctx ends, or when the socket breaks: then call Drops again. Only one process per namespace
// can bind the group; others get unix.EPERM.
func Drops(ctx context.Context, ns *netlinkx.Namespace) (<-chan Drop, error) {
	var socket *nlmsg.Events
	listen := func() (err error) {
		socket, err = nlmsg.Listen(unix.NETLINK_NETFILTER, nil, nil, 0)
		return err
	}
	err := listen
	if ns != nil {
		err = func() error { return ns.Do(listen) }
	}
	if err := err(); err != nil {
		return nil, fmt.Errorf("open a socket for packets that policies deny: %w", err)
	}
	if err := bind(socket); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("ask for packets of log group %d, which needs module nfnetlink_log or CONFIG_NETFILTER_NETLINK_LOG, and no "+
			"other process that does so: %w", LogGroup, err)
	}
	drops := make(chan Drop, dropBuffer)
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		defer close(drops)
		defer func() { _ = socket.Close() }()
		defer stop()
		receive(socket, drops)
	}()
	return drops, nil
}

// bind requests the group's packets, truncated to their headers.
func bind(socket *nlmsg.Events) error {
	var a nlmsg.Attributes
	a.Add(logCommand, []byte{logBind})
	a.Add(logMode, []byte{0, 0, 0, logBytes, logCopyPacket, 0})
	a.Number(logTimeout, logFlush)
	m := nlmsg.Netfilter(unix.NFNL_SUBSYS_ULOG, logConfig, 0, unix.AF_UNSPEC, a)
	binary.BigEndian.PutUint16(m.Body[2:], LogGroup)
	return socket.Ask(m)
}

func receive(socket *nlmsg.Events, drops chan<- Drop) {
	b := make([]byte, logDatagramSize)
	for {
		n, err := socket.Receive(b)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		for rest := b[:n]; err == nil && len(rest) > 0; {
			var m nlmsg.Message
			if m, rest, err = nlmsg.Next(rest); err != nil {
				break
			}
			if d, ok := readDrop(m); ok {
				select {
				case drops <- d:
				default:
				}
			}
		}
	}
}

// readDrop reads a message of the log.
func readDrop(m nlmsg.Message) (d Drop, ok bool) {
	if m.Kind != unix.NFNL_SUBSYS_ULOG<<8|logPacket || len(m.Body) < nlmsg.SizeofNfgenmsg {
		return d, false
	}
	attrs := m.Body[nlmsg.SizeofNfgenmsg:]
	d.Why, d.Logged = strings.CutPrefix(nlmsg.Text(nlmsg.Find(attrs, logPrefix)), logged)
	return d, d.readPacket(nlmsg.Find(attrs, logPayload))
}

// readPacket reads the headers of a packet, for IPv6 without extension headers.
func (d *Drop) readPacket(b []byte) (ok bool) {
	const (
		ip4Size, ip4Protocol, ip4Src, ip4Dst = 20, 9, 12, 16
		ip6Size, ip6Protocol, ip6Src, ip6Dst = 40, 6, 8, 24
	)
	size := 0
	switch {
	case len(b) >= ip4Size && b[0]>>4 == 4:
		d.Src, _ = netip.AddrFromSlice(b[ip4Src:ip4Dst])
		d.Dst, _ = netip.AddrFromSlice(b[ip4Dst:ip4Size])
		d.Protocol, size = b[ip4Protocol], int(b[0]&0xf)*4
		d.Bytes = uint64(binary.BigEndian.Uint16(b[2:]))
	case len(b) >= ip6Size && b[0]>>4 == 6:
		d.Src, _ = netip.AddrFromSlice(b[ip6Src:ip6Dst])
		d.Dst, _ = netip.AddrFromSlice(b[ip6Dst:ip6Size])
		d.Protocol, size = b[ip6Protocol], ip6Size
		d.Bytes = ip6Size + uint64(binary.BigEndian.Uint16(b[4:]))
	default:
		return false
	}
	switch {
	case len(b) < size+4:
	case policy.HasPorts(d.Protocol):
		d.SrcPort, d.DstPort = binary.BigEndian.Uint16(b[size:]), binary.BigEndian.Uint16(b[size+2:])
	case d.Protocol == unix.IPPROTO_ICMP || d.Protocol == unix.IPPROTO_ICMPV6:
		d.ICMP = binary.BigEndian.Uint16(b[size:])
	}
	return true
}

// Denied parses Why of a packet that is not Logged. ok is false for another program's text.
func (d *Drop) Denied() (by Denied, ok bool) {
	if d.Logged {
		return by, false
	}
	return parseDenied(d.Why)
}

// Policy returns the policy of the Log rule that a packet has matched; a name that was too long is cut.
func (d *Drop) Policy() policy.ID {
	text, _, _ := strings.Cut(d.Why, " rule ")
	by, _ := parseDenied(text)
	return by.By
}
