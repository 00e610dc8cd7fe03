package tcpao

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Mismatches remembers segments that a listener's kernel has refused because they have the ID of a key of their
// sender's, and another MAC than the key makes. The zero value has none.
type Mismatches struct {
	keys map[netip.Addr]map[ids]refused
}

type ids struct{ send, receive uint8 }

// refused is how many segments the kernel has refused since the key is on the socket, and when they last became more.
type refused struct {
	count uint64
	last  time.Time
}

// recent is for how long a segment counts: a peer that does not come through tries again within minutes.
const recent = 5 * time.Minute

// Read reads the kernel's counts. A listener that is closed has none.
func (m *Mismatches) Read(listener syscall.RawConn, now time.Time) {
	_ = control(listener, func(fd int) error {
		have, err := keysOn(fd)
		m.note(have, now)
		return err
	})
}

func (m *Mismatches) note(have []installed, now time.Time) {
	keys := make(map[netip.Addr]map[ids]refused, len(m.keys))
	for _, h := range have {
		id := ids{h.send, h.receive}
		r := m.keys[h.peer][id]
		if h.bad < r.count { // it is another key
			r = refused{}
		}
		if h.bad > r.count {
			r.last = now
		}
		if r.count = h.bad; keys[h.peer] == nil {
			keys[h.peer] = map[ids]refused{}
		}
		keys[h.peer][id] = r
	}
	m.keys = keys
}

// Of names the keys whose ID recent segments from a peer's address have, SEND/RECEIVE with spaces between; empty: there
// are none.
func (m *Mismatches) Of(peer netip.Addr, now time.Time) string {
	var all []ids
	for id, r := range m.keys[peer.WithZone("")] { // the kernel tells no link of a link-local address
		if !r.last.IsZero() && now.Sub(r.last) < recent {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b ids) int { return cmp.Or(cmp.Compare(a.send, b.send), cmp.Compare(a.receive, b.receive)) })
	words := make([]string, len(all))
	for i, id := range all {
		words[i] = fmt.Sprintf("%d/%d", id.send, id.receive)
	}
	return strings.Join(words, " ")
}
