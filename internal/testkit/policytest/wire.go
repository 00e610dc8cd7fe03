package policytest

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// cookie precedes the number of a packet, in its last bytes.
var cookie = []byte("tortie-policy:")

func mark(number uint64) []byte { return binary.BigEndian.AppendUint64(bytes.Clone(cookie), number) }

// decodeNumber returns the number of a packet.
func decodeNumber(packet []byte) (uint64, bool) {
	at := bytes.LastIndex(packet, cookie)
	if at < 0 || len(packet) < at+len(cookie)+8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(packet[at+len(cookie):]), true
}

// sourceOf returns the source address in a packet.
func sourceOf(packet []byte) (a netip.Addr) {
	if len(packet) < 20 {
		return a
	}
	switch packet[0] >> 4 {
	case 4:
		a = netip.AddrFrom4([4]byte(packet[12:16]))
	case 6:
		if len(packet) >= 40 {
			a = netip.AddrFrom16([16]byte(packet[8:24]))
		}
	}
	return a
}

// PortOf returns the source port of the packet with a number: SourcePort, or one that makes each of some 40,000 packets
// in a row a connection of its own.
func (p Packet) PortOf(number uint64) uint16 {
	if p.SourcePort != 0 {
		return p.SourcePort
	}
	return uint16(20000 + number%40000)
}

// icmp returns the packet's type and code, or an echo request.
func (p Packet) icmp(echo uint8) (kind, code uint8) {
	if p.Type == 0 && p.Code == 0 {
		return echo, 0
	}
	return p.Type, p.Code
}

// encode makes the first packet of a new connection.
func encode(p Packet, number uint64) (kind uint16, packet []byte) {
	switch p.Protocol {
	case TCP:
		return netnstest.Packet(p.From, p.To, TCP, 64, append(syn(p.PortOf(number), p.Port), mark(number)...), 16)
	case UDP:
		return netnstest.Datagram(netip.AddrPortFrom(p.From, p.PortOf(number)), netip.AddrPortFrom(p.To, p.Port), mark(number))
	case SCTP:
		return netnstest.Packet(p.From, p.To, SCTP, 64, initChunk(p.PortOf(number), p.Port, mark(number)), -1)
	case ICMP:
		kind, code := p.icmp(8)
		echo := append([]byte{kind, code, 0, 0, byte(number >> 8), byte(number), 0, 1}, mark(number)...)
		netnstest.PlainSum(echo, 2)
		return netnstest.Packet(p.From, p.To, ICMP, 64, echo, -1)
	case ICMPv6:
		kind, code := p.icmp(128)
		echo := append([]byte{kind, code, 0, 0, byte(number >> 8), byte(number), 0, 1}, mark(number)...)
		return netnstest.Packet(p.From, p.To, ICMPv6, 64, echo, 2)
	}
	return netnstest.Packet(p.From, p.To, p.Protocol, 64, mark(number), -1)
}

// Complaint is an ICMP error: its types and codes.
type Complaint struct {
	Name   string
	v4, v6 [2]byte
}

// Complaints are the errors that senders depend on.
var Complaints = []Complaint{
	{"port unreachable", [2]byte{3, 3}, [2]byte{1, 4}}, {"fragmentation needed", [2]byte{3, 4}, [2]byte{2, 0}},
	{"time exceeded", [2]byte{11, 0}, [2]byte{3, 0}},
}

func (c Complaint) encode(from, to netip.Addr, quoted []byte, number uint64) (kind uint16, packet []byte) {
	const mtu = 1280 >> 8 // the last two of the header's eight bytes, in either family
	if from.Is4() {
		message := slices.Concat(c.v4[:], []byte{0, 0, 0, 0, mtu, 0}, quoted, mark(number))
		netnstest.PlainSum(message, 2)
		return netnstest.Packet(from, to, ICMP, 64, message, -1)
	}
	return netnstest.Packet(from, to, ICMPv6, 64, slices.Concat(c.v6[:], []byte{0, 0, 0, 0, mtu, 0}, quoted, mark(number)), 2)
}

func syn(from, to uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	b[12], b[13] = 5<<4, 2 // header of five words, SYN
	b[14] = 0xff           // window
	return b
}

// initChunk returns an SCTP packet with an INIT chunk (RFC 9260), without which the kernel tracks no connection. Its
// one parameter is data.
func initChunk(from, to uint16, data []byte) []byte {
	const header, parameter = 12 + 20, 0x8000 // a receiver skips an unknown parameter with this bit
	for len(data)%4 != 0 {
		data = append(data, 0)
	}
	b := make([]byte, header, header+4+len(data))
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	b[12] = 1 // INIT
	binary.BigEndian.PutUint16(b[14:], uint16(20+4+len(data)))
	binary.BigEndian.PutUint32(b[16:], 1)     // initiate tag
	binary.BigEndian.PutUint32(b[20:], 1<<16) // window
	binary.BigEndian.PutUint16(b[24:], 1)     // streams out
	binary.BigEndian.PutUint16(b[26:], 1)     // and in
	b = binary.BigEndian.AppendUint16(b, parameter)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(data)))
	b = append(b, data...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// Sendable reports whether hosts forward such a packet at all: without addresses of this host, of all hosts, or of
// none; and for ICMP only queries, as other messages belong to other connections.
func Sendable(p Packet) bool {
	asks := map[uint8][]uint8{ICMP: {8, 13, 15, 17}, ICMPv6: {128}}[p.Protocol]
	plain := p.Type == 0 && p.Code == 0
	return routable(p.From) && routable(p.To) && p.Protocol != udpLite && (asks == nil || plain || slices.Contains(asks, p.Type))
}

func routable(a netip.Addr) bool {
	if a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 224) {
		return false
	}
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.Is4In6() && !a.IsLinkLocalUnicast()
}
