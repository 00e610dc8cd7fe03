package wire

import "net/netip"

// Prune leaves those withdrawals out of an UPDATE of our own speaker that are not wanted, and tells which prefixes it
// announces. It is asked about each prefix once, withdrawals first. The end of the table stays, and a message of
// another type.
func Prune(message []byte, family Family, wanted func(netip.Prefix) bool, announced func(netip.Prefix)) [][]byte {
	if TypeOf(message) != Update || EndsTable(message) {
		return [][]byte{message}
	}
	u, err := cutUpdate(message, family)
	if err != nil {
		return [][]byte{message}
	}
	var a Attributes
	if err := a.read(&u, family, 0); err != nil {
		return [][]byte{message}
	}
	left, all := keep(u.withdrawn, family, wanted)
	for rest := u.announced; len(rest) > 0; {
		prefix, _, after, err := cutPrefix(rest, family)
		if err != nil {
			return [][]byte{message}
		}
		announced(prefix)
		rest = after
	}
	if all {
		return [][]byte{message}
	}
	var w writer
	w.start(family)
	w.withdraw(left)
	w.change(&u, &a, &Change{})
	w.reach(a.NextHop, u.announced)
	return w.finish()
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
