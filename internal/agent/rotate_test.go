package agent

import (
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The next agent knows since when a device has its key. A request for a new key stands until the devices of both
// families have one.
func TestKeysAreNoted(t *testing.T) {
	dir := t.TempDir()
	newAgent := func() *Agent {
		a := &Agent{tunnels: tunnels{keys: readKeyAges(dir)}}
		a.Config.StateDir = dir
		return a
	}
	s := &desired.Snapshot{Self: desired.Self{Addr: prefix("10.0.0.5/24"), Addr6: prefix("fd00::5/64")}}
	s.Felix.WireGuard.On = [2]bool{true, true}
	note := func(a *Agent, key4, key6 byte) (asked bool) {
		t.Helper()
		a.tunnels.states = [2]wireguard.State{{Public: wireguard.Key{key4}}, {Public: wireguard.Key{key6}}}
		errtest.Must(t, a.noteKeys(s))
		return !a.rotationAsked().IsZero()
	}
	if note(newAgent(), 1, 2) {
		t.Error("asked for what was not asked for")
	}
	before := newAgent().tunnels.keys
	errtest.Must(t, AskRotation(dir, time.Now()))
	if a := newAgent(); !note(a, 1, 2) || a.tunnels.keys != before || before[0].Since.IsZero() ||
		before[0].Public != (wireguard.Key{1}).String() {
		t.Errorf("keys %+v, before %+v", a.tunnels.keys, before)
	}
	if !note(newAgent(), 10, 2) {
		t.Error("forgotten with one of two keys")
	}
	if a := newAgent(); note(a, 10, 20) || !a.tunnels.keys[1].Since.After(before[1].Since) {
		t.Errorf("asked for still, keys %+v", a.tunnels.keys)
	}
	errtest.Must(t, AskRotation(dir, time.Now().Add(time.Hour)))
	if s.Felix.WireGuard.On = [2]bool{}; note(newAgent(), 10, 20) {
		t.Error("asked for while WireGuard is off")
	}
}
