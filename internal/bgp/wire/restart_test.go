package wire_test

import (
	"bytes"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// openWith frames an OPEN with these optional parameters.
func openWith(params ...byte) []byte {
	b := append(bytes.Repeat([]byte{0xff}, 16), 0, byte(29+len(params)), 1, 4, 0xfc, 0, 0, 90, 10, 0, 0, 5, byte(len(params)))
	return append(b, params...)
}

func TestSetRestart(t *testing.T) {
	multi := []byte{1, 4, 0, 1, 0, 1}
	for name, c := range map[string]struct{ before, restarted, preserved, both []byte }{
		"one family among other capabilities": {
			append([]byte{2, 14}, append(bytes.Clone(multi), 64, 6, 0x40, 120, 0, 1, 1, 0)...),
			append([]byte{2, 14}, append(bytes.Clone(multi), 64, 6, 0xc0, 120, 0, 1, 1, 0)...),
			append([]byte{2, 14}, append(bytes.Clone(multi), 64, 6, 0x40, 120, 0, 1, 1, 0x80)...),
			append([]byte{2, 14}, append(bytes.Clone(multi), 64, 6, 0xc0, 120, 0, 1, 1, 0x80)...),
		},
		"a parameter each, and no family": {
			[]byte{2, 6, 1, 4, 0, 1, 0, 1, 2, 4, 64, 2, 0, 120},
			[]byte{2, 6, 1, 4, 0, 1, 0, 1, 2, 4, 64, 2, 0x80, 120},
			[]byte{2, 6, 1, 4, 0, 1, 0, 1, 2, 4, 64, 2, 0, 120},
			[]byte{2, 6, 1, 4, 0, 1, 0, 1, 2, 4, 64, 2, 0x80, 120},
		},
		"no graceful restart": {[]byte{2, 6, 1, 4, 0, 1, 0, 1}, []byte{2, 6, 1, 4, 0, 1, 0, 1}, []byte{2, 6, 1, 4, 0, 1, 0, 1}, []byte{2, 6, 1, 4, 0, 1, 0, 1}},
		"nothing":             {nil, nil, nil, nil},
		"cut short":           {[]byte{2, 6, 64, 200, 0}, []byte{2, 6, 64, 200, 0}, []byte{2, 6, 64, 200, 0}, []byte{2, 6, 64, 200, 0}},
	} {
		for _, step := range []struct {
			wire.Restart
			want []byte
		}{
			{wire.Restart{Restarted: true}, c.restarted},
			{wire.Restart{Preserved: true}, c.preserved},
			{wire.Restart{Restarted: true, Preserved: true}, c.both},
			{wire.Restart{}, c.before},
		} {
			got := openWith(c.before...)
			if c.both != nil {
				got = openWith(c.both...) // bits are taken away, too
			}
			wire.SetRestart(got, step.Restart)
			if want := openWith(step.want...); !bytes.Equal(got, want) {
				t.Errorf("%s, %+v: %x, want %x", name, step.Restart, got[28:], want[28:])
			}
		}
	}
}
