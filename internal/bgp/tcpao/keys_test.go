package tcpao

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

const sixteen = "0123456789abcdef"

// Errors contain no part of the text: it may be a secret in the wrong place.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"1 hmac-sha1-96 one": "1/1 hmac-sha1-96 one\n",
		"# comment\r\n\n 7/8  hmac-sha256-128  two words \r\n0 aes-128-cmac-96 " +
			sixteen: "7/8 hmac-sha256-128 two words\n0/0 aes-128-cmac-96 " + sixteen + "\n",
		"255 hmac-sha256-96 " + strings.Repeat("x", 80): "255/255 hmac-sha256-96 " +
			strings.Repeat("x", 80) + "\n",
	} {
		got, err := Parse(text)
		if again, err := Parse(string(got)); again != got || err != nil {
			t.Errorf("%q: read again %q, %v", text, string(again), err)
		}
		if string(got) != want || err != nil {
			t.Errorf("%q: %q, %v", text, string(got), err)
		}
	}
	for text, want := range map[string]string{
		"":                          "there is no key",
		"# hidden\n":                "there is no key",
		"hidden":                    "line 1: it does not begin with an ID",
		"\n256 hmac-sha1-96 hidden": "line 2: it does not begin with an ID",
		"1/hidden hmac-sha1-96 x":   "line 1: it does not begin with an ID",
		"-1 hmac-sha1-96 hidden":    "line 1: it does not begin with an ID",
		"1 hidden": "line 1: its second word is no algorithm: use aes-128-cmac-96, hmac-sha1-96, " +
			"hmac-sha256-128, hmac-sha256-96",
		"1 hmac-sha1-96":                                  "line 1: its secret has 0 bytes",
		"1 aes-128-cmac-96 hidden":                        "line 1: its secret has 6 bytes: aes-128-cmac-96 takes 16",
		"1 hmac-sha1-96 hidden" + strings.Repeat("x", 75): "line 1: its secret has 81 bytes",
		"1 hmac-sha1-96 a\n1/2 hmac-sha1-96 hidden":       "line 2: an earlier line has its send or receive ID",
		"1 hmac-sha1-96 a\n\n2/1 hmac-sha1-96 hidden":     "line 3: an earlier line has its send or receive ID",
	} {
		got, err := Parse(text)
		if got != "" || !errtest.Has(fmt.Sprint(err), want) || strings.Contains(fmt.Sprint(err), "hidden") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func must(t *testing.T, text string) Keys {
	t.Helper()
	k, err := Parse(text)
	errtest.Must(t, err)
	return k
}

func TestRolls(t *testing.T) {
	const a, b, c = "1 hmac-sha1-96 a\n", "2 hmac-sha1-96 b\n", "3/4 hmac-sha256-96 c\n"
	for _, x := range []struct {
		from, to string
		want     bool
	}{
		{a, a + b, true}, {a + b, b + a, true}, {b + a, b, true}, {a, b + c, true},
		{a, "1 hmac-sha1-96 b", false}, {a, "1 hmac-sha256-96 a", false}, {a + c, a + "3 hmac-sha256-96 c", false},
		{c, "4/3 hmac-sha256-96 c", true},
	} {
		if got := must(t, x.from).Rolls(must(t, x.to)); got != x.want {
			t.Errorf("from %q to %q: %v", x.from, x.to, got)
		}
	}
	if some := must(t, a); some.Rolls("") || Keys("").Rolls(some) || Keys("").Rolls("") {
		t.Error("rolls from or to nothing")
	}
	if !must(t, a+b).Symmetric() || must(t, a+c).Symmetric() {
		t.Error("symmetric")
	}
	if text := fmt.Sprintf("%v %+v %s", must(t, a+b), struct{ K Keys }{must(t, a)}, must(t, c)); text != "2 keys {K:1 keys} 1 keys" {
		t.Errorf("printed as %s", text)
	}
}

// Check returns nil, or names what the kernel lacks.
func TestCheck(t *testing.T) {
	if err := Check(); err != nil && !errors.Is(err, ErrNoKernel) {
		t.Error(err)
	}
}

// Steps as text: + adds, > requests, - removes, ~ removes unless used.
func TestPlan(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.2")
	on := func(send, receive uint8, secret string, next bool) installed {
		return installed{peer: peer, send: send, receive: receive, is: algorithms["hmac-sha1-96"], secret: secret, next: next}
	}
	one, two := on(1, 1, "a", true), on(2, 2, "b", false)
	const a, b = "1 hmac-sha1-96 a\n", "2 hmac-sha1-96 b\n"
	for name, c := range map[string]struct {
		have       []installed
		want       string
		connection bool
		steps      string
	}{
		"new":                          {nil, a + b, true, "+1/1 +2/2 >1/1"},
		"new on a listener":            {nil, a + b, false, "+1/1 +2/2"},
		"nothing to do":                {[]installed{two, one}, a + b, true, ""},
		"beside":                       {[]installed{one}, a + b, true, "+2/2"},
		"switched":                     {[]installed{one, two}, b + a, true, ">2/2"},
		"switched on a listener":       {[]installed{one, two}, b + a, false, ""},
		"over":                         {[]installed{on(1, 1, "a", false), on(2, 2, "b", true)}, b, true, "~1/1"},
		"all at once":                  {[]installed{one}, b, true, "+2/2 >2/2 ~1/1"},
		"no key any more":              {[]installed{one, two}, "", false, "~1/1 ~2/2"},
		"another secret under its IDs": {[]installed{one}, "1 hmac-sha1-96 x", false, "-1/1 +1/1"},
		"another algorithm":            {[]installed{one}, "1 hmac-sha256-96 a", false, "-1/1 +1/1"},
		"another MAC": {
			[]installed{{peer: peer, send: 1, receive: 1, is: algorithm{"hmac(sha1)", 16}, secret: "a"}}, a, false, "-1/1 +1/1",
		},
		"its receive ID for another key":  {[]installed{one}, "3/1 hmac-sha1-96 a", false, "-1/1 +3/1"},
		"first of all what is in the way": {[]installed{two, one}, "1 hmac-sha1-96 x", true, "-1/1 +1/1 >1/1 ~2/2"},
	} {
		var got []string
		for _, s := range plan(c.have, Keys(c.want).all(), c.connection) {
			got = append(got, fmt.Sprintf("%c%d/%d", "-+>~"[s.op], s.key.send, s.key.receive))
		}
		difftest.Want(t, name, c.steps, strings.Join(got, " "))
	}
}
