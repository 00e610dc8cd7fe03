package diagnose

import (
	"encoding/binary"
	"net/netip"
)

// Types of ICMP and ICMPv6 messages.
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	icmpHeader               = 8
	ipv4Header               = 20
	ipv6Header               = 40
	vxlanHeaders             = 8 + 8 + 14 // UDP, VXLAN and inner Ethernet
	protocolICMP             = 1
)

// echoRequest builds an ICMP echo request of size bytes. The kernel fills in the checksum of ICMPv6.
func echoRequest(is4 bool, id, seq uint16, size int) []byte {
	b := make([]byte, max(size, icmpHeader))
	b[0] = echoRequest6
	if is4 {
		b[0] = echoRequest4
	}
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	if is4 {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// echoReply returns the sequence number of an echo reply to a request with this identifier; ok is false for other
// messages.
func echoReply(b []byte, is4 bool, id uint16) (seq uint16, ok bool) {
	want := byte(echoReply6)
	if is4 {
		want = echoReply4
	}
	if len(b) < icmpHeader || b[0] != want || b[1] != 0 || binary.BigEndian.Uint16(b[4:]) != id {
		return 0, false
	}
	return binary.BigEndian.Uint16(b[6:]), true
}

// ipv4Packet prepends an IPv4 header to a message.
func ipv4Packet(src, dst netip.Addr, protocol byte, body []byte) []byte {
	b := make([]byte, ipv4Header, ipv4Header+len(body))
	b[0], b[8], b[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(ipv4Header+len(body)))
	s, d := src.As4(), dst.As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, body...)
}

// inside returns the protocol and the payload of an IPv4 packet; both are zero if b is not one.
func inside(b []byte) (protocol byte, body []byte) {
	if len(b) < ipv4Header || b[0]>>4 != 4 {
		return 0, nil
	}
	header := int(b[0]&0xf) * 4
	if header < ipv4Header || header > len(b) {
		return 0, nil
	}
	return b[9], b[header:]
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
