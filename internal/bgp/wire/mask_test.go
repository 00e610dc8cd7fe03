package wire

import (
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

func TestReplaceAS(t *testing.T) {
	path := func(second, last byte) []byte {
		return []byte{0x40, 2, 20, 2, 3, 0, 0, 0, 7, 0, 0, 0, second, 0, 0, 0, 9, 1, 1, 0, 0, 0, last}
	}
	message := updateOf(nil, join(origin, path(8, 8), hop), block)
	if n := CountAS(message, 8); n != 2 {
		t.Errorf("it is there %d times", n)
	}
	ReplaceAS(message, 8, 5)
	difftest.Want(t, "", updateOf(nil, join(origin, path(5, 5), hop), block), message)
	for _, other := range [][]byte{raw(Keepalive), updateOf(block, nil, nil), updateOf(nil, nil, nil)} {
		if CountAS(other, 8) != 0 {
			t.Errorf("% x", other)
		}
	}
}
