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

// part is the part of an UPDATE about one family.
type part struct {
	family    Family
	withdrawn []netip.Prefix
	announced []netip.Prefix
	nextHop   []byte // as in MP_REACH_NLRI, or the four bytes of NEXT_HOP
	// end: the message is End-of-RIB, RFC 4724 section 2.
	end bool
}

// parsedUpdate holds the understood parts of an UPDATE: prefixes of the session's families, and attributes as passed
// on.
type parsedUpdate struct {
	parts      []part
	room       [2]part // for parts
	linkLocal  bool    // see Rules
	attributes []byte  // all but next hops and prefixes
	seen       [256]bool
	// flaw is the first reason to refuse announced prefixes, or to leave an attribute out; withdraw tells which.
	flaw     string
	withdraw bool
	// refusal is why announced prefixes are refused: they are of no use to us, or flawed.
	refusal  string
	hasMED   bool
	med      uint32
	clusters int // in CLUSTER_LIST
	widened  widened
}

// Sizes in bytes of the attributes of a block, with its next hop, and of a few prefixes, so that most UPDATEs need no
// further memory, and of the additions of stamped and write to attributes.
const (
	usualAttributes = 128
	usualPrefixes   = 64
	roomToStamp     = 48
)

// maxAttributes bounds the cost of a path: each prefix of a peer can have attributes of its own, and MaxPrefixes would
// else bound nothing. It is room for some 400 AS numbers.
const maxAttributes = 2048

var tooLong = fmt.Sprintf("path attributes of more than %d bytes", maxAttributes)

// errNetwork is the error of a list of prefixes. The end of the list is unknown then, so the session is reset (RFC 7606
// section 5.3).
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
	if n.withdraw {
		n.refusal = malformed
	}
	v := Verdict{Flaw: n.flaw}
	var w writer
	for i := range n.parts {
		if fault := s.take(n, &n.parts[i], &v, &w); fault != nil {
			return Verdict{Reset: fault}
		}
	}
	v.Pass = w.text
	return v
}

// take records one family of n in the session and in the verdict, and writes the message to pass on.
func (s *Session) take(n *parsedUpdate, p *part, v *Verdict, w *writer) *Notification {
	p.settle()
	v.Gone = joined(v.Gone, p.withdrawn)
	attributes, what := []byte(nil), Said{}
	if n.refusal != "" {
		v.Refused, v.Refusal = joined(v.Refused, p.announced), n.refusal
	} else if len(p.announced) > 0 {
		attributes = n.stamped(p.nextHop, &s.rules)
		what = newSaid(p.nextHop, attributes)
	}
	s.withdraw(p.withdrawn)
	if !s.announce(p.announced, what) {
		return s.tooMany(p.family)
	}
	if n.refusal != "" {
		p.withdrawn, p.announced = append(slices.Clip(p.withdrawn), p.announced...), nil
	}
	p.write(w, attributes)
	if p.end {
		s.end(p.family, v, w)
	}
	return nil
}

// joined appends more, without a copy if prefixes is empty.
func joined(prefixes, more []netip.Prefix) []netip.Prefix {
	if len(prefixes) == 0 {
		return more
	}
	return append(prefixes, more...)
}

// end notes the end of a family's table. With the last one it writes End-of-RIB of families that the peer does not
// have, too, as the speaker behind waits for all.
func (s *Session) end(family Family, v *Verdict, w *writer) {
	s.ended, v.Ended = s.ended.With(family), v.Ended.With(family)
	if v.End = s.ended == s.offer.families; !v.End {
		return
	}
	for _, family := range (s.rules.Families &^ s.offer.families).All() {
		w.family = family
		w.endTable()
	}
}

// stamped returns the attributes with MED. Unless Source is 0 it adds a stamp, and the MED is a rank.
func (n *parsedUpdate) stamped(nextHop []byte, rules *Rules) []byte {
	attributes := n.attributes
	if len(n.parts) > 1 {
		attributes = slices.Clip(attributes) // the other part has them, too
	}
	stamp := Stamp{Source: rules.Source, HasMED: n.hasMED, MED: n.med}
	med := n.med
	if rules.Source != 0 {
		med = rank(n.med, n.clusters)
	}
	if n.hasMED || med != 0 {
		attributes = appendAttribute(attributes, attrMED, binary.BigEndian.AppendUint32(nil, med))
	}
	if rules.Source != 0 {
		if stamp.NextHop, _ = netip.AddrFromSlice(nextHop); LinkLocal(stamp.NextHop) {
			stamp.NextHop = stamp.NextHop.WithZone(rules.Link)
		}
		attributes = stamp.append(attributes)
	}
	return attributes
}

func newSaid(nextHop, attributes []byte) Said {
	text := make([]byte, 0, usualAttributes)
	text = append(append(append(text, byte(len(nextHop))), nextHop...), attributes...)
	return Said{unique.Make(string(text))}
}

// parts returns the next hop and the attributes, which the caller owns.
func (what Said) parts() (nextHop, attributes []byte) {
	text := []byte(what.Value())
	size := 1 + int(text[0])
	return text[1:size], text[size:]
}

// readUpdate parses an UPDATE.
func (s *Session) readUpdate(b []byte) (*parsedUpdate, *Notification) {
	n := &parsedUpdate{linkLocal: s.rules.Link != ""}
	n.parts = n.room[:0]
	for _, family := range s.offer.families.All() {
		n.parts = append(n.parts, part{family: family})
	}
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
	// Prefixes outside of attributes are IPv4. On a session without IPv4 they were not agreed on and are ignored.
	if p := n.part(IPv4); p != nil {
		p.end = len(withdrawn)+len(attributes)+len(reachable) == 0
		var gone, come error
		p.withdrawn, gone = readPrefixes(withdrawn, IPv4)
		p.announced, come = readPrefixes(reachable, IPv4)
		if gone != nil || come != nil {
			return nil, updateFault(10, nil, "%v", errNetwork)
		}
	}
	if len(attributes) > 0 {
		n.attributes = make([]byte, 0, len(attributes)+roomToStamp)
	}
	if fault := s.readAttributes(n, attributes); fault != nil {
		return nil, fault
	}
	n.checkMandatory()
	return n, nil
}

// part returns the part of a family; nil: the session does not have it.
func (n *parsedUpdate) part(family Family) *part {
	for i := range n.parts {
		if n.parts[i].family == family {
			return &n.parts[i]
		}
	}
	return nil
}

// flawed notes a flaw. With withdraw the message's announcements count as withdrawals.
func (n *parsedUpdate) flawed(withdraw bool, format string, args ...any) {
	if n.flaw == "" || (withdraw && !n.withdraw) {
		n.flaw = fmt.Sprintf(format, args...)
	}
	n.withdraw = n.withdraw || withdraw
}

// malformed is the refusal of prefixes that RFC 7606 treats as withdrawn. It does not name the flaw: there are
// endlessly many.
const malformed = "its UPDATE is malformed"

// settle drops withdrawals of prefixes that are announced, too, RFC 4271 section 4.3.
func (p *part) settle() {
	if len(p.withdrawn) > 0 && len(p.announced) > 0 {
		announced := make(map[netip.Prefix]bool, len(p.announced))
		for _, prefix := range p.announced {
			announced[prefix] = true
		}
		p.withdrawn = slices.DeleteFunc(p.withdrawn, func(prefix netip.Prefix) bool { return announced[prefix] })
	}
	p.end = p.end && len(p.withdrawn)+len(p.announced) == 0
}

// checkMandatory applies RFC 7606 section 3, d: an announcement without a well-known mandatory attribute is a
// withdrawal.
func (n *parsedUpdate) checkMandatory() {
	announces, hasHops := false, true
	for i := range n.parts {
		if p := &n.parts[i]; len(p.announced) > 0 {
			announces, hasHops = true, hasHops && p.nextHop != nil
		}
	}
	if !announces {
		return
	}
	for _, kind := range []attribute{attrOrigin, attrASPath} {
		if !n.seen[kind] {
			n.flawed(true, "%s is missing", kind)
		}
	}
	if !hasHops && !n.withdraw {
		n.flawed(true, "%s is missing", attrNextHop)
	}
	if len(n.attributes) > maxAttributes {
		n.refusal = tooLong
	}
}

// write writes withdrawals, then announcements, in as many messages as necessary. It may overwrite attributes. If
// nothing is left for the speaker behind there is no message: an empty one would be End-of-RIB.
func (p *part) write(w *writer, attributes []byte) {
	w.family = p.family
	var few [usualPrefixes]byte
	w.withdraw(appendPrefixes(few[:0], p.withdrawn))
	if len(p.announced) > 0 {
		hop, _ := netip.AddrFromSlice(p.nextHop)
		hop = innerHop(p.family, hop)
		w.attributes = attributes
		if p.family == IPv4 {
			w.attributes = appendAttribute(w.attributes, attrNextHop, hop.AsSlice())
		}
		w.reach(hop, appendPrefixes(few[:0], p.announced))
	}
	if p.end {
		w.endTable()
	}
}

// Messages iterates over the messages of a text.
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

// readPrefixes reads a list of prefixes and clears their host bits, which have no meaning.
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

// EndsTable reports whether a whole message of our own speaker is End-of-RIB, RFC 4724 section 2.
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
