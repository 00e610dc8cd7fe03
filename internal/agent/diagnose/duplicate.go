package diagnose

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// Claims are the MACs of the other hosts on a link that claim an address.
type Claims struct {
	Addr netip.Addr
	Link string
	Own  bool   // it is this node's own address
	Node string // the node with the address, if known
	MACs []string
	Err  error
}

const (
	// mostAsked bounds the peers that are asked for their MAC.
	mostAsked = 256
	// macTries is the number of requests per address; after each, answers are collected for answerTime.
	macTries = 2
)

// lookForDuplicates asks on the node's links which hosts have the node's addresses, and addresses of peers in the same
// subnets. It changes no neighbour entries elsewhere: a probe for the own address has no sender address (RFC 5227, RFC
// 4862).
func lookForDuplicates(ctx context.Context, o *Observations) (all []Claims) {
	r := o.report()
	var mine []string // a second link of this host in the network answers too
	for _, l := range o.Links {
		mine = append(mine, l.HardwareAddr.String())
	}
	for _, own := range []struct{ address, link string }{{r.Address, r.Interface}, {r.Address6, r.Interface6}} {
		subnet, err := netip.ParsePrefix(own.address)
		i := slices.IndexFunc(o.Links, func(l netlinkx.Link) bool { return l.Name == own.link })
		if err != nil || i < 0 {
			continue
		}
		wanted := []Claims{{Addr: subnet.Addr(), Link: own.link, Own: true}}
		for i := range o.Peers {
			p := &o.Peers[i] // is being probed: its other fields change
			if len(wanted) <= mostAsked && p.Way == own.link && p.Addr != subnet.Addr() && subnet.Masked().Contains(p.Addr) {
				wanted = append(wanted, Claims{Addr: p.Addr, Link: own.link, Node: p.Node})
			}
		}
		all = append(all, askForMACs(ctx, own.link, o.Links[i].Index, subnet.Addr(), mine, wanted)...)
	}
	return all
}

// askForMACs sends macTries requests for each address, and collects all answers.
func askForMACs(ctx context.Context, name string, link int, self netip.Addr, mine []string, wanted []Claims) []Claims {
	fail := func(err error) []Claims {
		wanted[0].Err = err
		return wanted[:1]
	}
	device, err := net.InterfaceByIndex(link)
	if err != nil || len(device.HardwareAddr) != 6 {
		return nil // no Ethernet, so no neighbours to ask
	}
	kind := uint16(unix.ETH_P_IPV6)
	if self.Is4() {
		kind = unix.ETH_P_ARP
	}
	order := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, kind))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(order))
	if err != nil {
		return fail(fmt.Errorf("open a packet socket: %w", err))
	}
	defer func() { _ = unix.Close(fd) }()
	at := &unix.SockaddrLinklayer{Protocol: order, Ifindex: link}
	if err := unix.Bind(fd, at); err != nil {
		return fail(fmt.Errorf("listen on %s: %w", name, err))
	}
	if !self.Is4() { // the answer to a probe goes to all nodes, the answer to another request to this one
		request := &unix.PacketMreq{Ifindex: int32(link), Type: unix.PACKET_MR_ALLMULTI}
		_ = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, request)
	}
	b := make([]byte, 2048)
	for range macTries {
		for i := range wanted {
			sender := self
			if wanted[i].Addr == self { // a probe has no sender
				sender = netip.IPv4Unspecified()
				if !self.Is4() {
					sender = netip.IPv6Unspecified()
				}
			}
			if _, err := unix.Write(fd, question(device.HardwareAddr, sender, wanted[i].Addr)); err != nil && !errors.Is(err, unix.EAGAIN) &&
				!errors.Is(err, unix.ENOBUFS) {
				return fail(fmt.Errorf("ask on %s who has %s: %w", name, wanted[i].Addr, err))
			}
		}
		for end := time.Now().Add(answerTime); ctx.Err() == nil && time.Now().Before(end); {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(poll, int(time.Until(end).Milliseconds())+1); err != nil || n == 0 {
				continue
			}
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				continue
			}
			mac, addr, ok := claim(b[:n])
			i := slices.IndexFunc(wanted, func(c Claims) bool { return c.Addr == addr })
			if ok && i >= 0 && !slices.Contains(mine, mac) && !slices.Contains(wanted[i].MACs, mac) {
				wanted[i].MACs = append(wanted[i].MACs, mac)
			}
		}
	}
	return wanted
}

// question returns an ARP request, or a neighbour solicitation.
func question(mac net.HardwareAddr, sender, target netip.Addr) []byte {
	if target.Is4() {
		b := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1}, mac)
		return slices.Concat(b, sender.AsSlice(), make([]byte, 6), target.AsSlice())
	}
	t := target.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]}).AsSlice()
	body := append([]byte{neighbourSolicitation, 0, 0, 0, 0, 0, 0, 0}, t[:]...)
	if !sender.IsUnspecified() {
		body = append(append(body, 1, 1), mac...) // the sender's MAC
	}
	pseudo := slices.Concat(sender.AsSlice(), group, []byte{0, 0, 0, byte(len(body)), 0, 0, 0, protocolICMPv6}, body)
	binary.BigEndian.PutUint16(body[2:], checksum(pseudo))
	header := []byte{0x60, 0, 0, 0, 0, byte(len(body)), protocolICMPv6, 255}
	return slices.Concat([]byte{0x33, 0x33}, group[12:], mac, []byte{0x86, 0xdd}, header, sender.AsSlice(), group, body)
}

const (
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	protocolICMPv6         = 58
	ethernetHeader         = 14
)

// claim returns the MAC and the address in an ARP reply or a neighbour advertisement.
func claim(frame []byte) (mac string, addr netip.Addr, ok bool) {
	if len(frame) < ethernetHeader {
		return "", addr, false
	}
	kind, b := binary.BigEndian.Uint16(frame[12:]), frame[ethernetHeader:]
	switch {
	case kind == unix.ETH_P_ARP && len(b) >= 28 && b[7] == 2:
		addr, ok = netip.AddrFromSlice(b[14:18])
		return net.HardwareAddr(b[8:14]).String(), addr, ok
	case kind == unix.ETH_P_IPV6 && len(b) >= ipv6Header+24 && b[6] == protocolICMPv6 && b[ipv6Header] == neighbourAdvertisement:
		addr, ok = netip.AddrFromSlice(b[ipv6Header+8 : ipv6Header+24])
		if o := b[ipv6Header+24:]; len(o) >= 8 && o[0] == 2 && o[1] == 1 {
			return net.HardwareAddr(o[2:8]).String(), addr, ok
		}
		return net.HardwareAddr(frame[6:12]).String(), addr, ok
	}
	return "", addr, false
}

// duplicates makes findings from hosts that claim addresses of the node or of peers.
func (o *Observations) duplicates() (findings []Finding) {
	const check = "duplicate-address"
	const do = "give one of the hosts another address; the MAC says which machine it is (ip link there, or the switch's table)"
	clean := 0
	for _, c := range o.Claims {
		about := fmt.Sprintf("%s on %s", c.Addr, c.Link)
		switch {
		case c.Err != nil:
			findings = append(findings, Finding{Check: check, About: about, Level: Unknown, Seen: "could not ask: " + c.Err.Error(),
				Do: "run it as root, or with the capability NET_RAW"})
		case c.Own && len(c.MACs) > 0:
			findings = append(findings, Finding{
				Check: check, About: about, Level: Problem,
				Seen: fmt.Sprintf("another host has this node's address too: MAC %s", strings.Join(c.MACs, ", ")),
				Why: "other nodes reach now the one, now the other: tunnels, BGP sessions and the API server's connections to " +
					"this node break at times",
				Do: do,
			})
		case len(c.MACs) > 1:
			findings = append(findings, Finding{
				Check: check, About: about, Level: Warning, Seen: fmt.Sprintf("%d MACs say that they have the address of %s: %s", len(c.MACs),
					orNothing(c.Node, "this peer"), strings.Join(c.MACs, ", ")),
				Why: "if they are of two hosts, this node reaches now the one, now the other, and packets to pods of that node are lost",
				Do:  do + "; a machine with two links in this network answers on both, which does no harm",
			})
		default:
			clean++
		}
	}
	if clean > 0 && len(findings) == 0 {
		findings = []Finding{
			{Check: check, Level: OK, Seen: fmt.Sprintf("no address was claimed by two hosts, of %d that were asked for", clean)},
		}
	}
	return findings
}
