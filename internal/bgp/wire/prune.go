package wire

import (
	"encoding/binary"
	"net/netip"
)

// Prune leaves those withdrawals out of an UPDATE of our own speaker that are not wanted, and tells which prefixes it announces. It
// is asked about each prefix once, withdrawals first. Nothing is left: nil. The end of the table stays, and a message of another type.
func Prune(message []byte, family Family, wanted func(netip.Prefix) bool, announced func(netip.Prefix)) []byte {
	if TypeOf(message) != Update || EndsTable(message) {
		return message
	}
	u, err := cutUpdate(message, family)
	if err != nil {
		return message
	}
	var a Attributes
	if err := a.read(&u, family, 0); err != nil {
		return message
	}
	left, all := keep(u.withdrawn, family, wanted)
	for rest := u.announced; len(rest) > 0; {
		prefix, _, after, err := cutPrefix(rest, family)
		if err != nil {
			return message
		}
		announced(prefix)
		rest = after
	}
	switch {
	case all:
		return message
	case len(left)+len(u.announced) == 0:
		return nil
	}
	return u.withdrawing(family, left)
}

// keep returns those of a list of prefixes that are wanted, and whether these are all.
func keep(list []byte, family Family, wanted func(netip.Prefix) bool) (left []byte, all bool) {
	all = true
	for rest := list; len(rest) > 0; {
		prefix, raw, after, err := cutPrefix(rest, family)
		if err != nil {
			return list, true
		}
		if wanted(prefix) {
			left = append(left, raw...)
		} else {
			all = false
		}
		rest = after
	}
	return left, all
}

// withdrawing writes the message with other withdrawals.
func (u *update) withdrawing(family Family, withdrawn []byte) []byte {
	message := begin(Update)
	attributes := u.attributes
	if family == IPv4 {
		message = append(binary.BigEndian.AppendUint16(message, uint16(len(withdrawn))), withdrawn...)
	} else {
		message = append(message, 0, 0)
		attributes = withUnreachable(u.attributes, family, withdrawn)
	}
	message = append(binary.BigEndian.AppendUint16(message, uint16(len(attributes))), attributes...)
	if family == IPv4 {
		message = append(message, u.announced...)
	}
	return end(message)
}

// withUnreachable returns attributes with other prefixes in MP_UNREACH_NLRI.
func withUnreachable(attributes []byte, family Family, withdrawn []byte) []byte {
	var out []byte
	for b := attributes; len(b) > 0; {
		_, kind, _, rest, ok := cutAttribute(b)
		if !ok {
			return attributes
		}
		if kind != attrMPUnreach {
			out = append(out, b[:len(b)-len(rest)]...)
		}
		b = rest
	}
	if len(withdrawn) > 0 {
		out = appendAttribute(out, attrMPUnreach, append([]byte{0, byte(family), unicast}, withdrawn...))
	}
	return out
}
