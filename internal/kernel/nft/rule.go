package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Rule is a list of expressions, which the kernel runs on a packet one after the other until one does not match.
type Rule struct {
	// Comment appears in nft's list, and identifies the counter.
	Comment string
	exprs   []expression
}

// expression is a kernel's expression: a name and attributes.
type expression struct {
	name  string
	attrs nlmsg.Attributes
	// set and chain are named by the attributes, if any.
	set, chain string
}

// Term is a part of a rule: a condition, or an action on the packet.
type Term []expression

// NewRule makes a rule of terms.
func NewRule(comment string, terms ...Term) Rule {
	return Rule{Comment: comment, exprs: slices.Concat(terms...)}
}

// Registers hold values to compare. Register 0 holds the verdict.
const (
	verdictRegister = unix.NFT_REG_VERDICT
	register        = unix.NFT_REG_1 // 16 bytes, the same as the first four 4-byte registers
	portRegister    = unix.NFT_REG_2
	portEndRegister = unix.NFT_REG_3
	wordRegister    = unix.NFT_REG32_00
)

func expr(name string, fill func(*nlmsg.Attributes)) expression {
	e := expression{name: name}
	fill(&e.attrs)
	return e
}

// Field is a part or property of a packet that a rule compares.
type Field struct {
	size int
	load func(register uint32) Term
}

func meta(key uint32, size int) Field {
	return Field{size, func(register uint32) Term {
		return Term{expr("meta", func(a *nlmsg.Attributes) {
			a.Number(unix.NFTA_META_KEY, key)
			a.Number(unix.NFTA_META_DREG, register)
		})}
	}}
}

// SourceLink is the index of the link by which the kernel would send to the packet's source, if the packet came in by
// that link; else NoLink. It is for the prerouting hook.
var SourceLink = fib(4, unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF)

// SourceLinkName is the name of the link by which the kernel would send to the packet's source, whatever link the
// packet came in by; empty: there is none. It is for the prerouting hook.
var SourceLinkName = fib(LinkName.size, unix.NFT_FIB_RESULT_OIFNAME, unix.NFTA_FIB_F_SADDR)

func fib(size int, result, flags uint32) Field {
	return Field{size, func(register uint32) Term {
		return Term{expr("fib", func(a *nlmsg.Attributes) {
			a.Number(unix.NFTA_FIB_DREG, register)
			a.Number(unix.NFTA_FIB_RESULT, result)
			a.Number(unix.NFTA_FIB_FLAGS, flags)
		})}
	}}
}

// NoLink is the index that no link has.
const NoLink = "\x00\x00\x00\x00"

func payload(base, offset uint32, size int) Field {
	return Field{size, func(register uint32) Term {
		return Term{expr("payload", func(a *nlmsg.Attributes) {
			a.Number(unix.NFTA_PAYLOAD_DREG, register)
			a.Number(unix.NFTA_PAYLOAD_BASE, base)
			a.Number(unix.NFTA_PAYLOAD_OFFSET, offset)
			a.Number(unix.NFTA_PAYLOAD_LEN, uint32(size))
		})}
	}}
}

// Fields that every packet has.
var (
	InIndex  = meta(unix.NFT_META_IIF, 4) // NoLink for packets of the node's own programs
	InLink   = meta(unix.NFT_META_IIFNAME, 16)
	OutLink  = meta(unix.NFT_META_OIFNAME, 16)
	Priority = meta(unix.NFT_META_PRIORITY, 4) // of a socket: SO_PRIORITY
	L4Proto  = meta(unix.NFT_META_L4PROTO, 1)
	NFProto  = meta(unix.NFT_META_NFPROTO, 1)
	SrcPort  = payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2) // of TCP, UDP and SCTP: compare L4Proto first
	DestPort = payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
	ICMPType = payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1) // of ICMP and ICMPv6
	// ICMPTypeCode is no key of sets: for nft it is an integer, for which it has no type.
	ICMPTypeCode = payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)
	tcpFlags     = payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1)
	firstChunk   = payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 12, 1) // of SCTP: its type
)

// DialledPort is the port that a connection was opened to, before translation. Untracked packets have none.
var DialledPort = original(unix.NFT_CT_PROTO_DST, 2)

// original is a field of the packet that opened a connection.
func original(key uint32, size int) Field {
	return Field{size, func(register uint32) Term {
		return Term{expr("ct", func(a *nlmsg.Attributes) {
			a.Number(unix.NFTA_CT_KEY, key)
			a.Number(unix.NFTA_CT_DREG, register)
			a.Add(unix.NFTA_CT_DIRECTION, []byte{0})
		})}
	}}
}

// Quoted4 and Quoted6 are the addresses of the packet that an ICMP error quotes. Compare L4Proto first.
var (
	Quoted4 = Quoted{payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 8+12, 4), payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 8+16, 4)}
	Quoted6 = Quoted{payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 8+8, 16), payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 8+24, 16)}
)

// Quoted are the addresses of a packet inside of another.
type Quoted struct{ Src, Dest Field }

// Networks of addresses. A rule must have the family's Is before it compares them.
var (
	DestNet8 = payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 1) // of IPv4, the first byte
	SrcNet64 = payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 8, 8)  // of IPv6, the first eight
)

// Family has the differences between IPv4 and IPv6.
type Family struct {
	// Addr is the type of its addresses.
	Addr Type
	// Src and Dest are the fields of its header. A rule must have the family's Is before it compares them.
	Src, Dest Field
	// Dialled is the address that a connection was opened to, before translation.
	Dialled Field

	nfproto byte
}

// The families.
var (
	IPv4 = Family{IPv4Addr, payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4), payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
		original(unix.NFT_CT_DST_IP, 4), unix.NFPROTO_IPV4}
	IPv6 = Family{IPv6Addr, payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 8, 16), payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16),
		original(unix.NFT_CT_DST_IP6, 16), unix.NFPROTO_IPV6}
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Is matches packets of the family.
func (f Family) Is() Term { return NFProto.Is(ByteKey(f.nfproto)) }

// Is matches if the field has the value, which is in network order.
func (f Field) Is(value string) Term { return f.compare(unix.NFT_CMP_EQ, value) }

// IsNot matches if the field has another value.
func (f Field) IsNot(value string) Term { return f.compare(unix.NFT_CMP_NEQ, value) }

// HasPrefix matches if the field begins with the value, as in nft's iifname "cali*".
func (f Field) HasPrefix(value string) Term { return f.compare(unix.NFT_CMP_EQ, value) }

// HasNotPrefix matches if the field does not begin with the value.
func (f Field) HasNotPrefix(value string) Term { return f.compare(unix.NFT_CMP_NEQ, value) }

// Between matches if the field has one of the values, both inclusive.
func (f Field) Between(first, last string) Term {
	if first == last {
		return f.Is(first)
	}
	return append(f.compare(unix.NFT_CMP_GTE, first), f.compare(unix.NFT_CMP_LTE, last)...)
}

func (f Field) compare(op uint32, value string) Term {
	return append(f.load(register), expr("cmp", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_CMP_SREG, register)
		a.Number(unix.NFTA_CMP_OP, op)
		a.Nest(unix.NFTA_CMP_DATA, data(value))
	}))
}

// masked changes a register to (register & mask) ^ xor.
func masked(register uint32, mask, xor string) expression {
	return expr("bitwise", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_BITWISE_SREG, register)
		a.Number(unix.NFTA_BITWISE_DREG, register)
		a.Number(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		a.Nest(unix.NFTA_BITWISE_MASK, data(mask))
		a.Nest(unix.NFTA_BITWISE_XOR, data(xor))
	})
}

// none is a number of four bytes without any bit.
const none = "\x00\x00\x00\x00"

// Constant is a field of type Mark with the same value in every packet, for keys of several parts. It loads the
// packet's mark and replaces all bits in the register: nft cannot list a rule that loads a value into a register and
// then looks it up, but lists this one and reads it back.
func Constant(n uint32) Field {
	return Field{4, func(register uint32) Term {
		return append(meta(unix.NFT_META_MARK, 4).load(register), masked(register, none, WordKey(n)))
	}}
}

func data(value string) (a nlmsg.Attributes) {
	a.Add(unix.NFTA_DATA_VALUE, []byte(value))
	return a
}

// The flags of TCP that OpensTCP and JoinsTCP compare.
const (
	tcpSYN = 0x02
	tcpACK = 0x10
)

// OpensTCP matches the first packet of a TCP connection. The rule must have compared L4Proto before.
func OpensTCP() Term {
	is := tcpFlags.Is(ByteKey(tcpSYN))
	return Term{is[0], masked(register, ByteKey(tcpSYN|tcpACK), ByteKey(0)), is[1]}
}

// JoinsTCP matches TCP packets that are not the first of a connection. The rule must have compared L4Proto before.
func JoinsTCP() Term {
	is := tcpFlags.IsNot(ByteKey(tcpSYN))
	return Term{is[0], masked(register, ByteKey(tcpSYN|tcpACK), ByteKey(0)), is[1]}
}

// JoinsSCTP matches SCTP packets that are not the first of an association: their first chunk is no INIT. The rule must
// have compared L4Proto before.
func JoinsSCTP() Term {
	const initiation = 1 // RFC 9260
	return firstChunk.IsNot(ByteKey(initiation))
}

// Translated matches packets of connections with a translated destination; untracked packets have no connection.
func Translated() Term {
	const destination = 1 << 5 // IPS_DST_NAT
	return tracked(unix.NFT_CT_STATUS, destination)
}

// Masqueraded matches packets of connections with a translated source, and errors about them.
func Masqueraded() Term {
	const source = 1 << 4 // IPS_SRC_NAT
	return tracked(unix.NFT_CT_STATUS, source)
}

// State is a set of conntrack states of a packet.
type State uint32

// The states: the kernel's NF_CT_STATE_BIT.
const (
	Invalid     State = 1 << 0
	Established State = 1 << 1
	Related     State = 1 << 2
	Opens       State = 1 << 3 // IP_CT_NEW
	Untracked   State = 1 << 6
)

// In matches packets in one of these states.
func (s State) In() Term { return tracked(unix.NFT_CT_STATE, uint32(s)) }

// tracked matches if the conntrack key of a packet has one of these bits.
func tracked(key, bits uint32) Term {
	load := expr("ct", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_CT_KEY, key)
		a.Number(unix.NFTA_CT_DREG, register)
	})
	return append(Term{load}, some(bits)...)
}

// some matches if the register has one of the bits.
func some(bits uint32) Term {
	return Term{masked(register, WordKey(bits), none), expr("cmp", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_CMP_SREG, register)
		a.Number(unix.NFTA_CMP_OP, unix.NFT_CMP_NEQ)
		a.Nest(unix.NFTA_CMP_DATA, data(none))
	})}
}

// Marked matches packets with one of the bits in their mark.
func Marked(bits uint32) Term {
	return append(meta(unix.NFT_META_MARK, 4).load(register), some(bits)...)
}

// SetMark sets these bits of the packet's mark.
func SetMark(bits uint32) Term { return changeMark(^bits, bits) }

// ClearMark clears these bits of the packet's mark.
func ClearMark(bits uint32) Term { return changeMark(^bits, 0) }

func changeMark(keep, set uint32) Term {
	return append(meta(unix.NFT_META_MARK, 4).load(register), masked(register, WordKey(keep), WordKey(set)),
		expr("meta", func(a *nlmsg.Attributes) {
			a.Number(unix.NFTA_META_KEY, unix.NFT_META_MARK)
			a.Number(unix.NFTA_META_SREG, register)
		}))
}

// NoTrack exempts the packet from connection tracking, and so from translation. It is for the hooks prerouting and
// output, at PriorityRaw.
func NoTrack() Term { return Term{expression{name: "notrack"}} }

// Rate is a limit of Packets in Seconds, of which Burst may pass at once.
type Rate struct{ Packets, Seconds, Burst uint32 }

// Over matches the packets that exceed so many in a second.
func Over(perSecond uint32) Term { return limit(Rate{perSecond, 1, perSecond}, unix.NFT_LIMIT_F_INV) }

// Within matches the packets within the rate.
func Within(r Rate) Term { return limit(r, 0) }

func limit(r Rate, flags uint32) Term {
	return Term{expr("limit", func(a *nlmsg.Attributes) {
		a.Number64(unix.NFTA_LIMIT_RATE, uint64(r.Packets))
		a.Number64(unix.NFTA_LIMIT_UNIT, uint64(r.Seconds))
		a.Number(unix.NFTA_LIMIT_BURST, r.Burst)
		a.Number(unix.NFTA_LIMIT_TYPE, unix.NFT_LIMIT_PKTS)
		a.Number(unix.NFTA_LIMIT_FLAGS, flags)
	})}
}

// Reject drops the packet, and sends an ICMP error "port unreachable" to its sender. It is for the hooks input, forward
// and output.
func Reject() Term {
	return Term{expr("reject", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMPX_UNREACH)
		a.Add(unix.NFTA_REJECT_ICMP_CODE, []byte{unix.NFT_REJECT_ICMPX_PORT_UNREACH})
	})}
}

// maxPrefix is one less than the kernel's limit for the prefix of a log, NF_LOG_PREFIXLEN.
const maxPrefix = 127

// Log sends the first bytes of the packet, enough for its headers, with a prefix of up to 127 bytes, to the listeners
// of the group.
func Log(group uint16, prefix string) Term {
	const headers = 128
	return Term{expr("log", func(a *nlmsg.Attributes) {
		a.Add(unix.NFTA_LOG_GROUP, binary.BigEndian.AppendUint16(nil, group))
		a.Text(unix.NFTA_LOG_PREFIX, prefix[:min(len(prefix), maxPrefix)])
		a.Number(unix.NFTA_LOG_SNAPLEN, headers)
	})}
}

// PortKey encodes a port for keys and fields.
func PortKey(port uint16) string { return string(binary.BigEndian.AppendUint16(nil, port)) }

// WordKey encodes a number in host byte order, for keys of type Mark.
func WordKey(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }

// ByteKey encodes a number of one byte, such as a protocol's, for keys and fields.
func ByteKey(b byte) string { return string([]byte{b}) }

// LinkKey encodes the name of a link for keys.
func LinkKey(name string) string {
	return string(append([]byte(name), make([]byte, max(0, LinkName.size-len(name)))...))
}

// AddrKey encodes an address for keys and fields.
func AddrKey(a netip.Addr) string { return string(a.AsSlice()) }

// In matches if the set contains the fields, one for each type of its key.
func In(set string, fields ...Field) Term { return lookup(set, 0, false, fields) }

// NotIn matches if the set does not contain the fields.
func NotIn(set string, fields ...Field) Term {
	return lookup(set, unix.NFT_LOOKUP_F_INV, false, fields)
}

// Map applies the verdict that the map has for the fields; other packets continue with the next rule.
func Map(set string, fields ...Field) Term { return lookup(set, 0, true, fields) }

func lookup(set string, flags uint32, verdict bool, fields []Field) Term {
	var t Term
	word := uint32(0)
	for _, f := range fields {
		// nft and the kernel name registers that begin like one of 16 bytes by the latter's name.
		r := wordRegister + word
		if word%4 == 0 {
			r = register + word/4
		}
		t = append(t, f.load(r)...)
		word += uint32((f.size + 3) / 4)
	}
	e := expr("lookup", func(a *nlmsg.Attributes) {
		a.Text(unix.NFTA_LOOKUP_SET, set)
		a.Number(unix.NFTA_LOOKUP_SREG, register)
		if verdict {
			a.Number(unix.NFTA_LOOKUP_DREG, verdictRegister)
		}
		a.Number(unix.NFTA_LOOKUP_FLAGS, flags)
	})
	e.set = set
	return append(t, e)
}

// Count counts the packets that match the rule up to here.
func Count() Term {
	return Term{expr("counter", func(a *nlmsg.Attributes) {
		a.Add(unix.NFTA_COUNTER_BYTES, make([]byte, 8))
		a.Add(unix.NFTA_COUNTER_PACKETS, make([]byte, 8))
	})}
}

// Do ends the rule with a verdict.
func Do(v Verdict) Term {
	e := expr("immediate", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_IMMEDIATE_DREG, verdictRegister)
		a.Nest(unix.NFTA_IMMEDIATE_DATA, v.data())
	})
	e.chain = v.Chain()
	return Term{e}
}

func (v Verdict) data() (a nlmsg.Attributes) {
	code, chain := v.split()
	var inner nlmsg.Attributes
	inner.Number(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		inner.Text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	a.Nest(unix.NFTA_DATA_VERDICT, inner)
	return a
}

// Ports is a range of ports, both inclusive; zero means any.
type Ports struct{ First, Last uint16 }

// The kernel's NF_NAT_RANGE_ flags. The kernel sets the first two itself, and lists them.
const (
	natAddresses   = unix.NF_NAT_RANGE_MAP_IPS
	natPorts       = unix.NF_NAT_RANGE_PROTO_SPECIFIED
	natFullyRandom = unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY
)

// Masquerade translates the source to an address of the outgoing link. Ports need a match of L4Proto before them.
//
// Ports are chosen at random: in order, they collide when two CPUs translate at once, and the kernel then drops a
// packet. DNS queries that two threads of one pod send together are the usual victims.
func Masquerade(ports Ports) Term {
	return append(ports.load(), expr("masq", func(a *nlmsg.Attributes) {
		flags := uint32(natFullyRandom)
		if ports != (Ports{}) {
			flags |= natPorts
			a.Number(unix.NFTA_MASQ_REG_PROTO_MIN, portRegister)
			a.Number(unix.NFTA_MASQ_REG_PROTO_MAX, portEndRegister)
		}
		a.Number(unix.NFTA_MASQ_FLAGS, flags)
	}))
}

// SourceNAT translates the source to an address of the packet's family. Ports are as with Masquerade.
func SourceNAT(from netip.Addr, ports Ports) Term {
	t := append(Term{load(register, AddrKey(from))}, ports.load()...)
	return append(t, expr("nat", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT)
		a.Number(unix.NFTA_NAT_FAMILY, uint32(FamilyOf(from).nfproto))
		a.Number(unix.NFTA_NAT_REG_ADDR_MIN, register)
		a.Number(unix.NFTA_NAT_REG_ADDR_MAX, register)
		flags := uint32(natAddresses | natFullyRandom)
		if ports != (Ports{}) {
			flags |= natPorts
			a.Number(unix.NFTA_NAT_REG_PROTO_MIN, portRegister)
			a.Number(unix.NFTA_NAT_REG_PROTO_MAX, portEndRegister)
		}
		a.Number(unix.NFTA_NAT_FLAGS, flags)
	}))
}

// DestinationNATBy translates the destination to the address that a map of the family has for the field; packets
// without an entry continue with the next rule. The rule must have the family's Is before.
func (f Family) DestinationNATBy(set string, field Field) Term {
	t := append(field.load(register), expr("lookup", func(a *nlmsg.Attributes) {
		a.Text(unix.NFTA_LOOKUP_SET, set)
		a.Number(unix.NFTA_LOOKUP_SREG, register)
		a.Number(unix.NFTA_LOOKUP_DREG, register)
	}))
	t[len(t)-1].set = set
	return append(t, f.translate(unix.NFT_NAT_DNAT))
}

// SourceNATDialled translates the source to the address that the connection was opened to. The rule must have the
// family's Is before.
func (f Family) SourceNATDialled() Term {
	return append(f.Dialled.load(register), f.translate(unix.NFT_NAT_SNAT))
}

// translate replaces the packet's source or destination, by kind, with the address in the register.
func (f Family) translate(kind uint32) expression {
	return expr("nat", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_NAT_TYPE, kind)
		a.Number(unix.NFTA_NAT_FAMILY, uint32(f.nfproto))
		a.Number(unix.NFTA_NAT_REG_ADDR_MIN, register)
		a.Number(unix.NFTA_NAT_REG_ADDR_MAX, register)
		a.Number(unix.NFTA_NAT_FLAGS, natAddresses)
	})
}

func (p Ports) load() Term {
	if p == (Ports{}) {
		return nil
	}
	return Term{load(portRegister, PortKey(p.First)), load(portEndRegister, PortKey(p.Last))}
}

func load(register uint32, value string) expression {
	return expr("immediate", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_IMMEDIATE_DREG, register)
		a.Nest(unix.NFTA_IMMEDIATE_DATA, data(value))
	})
}

// encode returns the list of expressions for a message.
func (r Rule) encode() (list nlmsg.Attributes) {
	for _, e := range r.exprs {
		var inner nlmsg.Attributes
		inner.Text(unix.NFTA_EXPR_NAME, e.name)
		inner.Nest(unix.NFTA_EXPR_DATA, e.attrs)
		list.Nest(unix.NFTA_LIST_ELEM, inner)
	}
	return list
}

// normal returns a form of the rule that is the same for a written rule and for the kernel's listing of it.
func (r Rule) normal() string {
	var b bytes.Buffer
	for _, e := range r.exprs {
		e.normalize(&b)
	}
	return b.String() + "#" + r.Comment
}

// known are the attributes that count, of the expressions in the terms above. The kernel lists others too, such as a
// set's number within a transaction, or defaults of later versions.
var known = map[string][]uint16{
	"meta":      {unix.NFTA_META_KEY, unix.NFTA_META_DREG, unix.NFTA_META_SREG},
	"payload":   {unix.NFTA_PAYLOAD_DREG, unix.NFTA_PAYLOAD_BASE, unix.NFTA_PAYLOAD_OFFSET, unix.NFTA_PAYLOAD_LEN, unix.NFTA_PAYLOAD_SREG},
	"cmp":       {unix.NFTA_CMP_SREG, unix.NFTA_CMP_OP, unix.NFTA_CMP_DATA},
	"lookup":    {unix.NFTA_LOOKUP_SET, unix.NFTA_LOOKUP_SREG, unix.NFTA_LOOKUP_DREG, unix.NFTA_LOOKUP_FLAGS},
	"immediate": {unix.NFTA_IMMEDIATE_DREG, unix.NFTA_IMMEDIATE_DATA},
	"counter":   {},
	"ct":        {unix.NFTA_CT_KEY, unix.NFTA_CT_DREG},
	"notrack":   {},

	"flow_offload": {flowTableName},

	"fib":     {unix.NFTA_FIB_DREG, unix.NFTA_FIB_RESULT, unix.NFTA_FIB_FLAGS},
	"bitwise": {unix.NFTA_BITWISE_SREG, unix.NFTA_BITWISE_DREG, unix.NFTA_BITWISE_LEN, unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR},
	"limit":   {unix.NFTA_LIMIT_RATE, unix.NFTA_LIMIT_UNIT, unix.NFTA_LIMIT_BURST, unix.NFTA_LIMIT_TYPE, unix.NFTA_LIMIT_FLAGS},
	"log":     {unix.NFTA_LOG_GROUP, unix.NFTA_LOG_PREFIX, unix.NFTA_LOG_SNAPLEN, unix.NFTA_LOG_QTHRESHOLD, unix.NFTA_LOG_LEVEL},
	"masq":    {unix.NFTA_MASQ_FLAGS, unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX},
	"nat": {unix.NFTA_NAT_TYPE, unix.NFTA_NAT_FAMILY, unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_ADDR_MAX,
		unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX, unix.NFTA_NAT_FLAGS},
}

// normalize writes an expression: its attributes in a fixed order, without those that are zero, which the kernel may
// leave out.
func (e expression) normalize(b *bytes.Buffer) {
	b.WriteString(e.name)
	types, ok := known[e.name]
	if !ok {
		b.WriteString(" is not ours")
		return
	}
	for _, typ := range types {
		value := nlmsg.Find(e.attrs, typ)
		if e.holdsData(typ) {
			value = normalData(value)
		}
		if len(bytes.Trim(value, "\x00")) > 0 {
			b.WriteByte(byte(typ))
			b.WriteByte(byte(len(value)))
			b.Write(value)
		}
	}
	b.WriteByte(';')
}

func (e expression) holdsData(typ uint16) bool {
	switch e.name {
	case "cmp":
		return typ == unix.NFTA_CMP_DATA
	case "immediate":
		return typ == unix.NFTA_IMMEDIATE_DATA
	case "bitwise":
		return typ == unix.NFTA_BITWISE_MASK || typ == unix.NFTA_BITWISE_XOR
	}
	return false
}

// normalData returns a value or a verdict, with a prefix that distinguishes them.
func normalData(b []byte) []byte {
	if v := nlmsg.Find(b, unix.NFTA_DATA_VERDICT); v != nil {
		return append([]byte("verdict "), decodeVerdict(v)...)
	}
	return append([]byte("value "), nlmsg.Find(b, unix.NFTA_DATA_VALUE)...)
}

// decodeVerdict reads the inner attributes of Verdict.data.
func decodeVerdict(b []byte) Verdict {
	code := int32(nlmsg.Number(nlmsg.Find(b, unix.NFTA_VERDICT_CODE)))
	for word, c := range verdictCodes {
		if c != code {
			continue
		}
		if chain := nlmsg.Text(nlmsg.Find(b, unix.NFTA_VERDICT_CHAIN)); chain != "" {
			return Verdict(word + " " + chain)
		}
		return Verdict(word)
	}
	return "another"
}

// decodeRule reads a rule's expressions.
func decodeRule(list []byte) (r Rule) {
	// A rule that is cut off does not compare equal to the wanted one.
	_ = nlmsg.Each(list, func(_ uint16, e []byte) {
		r.exprs = append(r.exprs, expression{name: nlmsg.Text(nlmsg.Find(e, unix.NFTA_EXPR_NAME)), attrs: nlmsg.Find(e, unix.NFTA_EXPR_DATA)})
	})
	return r
}
