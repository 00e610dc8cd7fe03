package tcpao

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// A key is listed while segments with its ID were refused within minutes, for its own peer only. A new key with the
// same ID starts from zero.
func TestMismatches(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fe80::2")
	on := func(peer netip.Addr, send, receive uint8, bad uint64) installed {
		return installed{peer: peer, send: send, receive: receive, bad: bad, verified: 7}
	}
	var m Mismatches
	for i, c := range []struct {
		after             time.Duration
		have              []installed
		ofOne, ofTheOther string
	}{
		{0, []installed{on(one, 1, 11, 0), on(two, 1, 11, 0)}, "", ""},
		{time.Second, []installed{on(one, 1, 11, 0), on(one, 10, 2, 1), on(one, 2, 12, 3), on(two, 1, 11, 0)}, "2/12 10/2", ""},
		{recent, []installed{on(one, 2, 12, 4), on(one, 10, 2, 1), on(two, 1, 11, 5)}, "2/12 10/2", "1/11"},
		{recent + time.Second, []installed{on(one, 2, 12, 4), on(one, 10, 2, 1), on(two, 1, 11, 5)}, "2/12", "1/11"},
		{2 * recent, []installed{on(one, 2, 12, 1), on(one, 10, 2, 0)}, "2/12", ""}, // both are new
		{3 * recent, []installed{on(one, 2, 12, 1)}, "", ""},
		{3 * recent, nil, "", ""},
	} {
		now := begin.Add(c.after)
		m.note(c.have, now)
		difftest.Want(t, fmt.Sprint(i), c.ofOne+"|"+c.ofTheOther, m.Of(one, now)+"|"+m.Of(two.WithZone("eth0"), now))
	}
}
