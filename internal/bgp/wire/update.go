package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"unique"
)

// parsedUpdate has the understood parts of an UPDATE: the prefixes of the session's family, and attributes as they will be passed on.
type parsedUpdate struct {
	family     Family
	withdrawn  []netip.Prefix
	announced  []netip.Prefix
	nextHop    []byte // as in MP_REACH_NLRI, or the four bytes of NEXT_HOP
	attributes []byte // all but next hop and prefixes
	seen       [256]bool
	// end: it is the marker of the end of the table, RFC 4724 section 2.
	end bool
	// flaw is the first reason not to take what is announced, or to leave an attribute out; withdraw tells which.
	flaw     string
	withdraw bool
	// refusal is why what is announced is not taken: it is no use to us, or flawed.
	refusal  string
	hasMED   bool
	med      uint32
	clusters int // that CLUSTER_LIST names
	widened  widened
}

// maxAttributes bounds what a path costs: each prefix of a peer can have attributes of its own, and MaxPrefixes would else
// bound nothing. It is room for some 400 AS numbers.
const maxAttributes = 2048

var tooLong = fmt.Sprintf("path attributes of more than %d bytes", maxAttributes)

// errNetwork is the one error of a list of prefixes: what follows can't be found, so that RFC 7606 section 5.3 has the
// session reset.
var errNetwork = errors.New("a prefix is longer than an address or is cut short")

func updateFault(subcode uint8, data []byte, format string, args ...any) *Notification {
	return &Notification{Code: UpdateError, Subcode: subcode, Data: data, Reason: "malformed UPDATE: " + fmt.Sprintf(format, args...)}
}

// update judges the body of an UPDATE.
func (s *Session) update(b []byte) Verdict {
	n, fault := s.readUpdate(b)
	if fault != nil {
		return Verdict{Reset: fault}
	}
	n.settle()
	v := Verdict{Flaw: n.flaw, Gone: n.withdrawn, End: n.end}
	what := Said{}
	if n.refusal != "" {
		v.Refused, v.Refusal = n.announced, n.refusal
		n.withdrawn, n.announced = append(slices.Clip(n.withdrawn), n.announced...), nil
	} else if len(n.announced) > 0 {
		n.stamp(s.rules.Source)
		what = n.said()
	}
	s.withdraw(v.Gone)
	if !s.announce(n.announced, what) || !s.announce(v.Refused, Said{}) {
		return Verdict{Reset: s.tooMany()}
	}
	v.Pass = n.bytes()
	return v
}

// stamp has the speaker behind remember what it would forget.
func (n *parsedUpdate) stamp(source Source) {
	stamp := Stamp{Source: source, HasMED: n.hasMED, MED: n.med}
	med := n.med
	if source != 0 {
		med = rank(n.med, n.clusters)
	}
	if n.hasMED || med != 0 {
		n.attributes = appendAttribute(n.attributes, attrMED, binary.BigEndian.AppendUint32(nil, med))
	}
	if source != 0 {
		stamp.NextHop, _ = netip.AddrFromSlice(n.nextHop)
		n.attributes = stamp.append(n.attributes)
	}
}

// said returns the attributes of the prefixes that n announces.
func (n *parsedUpdate) said() Said {
	return Said{unique.Make(string(append(slices.Clip(n.nextHop), n.attributes...)))}
}

// update is the UPDATE that what belongs to, without its prefixes.
func (what Said) update(family Family) *parsedUpdate {
	text := []byte(what.Value())
	return &parsedUpdate{family: family, nextHop: text[:family.bytes()], attributes: text[family.bytes():]}
}

// readUpdate takes an UPDATE apart.
func (s *Session) readUpdate(b []byte) (*parsedUpdate, *Notification) {
	n := &parsedUpdate{family: s.rules.Family}
	length := int(binary.BigEndian.Uint16(b))
	if len(b) < 4+length {
		return nil, updateFault(1, nil, "withdrawn routes are longer than the message")
	}
	withdrawn, b := b[2:2+length], b[2+length:]
	length = int(binary.BigEndian.Uint16(b))
	if len(b) < 2+length {
		return nil, updateFault(1, nil, "path attributes are longer than the message")
	}
	attributes, reachable := b[2:2+length], b[2+length:]
	n.end = n.family == IPv4 && len(withdrawn)+len(attributes)+len(reachable) == 0
	// Outside of attributes are IPv4 prefixes. Those on a session of IPv6 were not agreed on and are ignored.
	if n.family == IPv4 {
		var errs [2]error
		n.withdrawn, errs[0] = readPrefixes(withdrawn, IPv4)
		n.announced, errs[1] = readPrefixes(reachable, IPv4)
		if err := errors.Join(errs[:]...); err != nil {
			return nil, updateFault(10, nil, "%v", errNetwork)
		}
	}
	if fault := s.readAttributes(n, attributes); fault != nil {
		return nil, fault
	}
	n.checkMandatory()
	return n, nil
}

// flawed notes a flaw, and that the message is to withdraw what it announces.
func (n *parsedUpdate) flawed(withdraw bool, format string, args ...any) {
	if n.flaw == "" || (withdraw && !n.withdraw) {
		n.flaw = fmt.Sprintf(format, args...)
	}
	n.withdraw = n.withdraw || withdraw
}

// malformed is the refusal of what RFC 7606 takes for withdrawn. Which flaw it was is told apart from that: there is no end of them.
const malformed = "its UPDATE is malformed"

// settle refuses what is flawed. Of a prefix that is withdrawn and announced only the announcement counts, RFC
// 4271 section 4.3.
func (n *parsedUpdate) settle() {
	if n.withdraw {
		n.refusal = malformed
	}
	if len(n.withdrawn) > 0 && len(n.announced) > 0 {
		announced := make(map[netip.Prefix]bool, len(n.announced))
		for _, p := range n.announced {
			announced[p] = true
		}
		n.withdrawn = slices.DeleteFunc(n.withdrawn, func(p netip.Prefix) bool { return announced[p] })
	}
	n.end = n.end && len(n.withdrawn)+len(n.announced) == 0
}

// checkMandatory is RFC 7606 section 3, d: an announcement without a well-known mandatory attribute is a withdrawal.
func (n *parsedUpdate) checkMandatory() {
	if len(n.announced) == 0 {
		return
	}
	for _, kind := range []attribute{attrOrigin, attrASPath} {
		if !n.seen[kind] {
			n.flawed(true, "%s is missing", kind)
		}
	}
	if n.nextHop == nil && !n.withdraw {
		n.flawed(true, "%s is missing", attrNextHop)
	}
	if len(n.attributes) > maxAttributes {
		n.refusal = tooLong
	}
}

// bytes writes the UPDATE anew: withdrawals, then announcements, in as many messages as it takes. It is nil if nothing
// is left that the speaker behind needs to know, which must not become an empty message: that would be the end of the table.
func (n *parsedUpdate) bytes() []byte {
	var w writer
	w.start(n.family)
	w.withdraw(appendPrefixes(nil, n.withdrawn))
	if len(n.announced) > 0 {
		w.attributes = append(w.attributes[:0], n.attributes...)
		if n.family == IPv4 {
			w.attributes = appendAttribute(w.attributes, attrNextHop, n.nextHop)
		}
		hop, _ := netip.AddrFromSlice(n.nextHop)
		w.reach(hop, appendPrefixes(nil, n.announced))
	}
	if n.end {
		w.endTable()
	}
	return w.text
}

// Messages returns the messages of a text one after the other.
func Messages(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(text) >= headerLen {
			length := int(binary.BigEndian.Uint16(text[16:]))
			if !yield(text[:length]) {
				return
			}
			text = text[length:]
		}
	}
}

// readPrefixes reads a list of prefixes and clears their host bits, which are without a meaning.
func readPrefixes(b []byte, family Family) (prefixes []netip.Prefix, err error) {
	for len(b) > 0 {
		prefix, _, rest, err := cutPrefix(b, family)
		if err != nil {
			return nil, err
		}
		prefixes, b = append(prefixes, prefix), rest
	}
	return prefixes, nil
}

func appendPrefixes(b []byte, prefixes []netip.Prefix) []byte {
	for _, p := range prefixes {
		b = append(b, byte(p.Bits()))
		if p.Addr().Is4() {
			raw := p.Addr().As4()
			b = append(b, raw[:(p.Bits()+7)/8]...)
			continue
		}
		raw := p.Addr().As16()
		b = append(b, raw[:(p.Bits()+7)/8]...)
	}
	return b
}

// EndsTable reports whether a whole message of our own speaker is the end of its table, RFC 4724 section 2.
func EndsTable(message []byte) bool {
	if TypeOf(message) != Update || len(message) < headerLen+4 {
		return false
	}
	b := body(message)
	if binary.BigEndian.Uint16(b) != 0 {
		return false
	}
	attributes := b[4:]
	if len(attributes) == 0 {
		return true
	}
	_, kind, value, rest, ok := cutAttribute(attributes)
	return ok && kind == attrMPUnreach && len(value) == 3 && len(rest) == 0
}
