package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// writer writes the messages that replace one. It reuses its memory for the next ones.
type writer struct {
	family Family
	text   []byte
	ends   []int // of messages, in text
	out    [][]byte
	// attributes holds the attributes of the messages in progress.
	attributes []byte
}

// keepAtMost bounds the memory that a writer keeps.
const keepAtMost = 2 * MaxLen

// as returns a message unchanged.
func (w *writer) as(message []byte) [][]byte {
	w.out = append(w.out[:0], message)
	return w.out
}

func (w *writer) start(family Family) {
	w.family, w.text, w.ends = family, w.text[:0], w.ends[:0]
	if cap(w.text) > keepAtMost {
		w.text = nil
	}
}

// finish returns the messages written.
func (w *writer) finish() [][]byte {
	w.out = w.out[:0]
	begin := 0
	for _, end := range w.ends {
		w.out = append(w.out, w.text[begin:end:end])
		begin = end
	}
	return w.out
}

// Lengths besides prefixes: header and both lengths; head of an attribute with an extended length; AFI and SAFI.
const (
	frameLen     = headerLen + 4
	attributeLen = 4
	familyLen    = 3
)

// withdraw writes withdrawals in as many messages as necessary.
func (w *writer) withdraw(prefixes []byte) {
	room := MaxLen - frameLen
	if w.family != IPv4 {
		room -= attributeLen + familyLen
	}
	for len(prefixes) > 0 {
		part := cutPrefixes(prefixes, room)
		prefixes = prefixes[len(part):]
		if w.family == IPv4 {
			w.message(part, nil, nil)
			continue
		}
		w.attributes = appendHead(w.attributes[:0], flags[attrMPUnreach], attrMPUnreach, familyLen+len(part))
		w.attributes = append(w.attributes, 0, byte(w.family), unicast)
		w.message(nil, append(w.attributes, part...), nil)
	}
}

// endTable writes End-of-RIB (RFC 4724 section 2).
func (w *writer) endTable() {
	if w.family == IPv4 {
		w.message(nil, nil, nil)
		return
	}
	w.message(nil, appendAttribute(nil, attrMPUnreach, []byte{0, byte(w.family), unicast}), nil)
}

// fits reports whether at least one prefix fits into a message with the changed attributes.
func (w *writer) fits(u *update, a *Attributes, c *Change) bool {
	w.change(u, a, c)
	return w.room() > w.family.bytes()
}

// room returns the space left in a message for prefixes.
func (w *writer) room() int {
	room := MaxLen - frameLen - len(w.attributes)
	if w.family != IPv4 {
		room -= attributeLen + familyLen + 1 + w.family.bytes() + 1
	}
	return room
}

// announce writes a group's announcements in as many messages as necessary.
func (w *writer) announce(u *update, a *Attributes, g *group) {
	w.change(u, a, &g.change)
	hop := a.NextHop
	if g.change.NextHop.IsValid() {
		hop = g.change.NextHop
	}
	w.reach(hop, g.prefixes)
}

// reach writes announcements with the present attributes.
func (w *writer) reach(hop netip.Addr, prefixes []byte) {
	room, length := w.room(), len(w.attributes)
	for len(prefixes) > 0 {
		part := cutPrefixes(prefixes, room)
		prefixes = prefixes[len(part):]
		if w.family == IPv4 {
			w.message(nil, w.attributes, part)
			continue
		}
		w.attributes = appendReachable(w.attributes[:length], w.family, hop, part)
		w.message(nil, w.attributes, nil)
	}
}

// appendReachable writes MP_REACH_NLRI.
func appendReachable(b []byte, family Family, hop netip.Addr, prefixes []byte) []byte {
	raw := hop.AsSlice()
	b = appendHead(b, flags[attrMPReach], attrMPReach, familyLen+1+len(raw)+1+len(prefixes))
	b = append(b, 0, byte(family), unicast, byte(len(raw)))
	b = append(append(b, raw...), 0)
	return append(b, prefixes...)
}

// message writes one message.
func (w *writer) message(withdrawn, attributes, announced []byte) {
	begin := len(w.text)
	length := frameLen + len(withdrawn) + len(attributes) + len(announced)
	w.text = append(slices.Grow(w.text, length), marker[:]...)
	w.text = append(binary.BigEndian.AppendUint16(w.text, uint16(length)), byte(Update))
	w.text = append(binary.BigEndian.AppendUint16(w.text, uint16(len(withdrawn))), withdrawn...)
	w.text = append(binary.BigEndian.AppendUint16(w.text, uint16(len(attributes))), attributes...)
	w.text = append(w.text, announced...)
	w.ends = append(w.ends, begin+length)
}

// marker begins every message.
var marker = [16]byte(slices.Repeat([]byte{0xff}, 16))

// cutPrefixes returns the first prefixes of a list that fit into room.
func cutPrefixes(b []byte, room int) []byte {
	end := 0
	for end < len(b) {
		next := end + 1 + (int(b[end])+7)/8
		if next > room {
			break
		}
		end = next
	}
	return b[:end]
}

// change writes all attributes except prefixes, in their order, then new ones.
func (w *writer) change(u *update, a *Attributes, c *Change) {
	edited := c.edits(a, w.family)
	b := w.attributes[:0]
	for rest := u.attributes; len(rest) > 0; {
		flag, kind, _, after, _ := cutAttribute(rest)
		raw := rest[:len(rest)-len(after)]
		rest = after
		if kind == attrMPReach || kind == attrMPUnreach {
			continue
		}
		if i := edited.find(kind); i >= 0 {
			edited[i].done = true
			b = append(appendHead(b, flag, kind, len(edited[i].value)), edited[i].value...)
			continue
		}
		b = append(b, raw...)
	}
	for _, e := range edited {
		if !e.done {
			b = append(appendHead(b, flags[e.kind], e.kind, len(e.value)), e.value...)
		}
	}
	w.attributes = b
}

// appendHead writes the head of an attribute.
func appendHead(b []byte, flag byte, kind attribute, length int) []byte {
	if length > 255 {
		return append(b, flag|flagExtended, byte(kind), byte(length>>8), byte(length))
	}
	return append(b, flag&^flagExtended, byte(kind), byte(length))
}

// edit is an attribute's new value.
type edit struct {
	kind  attribute
	value []byte
	done  bool
}

type edits []edit

func (e edits) find(kind attribute) int {
	return slices.IndexFunc(e, func(e edit) bool { return e.kind == kind })
}

// edits returns the values that a change sets on a path with these attributes.
func (c *Change) edits(a *Attributes, family Family) edits {
	var list edits
	if len(c.Prepend) > 0 {
		list = append(list, edit{kind: attrASPath, value: a.Path.prepend(c.Prepend).segments})
	}
	if c.NextHop.IsValid() && family == IPv4 {
		list = append(list, edit{kind: attrNextHop, value: c.NextHop.AsSlice()})
	}
	if c.SetLocalPref {
		list = append(list, edit{kind: attrLocalPref, value: binary.BigEndian.AppendUint32(nil, c.LocalPref)})
	}
	if len(c.Add) == 0 {
		return list
	}
	all := a.Communities.with(c.Add)
	if !bytes.Equal(all.standard, a.Communities.standard) {
		list = append(list, edit{kind: attrCommunities, value: all.standard})
	}
	if !bytes.Equal(all.large, a.Communities.large) {
		list = append(list, edit{kind: attrLargeCommunity, value: all.large})
	}
	return list
}
