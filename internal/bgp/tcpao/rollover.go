package tcpao

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rollover remembers removed keys that a connection still has, and how many segments the peer has signed with each key.
// The zero value is for a new connection.
type Rollover struct {
	// verified is the kernel's count of the peer's segments at the last call, by the receive ID of their key.
	verified map[uint8]uint64
	removed  map[uint8]removedKey
}

// removedKey is a key that stays on a connection after its removal from the peer's keys.
type removedKey struct {
	send  uint8
	since time.Time
	used  bool
}

const (
	// reportAfter is how long a peer may use a removed key unreported: it may get its new key moments later.
	reportAfter = time.Minute
	// longestKept bounds the use of a removed key. An attacker may know it and keep it in use; within a week an operator
	// can configure the new key on the peer.
	longestKept = 7 * 24 * time.Hour
)

// keep counts the peer's segments since the last call, and returns the connection's keys without removed ones that must
// stay: this end signs with them at the peer's request, the peer signs with them, or it has sent nothing since the last
// call. It fails if a removed key is in use and cannot stay.
func (r *Rollover) keep(have []installed, want []key, now time.Time) (rest []installed, err error) {
	heard := slices.ContainsFunc(have, r.signed)
	verified, removed := make(map[uint8]uint64, len(have)), map[uint8]removedKey{}
	for _, h := range have {
		verified[h.receive] = h.verified
		k, ok := r.removed[h.receive]
		if !ok {
			k = removedKey{send: h.send, since: now}
		}
		k.used = h.current || r.signed(h) || (k.used && !heard)
		inTheWay := slices.ContainsFunc(want, key{send: h.send, receive: h.receive}.overlaps)
		switch {
		case slices.ContainsFunc(want, h.matches), !k.used && (heard || inTheWay):
			rest = append(rest, h)
		case k.used && (inTheWay || now.Sub(k.since) >= longestKept):
			return nil, fmt.Errorf("the peer still uses key %d/%d, which was removed", h.send, h.receive)
		default:
			removed[h.receive] = k
		}
	}
	r.verified, r.removed = verified, removed
	return rest, nil
}

// signed reports whether the peer has sent a segment signed with a key since the last call.
func (r *Rollover) signed(h installed) bool { return h.verified != r.verified[h.receive] }

// Used lists the removed keys that the peer still uses, as SEND/RECEIVE with spaces between; empty: none.
func (r *Rollover) Used(now time.Time) string {
	var all []string
	for id, k := range r.removed {
		if k.used && now.Sub(k.since) >= reportAfter {
			all = append(all, fmt.Sprintf("%d/%d", k.send, id))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
