package tcpao

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Peers with one address on several links and other keys exclude each other: installed keys come first, else the first
// peer.
func TestWithoutLinks(t *testing.T) {
	at := netip.MustParseAddr("fe80::1")
	a, b, c := at.WithZone("a"), at.WithZone("b"), at.WithZone("c")
	keys := func(text string) Keys {
		k, err := Parse(text)
		errtest.Must(t, err)
		return k
	}
	one, two := keys("1 hmac-sha1-96 one\n"), keys("2 hmac-sha1-96 two\n")
	both := keys("1 hmac-sha1-96 one\n2 hmac-sha1-96 two\n")
	for name, test := range map[string]struct {
		want      map[netip.Addr]Keys
		installed Keys
		named     netip.Addr
		failed    []netip.Addr
	}{
		"alone":                          {map[netip.Addr]Keys{b: two}, "", b, nil},
		"with the same":                  {map[netip.Addr]Keys{a: one, b: one}, "", a, nil},
		"the first":                      {map[netip.Addr]Keys{a: one, b: two}, "", a, []netip.Addr{b}},
		"the one that is there":          {map[netip.Addr]Keys{a: one, b: two}, two, b, []netip.Addr{a}},
		"the one that is rolled over":    {map[netip.Addr]Keys{a: one, b: two}, both, a, []netip.Addr{b}},
		"one of three, and its like":     {map[netip.Addr]Keys{a: one, b: two, c: two}, two, b, []netip.Addr{a}},
		"one of three, between the like": {map[netip.Addr]Keys{a: one, b: two, c: one}, two, b, []netip.Addr{a, c}},
		"one of three, after the like":   {map[netip.Addr]Keys{a: one, b: one, c: two}, two, c, []netip.Addr{a, b}},
	} {
		have := map[netip.Addr][]installed{at: nil}
		for _, k := range test.installed.all() {
			have[at] = append(have[at], installed{peer: at, send: k.send, receive: k.receive, is: algorithms[k.algorithm], secret: k.secret})
		}
		named, failed := WithoutLinks(test.want, func(peer netip.Addr, k Keys) bool { return k.on(have[peer.WithZone("")]) })
		if len(named) != 1 || named[at] != test.named || len(failed) != len(test.failed) {
			t.Errorf("%s: keys are those of %v, refused are %v", name, named, failed)
		}
		for peer, err := range failed {
			if !slices.Contains(test.failed, peer) || !strings.HasPrefix(err.Error(), at.String()+"%") {
				t.Errorf("%s: %s: %v", name, peer, err)
			}
		}
	}
}
