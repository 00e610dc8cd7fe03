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

// Mismatches remembers segments that a listener's kernel has refused because they have the ID of a key of their sender,
// but another MAC. The zero value is empty.
type Mismatches struct {
	keys map[netip.Addr]map[ids]refused
}

type ids struct{ send, receive uint8 }

// refused is the kernel's count of segments refused since the key was installed, and when it last grew.
type refused struct {
	count uint64
	last  time.Time
}

// recent is how long a segment counts: a peer that cannot connect tries again within minutes.
const recent = 5 * time.Minute

// Read reads the kernel's counts. A closed listener has none.
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

// Of lists the keys whose ID recent segments from a peer's address have, as SEND/RECEIVE with spaces between; empty:
// none.
func (m *Mismatches) Of(peer netip.Addr, now time.Time) string {
	var all []ids
	// The kernel does not report the link of a link-local address.
	for id, r := range m.keys[peer.WithZone("")] {
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
