package tcpao

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rollover remembers which keys a connection has on top of those that it is to have, and what the peer has signed. The
// zero value is for a new connection.
type Rollover struct {
	verified map[uint8]uint64 // the peer's segments by the key that signed them, at the last look; keys are by receive ID, one key has each
	removed  map[uint8]removedKey
}

// removedKey is one that stays on a connection after it was removed from the peer's keys.
type removedKey struct {
	send  uint8
	since time.Time
	used  bool
}

const (
	// reportAfter is how long a peer may use a removed key before that is reported: it may get its new key moments later.
	reportAfter = time.Minute
	// longestKept bounds the use of a removed key, which may be known to an attacker, who can keep it in use; within a
	// week an operator can give the peer its new key.
	longestKept = 7 * 24 * time.Hour
)

// keep notes what the peer has signed since the last look, and returns the keys of a connection but for those that are
// not wanted and must stay: this end signs by them, as the peer asks for it, the peer does, or the peer has sent
// nothing since the last look.
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

// signed reports whether a segment of the peer has come by a key since the last look.
func (r *Rollover) signed(h installed) bool { return h.verified != r.verified[h.receive] }

// Used names the removed keys that the peer goes on using, SEND/RECEIVE with spaces between; empty: there are none.
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
