package bfd

import (
	"strings"
	"testing"
	"time"
)

func TestSetting(t *testing.T) {
	for text, want := range map[string]Config{
		"3x300ms":                    {Interval: 300 * time.Millisecond, Multiplier: 3},
		"5x1s":                       {Interval: time.Second, Multiplier: 5},
		" 3x50ms  keyed-md5 0 ":      {Interval: 50 * time.Millisecond, Multiplier: 3, Auth: Auth{Type: KeyedMD5, Key: "key"}},
		"3x50ms meticulous-sha1 255": {Interval: 50 * time.Millisecond, Multiplier: 3, Auth: Auth{Type: MeticulousSHA1, KeyID: 255, Key: "key"}},
	} {
		got, err := Parse(text)
		if err == nil {
			got, err = got.WithKey("key")
		}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "such as 3x300ms", "300ms": "such as 3x300ms", "3x300": "such as 3x300ms", "256x1s": "such as 3x300ms", "-1x1s": "such as 3x300ms",
		"3x300ms keyed-sha1": "key ID", "3x300ms keyed-sha1 256": "key ID", "3x300ms sha256 1": "keyed-sha1",
		"0x1s": "1 to 50 packets, not 0", "51x1s": "not 51",
		"3x49ms": "50ms to 1m0s, not 49ms", "3x61s": "not 1m1s", "3x300ms simple 1": "in the clear",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want an error with %q", text, got, err, want)
		}
	}
	c := Config{Auth: Auth{Type: KeyedMD5}}
	for key, want := range map[string]string{"": "set one", strings.Repeat("x", 17): "has 17 bytes, and keyed-md5 takes 16"} {
		if _, err := c.WithKey(key); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("key %q: %v, want an error with %q", key, err, want)
		}
	}
}
