package netlinkx

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// What linux/netfilter/nfnetlink_conntrack.h and the kernel's nf_internals.h add to the library's constants.
const (
	ctnetlink           = 1 // the subsystem's number
	ctaFilter           = 25
	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
	filterIPSource      = 1 << 0

	// nfgenmsg, ahead of a message's attributes.
	sizeofNfgenmsg = 4
)

// fewFlows is up to how many connections one look at all of them costs less than a filtered look for each address and
// direction: every look goes through the whole hash table, which has 262144 buckets on a machine of some size and takes 10 ms.
const fewFlows = 2500

// flowCount is how many connections the kernel tracks in the namespace of the calling thread.
var flowCount = sysctl.Key{"net", "netfilter", "nf_conntrack_count"}

// DeleteFlows makes the kernel forget the connections that an address was one end of, and returns how many they were: those
// that it began, and those that were answered by it, whatever NAT did to either's other address. An entry that stays would
// send what the other end still sends, as a UDP client does, to where the address was, and would be taken for a connection
// of the address' next owner. A kernel that tracks no connections has nothing to forget.
func (c *Conn) DeleteFlows(addrs []netip.Addr) (deleted int, err error) {
	err = c.ns.Do(func() error {
		text, err := sysctl.DefaultRoot.Get(flowCount)
		// Without the file there is no connection tracking. Asking for a list would load its module.
		if errors.Is(err, fs.ErrNotExist) || text == "0" || len(addrs) == 0 {
			return nil
		}
		count, _ := strconv.Atoi(text) // unreadable is taken for few: slower at worst
		t, err := openTracker()
		if err != nil {
			return err
		}
		defer t.socket.Close()
		flows, err := t.find(addrs, count)
		if err != nil {
			return err
		}
		deleted, err = t.deleteAll(flows)
		return err
	})
	if err != nil {
		return deleted, fmt.Errorf("forget connections of %v: %w", addrs, err)
	}
	return deleted, nil
}

// tracker is a connection to the kernel's table of connections.
type tracker struct{ socket *nl.NetlinkSocket }

func openTracker() (*tracker, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	timeout := unix.NsecToTimeval(int64(answerTimeout))
	if err := errors.Join(s.SetSendTimeout(&timeout), s.SetReceiveTimeout(&timeout)); err != nil {
		s.Close()
		return nil, fmt.Errorf("set timeout on netfilter socket: %w", err)
	}
	return &tracker{s}, nil
}

func (t *tracker) request(operation, flags int, family Family) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(ctnetlink<<8|operation, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: t.socket, Seq: req.Seq}}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(family), Version: nl.NFNETLINK_V0})
	return req
}

// flow is an entry as the kernel sent it.
type flow struct {
	family  Family
	name    []*nl.RtAttr  // what identifies it
	sources [2]netip.Addr // of both directions
}

// direction is one of an entry's.
type direction struct{ tuple, flags int }

var directions = []direction{{nl.CTA_TUPLE_ORIG, ctaFilterOrigFlags}, {nl.CTA_TUPLE_REPLY, ctaFilterReplyFlags}}

// find returns the entries that have one of the addresses for a source of either direction; an entry may be there twice. The
// addresses as destinations add nothing: who sends to one directly, or to a service that it stands behind, is answered by it.
func (t *tracker) find(addrs []netip.Addr, count int) ([]flow, error) {
	if count <= fewFlows {
		return t.list(t.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, FamilyAll), addrs)
	}
	var all []flow
	for _, a := range addrs {
		for _, d := range directions {
			req := t.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, FamilyOf(a))
			d.filter(req, a)
			flows, err := t.list(req, addrs)
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

// filter asks the kernel for the entries with one source in one direction, so that it need not send them all. A kernel before
// 5.8 ignores this. It is of no use for IPv6: the kernel compares those addresses the wrong way round and sends all entries
// but the ones asked for (ctnetlink_filter_match_tuple, at least up to 6.18).
func (d direction) filter(req *nl.NetlinkRequest, a netip.Addr) {
	if a.Is6() {
		return
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|d.tuple, nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_SRC, a.AsSlice())
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(d.flags, nl.Uint32Attr(filterIPSource))
	req.AddData(tuple)
	req.AddData(filter)
}

// list carries out a request and keeps the entries with one of the addresses for a source.
func (t *tracker) list(req *nl.NetlinkRequest, addrs []netip.Addr) ([]flow, error) {
	return retryDump("connections", func() (found []flow, err error) {
		err = req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
			f := parseFlow(msg)
			if slices.Contains(addrs, f.sources[0]) || slices.Contains(addrs, f.sources[1]) {
				found = append(found, f)
			}
			return true
		})
		return found, err
	})
}

func (t *tracker) deleteAll(flows []flow) (deleted int, err error) {
	for _, f := range flows {
		switch err := t.delete(f); {
		case err == nil:
			deleted++
		case !IsNotExist(err): // it ended meanwhile
			return deleted, err
		}
	}
	return deleted, nil
}

// delete deletes one entry. The kernel takes a deletion that names none for one of all.
func (t *tracker) delete(f flow) error {
	if len(f.name) == 0 {
		return errors.New("the kernel listed a connection without a tuple")
	}
	req := t.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, f.family)
	for _, a := range f.name {
		req.AddData(a)
	}
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func parseFlow(msg []byte) (f flow) {
	if len(msg) < sizeofNfgenmsg {
		return f
	}
	attrs, err := nl.ParseRouteAttr(msg[sizeofNfgenmsg:])
	if err != nil {
		return f
	}
	f.family = Family(msg[0])
	var tuple, more []*nl.RtAttr
	for _, a := range attrs {
		switch kindOf(a) {
		case nl.CTA_TUPLE_ORIG:
			f.sources[0] = tupleSource(a)
			tuple = append(tuple, clone(a))
		case nl.CTA_TUPLE_REPLY:
			f.sources[1] = tupleSource(a)
		case nl.CTA_ID, nl.CTA_ZONE:
			more = append(more, clone(a))
		}
	}
	if len(tuple) > 0 {
		f.name = append(tuple, more...)
	}
	return f
}

func clone(a syscall.NetlinkRouteAttr) *nl.RtAttr {
	return nl.NewRtAttr(int(a.Attr.Type), slices.Clone(a.Value))
}

func tupleSource(tuple syscall.NetlinkRouteAttr) netip.Addr {
	for _, a := range nested(tuple.Value, nl.CTA_TUPLE_IP) {
		switch kindOf(a) {
		case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
			return addrFromIP(a.Value)
		}
	}
	return netip.Addr{}
}

// nested returns the attributes inside the attribute of one kind.
func nested(value []byte, kind int) []syscall.NetlinkRouteAttr {
	attrs, err := nl.ParseRouteAttr(value)
	if err != nil {
		return nil
	}
	for _, a := range attrs {
		if kindOf(a) == kind {
			inner, _ := nl.ParseRouteAttr(a.Value)
			return inner
		}
	}
	return nil
}

// kindOf is an attribute's number without the flags that share its place.
func kindOf(a syscall.NetlinkRouteAttr) int {
	return int(a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER))
}
