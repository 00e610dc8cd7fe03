package install

import (
	"bytes"
	"strings"
	"testing"
	"testing/iotest"
)

// A text is found even if it spans two reads.
func TestHolds(t *testing.T) {
	text := []byte("\nmod\texample.com/a\t")
	for _, before := range []int{0, 1, 1<<20 - len(text), 1<<20 - 7, 1<<20 - 1, 1 << 20, 3<<20 - 3} {
		all := append(bytes.Repeat([]byte("m"), before), text...)
		if !holds(bytes.NewReader(all), text) || holds(bytes.NewReader(all[:len(all)-1]), text) {
			t.Errorf("after %d bytes", before)
		}
	}
	if !holds(iotest.OneByteReader(strings.NewReader("a"+string(text))), text) || holds(strings.NewReader(""), text) {
		t.Error("byte by byte")
	}
}
