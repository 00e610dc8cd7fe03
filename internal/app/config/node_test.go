package config

import (
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// With an age below an hour nodes would change keys all the time.
func TestRotateKeys(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 0, "720h": 720 * time.Hour, "1h": time.Hour, "59m": -1, "0s": -1,
		"-1h": -1, "often": -1} {
		got, err := LoadNode(func(name string) (string, bool) {
			v, ok := map[string]string{"NODENAME": "n1", "TORTIE_WIREGUARD_ROTATE": value}[name]
			return v, ok
		})
		if refused := want < 0; refused != errtest.Names(err, "TORTIE_WIREGUARD_ROTATE hour") ||
			!refused && (err != nil || got.RotateKeys != want) {
			t.Errorf("%q: %v, %v", value, got.RotateKeys, err)
		}
	}
}
