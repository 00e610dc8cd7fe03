package netlinkx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// From linux/netfilter/nfnetlink_conntrack.h and the kernel's nf_internals.h.
const (
	ctnetlink           = 1 // NFNL_SUBSYS_CTNETLINK
	ctGet               = 1 // IPCTNL_MSG_CT_GET
	ctDelete            = 2 // IPCTNL_MSG_CT_DELETE
	ctaTupleOrig        = 1
	ctaTupleReply       = 2
	ctaStatus           = 3
	ctaTupleIP          = 1
	ctaTupleProto       = 2
	ctaProtoNum         = 1
	ctaProtoSrcPort     = 2
	ctaProtoICMPType    = 5 // and code with the next
	ctaProtoICMPv6Type  = 8
	ctaIPv4Src          = 1
	ctaIPv6Src          = 3
	ctaID               = 12
	ctaZone             = 18
	ctaFilter           = 25
	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
	filterIPSource      = 1 << 0
	statusExpected      = 1 << 0  // IPS_EXPECTED
	statusOffloaded     = 1 << 14 // IPS_OFFLOAD
)

// Up to fewFlows entries, one full dump is cheaper than a filtered dump for each address and direction: every dump
// walks the whole hash table, which has 262144 buckets on a large machine and takes 10 ms.
const fewFlows = 2500

// flowCount holds the number of connections that the kernel tracks in the namespace of the calling thread.
var flowCount = sysctl.Key{"net", "netfilter", "nf_conntrack_count"}

// DeleteFlows deletes the conntrack entries of connections that one of the addresses opened or answered, whatever NAT
// did to the other end's address, and returns their number. An entry that stays would direct further packets of the
// other end, such as a UDP client, to the former place of the address, and would count as a connection of the address'
// next owner. Without connection tracking it deletes nothing.
func (c *Conn) DeleteFlows(addrs []netip.Addr) (deleted int, err error) {
	if len(addrs) > 0 {
		deleted, err = c.deleteFlows(func(t tracker, count int) ([]flow, error) { return t.find(addrs, count) })
	}
	if err != nil {
		return deleted, fmt.Errorf("forget connections of %v: %w", addrs, err)
	}
	return deleted, nil
}

// Flow is a connection that the kernel tracks.
type Flow struct {
	// Client sent the first packet, and Server received it, whatever address it was sent to before DNAT.
	Client, Server netip.Addr
	Protocol       uint8
	Port           uint16 // the server's; for ICMP and ICMPv6 the request's type<<8 | code; 0 if the protocol has no ports
	SourcePort     uint16 // the client's
	// Expected: a conntrack helper expected it because of another connection, as for FTP's data.
	Expected bool
	// Offloaded: it is in a flowtable of nftables.
	Offloaded bool
}

// DeleteFlowsIf deletes the conntrack entries for which doomed returns true, and returns their number. doomed may be
// called more than once for one entry. first, if it is not nil, is called with these connections before; after its
// error none is deleted. Without connection tracking it deletes nothing.
func (c *Conn) DeleteFlowsIf(doomed func(Flow) bool, first func([]Flow) error) (deleted int, err error) {
	deleted, err = c.deleteFlows(func(t tracker, _ int) ([]flow, error) {
		var told []Flow
		found, err := t.list(FamilyAll, nil, func(f flow, attrs []byte) bool {
			public := f.public(attrs)
			if !doomed(public) {
				return false
			}
			told = append(told, public)
			return true
		})
		if err == nil && len(found) > 0 && first != nil {
			err = first(told)
		}
		return found, err
	})
	if err != nil {
		return deleted, fmt.Errorf("forget connections: %w", err)
	}
	return deleted, nil
}

// deleteFlows deletes the entries that find returns. find is called with the number of all entries, unless that is 0.
func (c *Conn) deleteFlows(find func(t tracker, count int) ([]flow, error)) (deleted int, err error) {
	err = c.tracked(answerTimeout, func(t tracker, count int) error {
		flows, err := find(t, count)
		if err == nil {
			deleted, err = t.deleteAll(flows)
		}
		return err
	})
	return deleted, err
}

// tracked calls do in the connection's namespace, with the number of connections that the kernel tracks there, unless
// that is 0.
func (c *Conn) tracked(timeout time.Duration, do func(t tracker, count int) error) error {
	return c.ns.Do(func() error {
		text, err := sysctl.DefaultRoot.Get(flowCount)
		// Without the file there is no connection tracking. Asking for a list would load its module.
		if errors.Is(err, fs.ErrNotExist) || text == "0" {
			return nil
		}
		count, _ := strconv.Atoi(text) // unreadable counts as 0: slower at worst
		s, err := nlmsg.Open(unix.NETLINK_NETFILTER, timeout)
		if err != nil {
			return err
		}
		defer s.Close()
		return do(tracker{s}, count)
	})
}

// tracker is a socket for the kernel's table of connections.
type tracker struct{ socket *nlmsg.Socket }

// flow is an entry of the table.
type flow struct {
	family  uint8
	name    nlmsg.Attributes // its identity
	sources [2]netip.Addr    // of both directions
}

// direction is a conntrack tuple direction: original or reply.
type direction struct{ tuple, flags uint16 }

var directions = []direction{{ctaTupleOrig, ctaFilterOrigFlags}, {ctaTupleReply, ctaFilterReplyFlags}}

// find returns the entries with one of the addresses as the source of either direction; an entry may be listed twice.
// Destinations need no look: a connection to an address directly, or to a Service in front of it, has it as the source
// of the replies.
func (t *tracker) find(addrs []netip.Addr, count int) ([]flow, error) {
	isOne := func(f flow, _ []byte) bool {
		return slices.Contains(addrs, f.sources[0]) || slices.Contains(addrs, f.sources[1])
	}
	if count <= fewFlows {
		return t.list(FamilyAll, nil, isOne)
	}
	var all []flow
	for _, a := range addrs {
		for _, d := range directions {
			flows, err := t.list(FamilyOf(a), d.filter(a), isOne)
			if err != nil {
				return nil, err
			}
			all = append(all, flows...)
			if a.Is6() {
				break // unfiltered
			}
		}
	}
	return all, nil
}

// filter returns the attributes that limit a dump to entries with one source in one direction. A kernel before 5.8
// ignores them. They are of no use for IPv6, and nil: the kernel compares IPv6 addresses the wrong way round and sends
// all other entries instead (ctnetlink_filter_match_tuple, at least up to 6.18).
func (d direction) filter(a netip.Addr) (attrs nlmsg.Attributes) {
	if a.Is6() {
		return nil
	}
	var source, tuple, filter nlmsg.Attributes
	source.Add(ctaIPv4Src, a.AsSlice())
	tuple.Nest(ctaTupleIP, source)
	filter.Add(d.flags, binary.NativeEndian.AppendUint32(nil, filterIPSource))
	attrs.Nest(d.tuple, tuple)
	attrs.Nest(ctaFilter, filter)
	return attrs
}

// list dumps entries with the filter, and returns those for which keep, called with the parsed entry and all its
// attributes, returns true.
func (t *tracker) list(family Family, filter nlmsg.Attributes, keep func(flow, []byte) bool) ([]flow, error) {
	request := nlmsg.Netfilter(ctnetlink, ctGet, unix.NLM_F_DUMP, uint8(family), filter)
	return retryDump("connections", func() (found []flow, err error) {
		err = t.socket.Execute(request, func(m nlmsg.Message) error {
			if len(m.Body) < nlmsg.SizeofNfgenmsg {
				return nil
			}
			if f, attrs := parseFlow(m.Body), m.Body[nlmsg.SizeofNfgenmsg:]; keep(f, attrs) {
				f.name = identity(attrs)
				found = append(found, f)
			}
			return nil
		})
		return found, err
	})
}

func (t *tracker) deleteAll(flows []flow) (deleted int, err error) {
	for _, f := range flows {
		switch err := t.delete(f); {
		case err == nil:
			deleted++
		case !IsNotExist(err): // not found: it ended meanwhile
			return deleted, err
		}
	}
	return deleted, nil
}

// delete deletes one entry. A request that names no entry would delete all.
func (t *tracker) delete(f flow) error {
	if len(f.name) == 0 {
		return errors.New("the kernel listed a connection without a tuple")
	}
	request := nlmsg.Netfilter(ctnetlink, ctDelete, unix.NLM_F_ACK, f.family, f.name)
	return t.socket.Execute(request, func(nlmsg.Message) error { return nil })
}

func parseFlow(body []byte) (f flow) {
	if len(body) < nlmsg.SizeofNfgenmsg {
		return f
	}
	f.family = body[0]
	attrs := body[nlmsg.SizeofNfgenmsg:]
	f.sources[0] = tupleSource(nlmsg.Find(attrs, ctaTupleOrig))
	f.sources[1] = tupleSource(nlmsg.Find(attrs, ctaTupleReply))
	return f
}

// public returns the exported form of an entry with these attributes.
func (f flow) public(attrs []byte) Flow {
	proto := nlmsg.Find(nlmsg.Find(attrs, ctaTupleReply), ctaTupleProto)
	status := nlmsg.Number(nlmsg.Find(attrs, ctaStatus))
	out := Flow{Client: f.sources[0], Server: f.sources[1], Expected: status&statusExpected != 0, Offloaded: status&statusOffloaded != 0}
	if number := nlmsg.Find(proto, ctaProtoNum); len(number) == 1 {
		out.Protocol = number[0]
	}
	request := nlmsg.Find(nlmsg.Find(attrs, ctaTupleOrig), ctaTupleProto)
	switch {
	case slices.Contains(withPorts, out.Protocol):
		out.Port, out.SourcePort = sourcePort(proto), sourcePort(request)
	case out.Protocol == unix.IPPROTO_ICMP:
		out.Port = typeAndCode(request, ctaProtoICMPType)
	case out.Protocol == unix.IPPROTO_ICMPV6:
		out.Port = typeAndCode(request, ctaProtoICMPv6Type)
	}
	return out
}

func sourcePort(proto []byte) uint16 {
	if port := nlmsg.Find(proto, ctaProtoSrcPort); len(port) == 2 {
		return binary.BigEndian.Uint16(port)
	}
	return 0
}

func typeAndCode(proto []byte, kind uint16) uint16 {
	if b := slices.Concat(nlmsg.Find(proto, kind), nlmsg.Find(proto, kind+1)); len(b) == 2 {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// withPorts are the protocols with ports: conntrack keeps other values in their place for other protocols.
var withPorts = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP}

// identity returns the attributes that name an entry in a request to delete it: its tuple, and its ID and zone if it
// has them.
func identity(attrs []byte) (name nlmsg.Attributes) {
	tuple := nlmsg.Find(attrs, ctaTupleOrig)
	if tuple == nil {
		return nil
	}
	name.Nest(ctaTupleOrig, tuple)
	for _, kind := range []uint16{ctaID, ctaZone} {
		if value := nlmsg.Find(attrs, kind); value != nil {
			name.Add(kind, value)
		}
	}
	return name
}

func tupleSource(tuple []byte) netip.Addr {
	ip := nlmsg.Find(tuple, ctaTupleIP)
	source := nlmsg.Find(ip, ctaIPv4Src)
	if source == nil {
		source = nlmsg.Find(ip, ctaIPv6Src)
	}
	a, _ := netip.AddrFromSlice(source)
	return a
}
