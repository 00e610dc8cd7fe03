package netlinkx

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// neighbourBody returns the body of a request, which has the form in which the kernel lists an entry.
func neighbourBody(n Neighbour) []byte {
	return n.appendRequest(nil, unix.RTM_NEWNEIGH, 0, 1)[unix.SizeofNlMsghdr:]
}

// Whatever the kernel sends, parsing ends, and a parsed entry can be encoded in a request.
func FuzzParseNeighbour(f *testing.F) {
	n := Neighbour{Link: 3, Addr: netip.MustParseAddr("10.0.0.1"), MAC: [6]byte{1, 2, 3, 4, 5, 6}, Permanent: true}
	f.Add(neighbourBody(n))
	n.Forward, n.Addr = true, netip.MustParseAddr("fd00::1")
	f.Add(neighbourBody(n))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		n, ok, err := parseNeighbour(body)
		if err != nil || !ok || n.More || !n.Permanent || !n.Addr.IsValid() {
			return
		}
		again, ok, err := parseNeighbour(neighbourBody(n))
		if err != nil || !ok || again != n {
			t.Fatalf("%s became %s, %v", n, again, err)
		}
		_ = n.String()
	})
}
