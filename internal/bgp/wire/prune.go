package wire

import "net/netip"

// Prune drops withdrawals that are not wanted from an UPDATE of our own speaker. It calls wanted for each withdrawn
// prefix, then announced for each announced one. End-of-RIB and messages of other types stay.
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

// keep returns the wanted prefixes of a list, and whether these are all.
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
