package bfd

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

// sample is a packet, and its bytes by RFC 5880 section 4.1.
var sample = packet{
	diag: NeighborSaysDown, state: Init, poll: true, independent: true, mult: 3, my: 0x01020304, your: 0x0a0b0c0d,
	minTx: 300 * time.Millisecond, minRx: 50 * time.Millisecond,
}

const sampleHex = "23a80318" + "01020304" + "0a0b0c0d" + "000493e0" + "0000c350" + "00000000"

func TestPacketOnTheWire(t *testing.T) {
	if got := hex.EncodeToString(sample.append(nil)); got != sampleHex {
		t.Errorf("packet is %s, want %s", got, sampleHex)
	}
	b, err := hex.DecodeString(sampleHex)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parse(b); err != nil || got != sample {
		t.Errorf("parsed %+v, %v, want %+v", got, err, sample)
	}
}

func TestPacketThatIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"short":                {func(b []byte) []byte { return b[:23] }, "too short"},
		"longer than it is":    {func(b []byte) []byte { b[3] = 25; return b }, "length 25 of 24"},
		"shorter than allowed": {func(b []byte) []byte { b[3] = 23; return b }, "length 23"},
		"version":              {func(b []byte) []byte { b[0] = 0; return b }, "version 0"},
		"multiplier":           {func(b []byte) []byte { b[2] = 0; return b }, "multiplier 0"},
		"multipoint":           {func(b []byte) []byte { b[1] |= 1; return b }, "multipoint"},
		"discriminator":        {func(b []byte) []byte { copy(b[4:], make([]byte, 4)); return b }, "discriminator 0"},
		"state":                {func(b []byte) []byte { copy(b[8:], make([]byte, 4)); return b }, "state Init without our"},
		"poll and final":       {func(b []byte) []byte { b[1] |= bitFinal; return b }, "poll and final"},
		"no section":           {func(b []byte) []byte { b[1] |= bitAuth; return b }, "length of the auth"},
		"simple password": {func(b []byte) []byte {
			b[1], b[3] = b[1]|bitAuth, 24+4
			return append(b, 1, 4, 1, 'x')
		}, "authentication of simple is not supported"},
		"digest": {func(b []byte) []byte {
			b[1], b[3] = b[1]|bitAuth, 24+8
			return append(b, byte(KeyedMD5), 8, 1, 0, 0, 0, 0, 1)
		}, "length of the auth"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(c.change(sample.append(nil)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// FuzzParse: a parsed packet is written as it was read, except for the interval of Echo, and for bytes after a packet
// without authentication.
func FuzzParse(f *testing.F) {
	f.Add(sample.append(nil))
	for _, kind := range []AuthType{KeyedMD5, MeticulousMD5, KeyedSHA1, MeticulousSHA1} {
		p := sample
		p.auth = section{kind: kind, keyID: 7, seq: 9}
		f.Add(Auth{Type: kind, Key: "key"}.seal(nil, &p))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b)
		if err != nil {
			return
		}
		again := p.append(nil)
		copy(b[20:24], make([]byte, 4))
		end := headerLen
		if p.auth.kind == NoAuth {
			b[3] = headerLen
		} else {
			b[headerLen+3] = 0 // reserved
			end += sectionLen
		}
		if !bytes.Equal(again[:end], b[:end]) || len(again) != int(b[3]) {
			t.Errorf("%x was written as %x", b, again)
		}
	})
}
