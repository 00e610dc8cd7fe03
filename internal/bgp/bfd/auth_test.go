package bfd

import (
	"errors"
	"testing"
	"time"
)

var kinds = []AuthType{KeyedMD5, MeticulousMD5, KeyedSHA1, MeticulousSHA1}

func signed(kind AuthType, key string) Config {
	return Config{Interval: fast.Interval, Multiplier: 3, Auth: Auth{Type: kind, KeyID: 7, Key: key}}
}

// TestAuthentication: ends with one key come up, ends with two keys do not, and report the reason.
func TestAuthentication(t *testing.T) {
	for _, kind := range kinds {
		l := newLine(signed(kind, "one"), signed(kind, "one"))
		l.run(t, 5*time.Second)
		if !l.up() {
			t.Errorf("%s: a %+v, b %+v", kind, l.a.status(), l.b.status())
		}
		l = newLine(signed(kind, "one"), signed(kind, "two"))
		l.run(t, 5*time.Second)
		if l.a.state != Down || l.a.fault != errDigest.Error() {
			t.Errorf("%s with different keys: %+v", kind, l.a.status())
		}
		l = newLine(signed(kind, "one"), fast)
		l.run(t, 5*time.Second)
		if l.a.fault != errUnsigned.Error() || l.b.fault != errSigned.Error() {
			t.Errorf("%s at one end: a %+v, b %+v", kind, l.a.status(), l.b.status())
		}
	}
}

// TestAlteredPacket: no byte of an authenticated packet can be changed.
func TestAlteredPacket(t *testing.T) {
	for _, kind := range kinds {
		from := newSession(signed(kind, "key"), 2, start)
		b := from.send(nil, start)
		for i := range b {
			to := newSession(signed(kind, "key"), 1, start)
			b[i] ^= 1
			if to.take(b, start); to.remote.my != 0 {
				t.Errorf("%s: byte %d was changed, and the packet taken", kind, i)
			}
			b[i] ^= 1
		}
		to := newSession(signed(kind, "key"), 1, start)
		if to.take(b, start); to.remote.my == 0 {
			t.Errorf("%s: the packet itself was refused: %s", kind, to.fault)
		}
	}
}

// TestReplay: meticulous sessions refuse a recorded packet, and all refuse an old one, until nothing was received for
// twice the detection time.
func TestReplay(t *testing.T) {
	for _, kind := range kinds {
		from, to := newSession(signed(kind, "key"), 2, start), newSession(signed(kind, "key"), 1, start)
		from.seq.sent = ^uint32(0) - 1 // sequence numbers wrap around
		old := from.send(nil, start)
		to.take(old, start)
		same := old
		for range 3 {
			same = from.send(nil, start)
			to.take(same, start)
		}
		read := func(b []byte, at time.Time) error {
			p, err := parse(b)
			if err != nil {
				t.Fatal(err)
			}
			return to.receive(b, &p, at)
		}
		if err := read(old, start); !errors.Is(err, errReplay) {
			t.Errorf("%s: an old packet: %v", kind, err)
		}
		if err := read(same, start); errors.Is(err, errReplay) != kind.meticulous() {
			t.Errorf("%s: the last packet once more: %v", kind, err)
		}
		if err := read(old, start.Add(2*to.detection()+time.Second)); err != nil {
			t.Errorf("%s: after silence: %v", kind, err)
		}
	}
}
