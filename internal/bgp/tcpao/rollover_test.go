package tcpao

import (
	"fmt"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A removed key stays while the peer or this end signs with it, and until the peer has signed with another one; not
// longer than a week. The keys 1/11 and 2/12 are removed, 3/13 must remain.
func TestKeep(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := func(one, two, three uint64, current uint8) []installed {
		var have []installed
		for i, verified := range []uint64{one, two, three} {
			id := uint8(i + 1)
			have = append(have,
				installed{send: id, receive: id + 10, is: algorithms["hmac-sha1-96"], secret: "x", current: id == current, verified: verified})
		}
		return have
	}
	type look struct {
		at                time.Duration
		one, two, three   uint64 // segments so far
		current           uint8
		left, used, fails string // left: the send IDs of the keys that are not kept
	}
	const week = longestKept
	for name, c := range map[string]struct {
		want  string
		looks []look
	}{
		"signs by the new key": {"", []look{{0, 5, 0, 1, 3, "2 3", "", ""}, {time.Second, 5, 0, 2, 3, "1 2 3", "", ""}}},
		"is silent, then signs by the new key": {"", []look{
			{0, 5, 0, 0, 3, "2 3", "", ""}, {time.Hour, 5, 0, 0, 3, "3", "1/11", ""}, {2 * time.Hour, 5, 0, 1, 3, "1 2 3", "", ""}}},
		"signs by the first, and asks for the second": {"", []look{
			{0, 5, 0, 0, 2, "3", "", ""}, {59 * time.Second, 6, 0, 0, 2, "3", "", ""}, {time.Minute, 7, 0, 0, 2, "3", "1/11 2/12", ""},
			{2 * time.Minute, 8, 0, 0, 3, "2 3", "1/11", ""}, {week - 1, 9, 0, 0, 3, "2 3", "1/11", ""}, {week, 10, 0, 0, 3, "", "", "1/11"}}},
		"does not use the first for long": {"", []look{{0, 5, 0, 0, 3, "2 3", "", ""}, {week, 5, 0, 9, 3, "1 2 3", "", ""}}},
		"has only just begun":             {"", []look{{0, 0, 0, 0, 3, "3", "", ""}, {time.Hour, 0, 0, 0, 3, "3", "", ""}}},
		"uses a key whose ID has another": {"1/14 hmac-sha1-96 y\n", []look{{0, 5, 0, 0, 3, "", "", "1/11"}}},
		"has used it":                     {"1/14 hmac-sha1-96 y\n", []look{{0, 0, 0, 5, 3, "1 2 3", "", ""}}},
		"is silent, and its ID is needed": {"1/14 hmac-sha1-96 y\n", []look{{0, 0, 0, 0, 3, "1 3", "", ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			var r Rollover
			for _, l := range c.looks {
				now := begin.Add(l.at)
				rest, err := r.keep(all(l.one, l.two, l.three, l.current), must(t, "3/13 hmac-sha1-96 x\n"+c.want).all(), now)
				var left string
				for _, h := range rest {
					left += fmt.Sprintf("%d ", h.send)
				}
				if l.fails != "" {
					if !errtest.Has(fmt.Sprint(err), "key "+l.fails) {
						t.Errorf("at %s: %v", l.at, err)
					}
					continue
				}
				errtest.Must(t, err)
				difftest.Want(t, fmt.Sprintf("at %s: to be changed", l.at), l.left+" ", left)
				difftest.Want(t, fmt.Sprintf("at %s: used", l.at), l.used, r.Used(now))
			}
		})
	}
}
