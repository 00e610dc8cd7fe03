package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// Files in the state directory: since when WireGuard's devices have their keys, and when new keys were requested. A
// program that can write there controls the host.
const (
	keysFile   = "tortie/wireguard-keys"
	rotateFile = "tortie/wireguard-rotate"
)

// AskRotation requests that the node's agent change WireGuard's keys.
func AskRotation(stateDir string, now time.Time) error {
	return writeState(stateDir, rotateFile, now.UTC().Format(time.RFC3339Nano))
}

// rotationAsked returns when a change was last requested; zero: never, or it is done.
func (a *Agent) rotationAsked() time.Time {
	text, err := os.ReadFile(filepath.Join(a.Config.StateDir, rotateFile))
	if err != nil {
		return time.Time{}
	}
	asked, _ := time.Parse(time.RFC3339Nano, string(text))
	return asked
}

// keyAges has since when the devices over IPv4 and IPv6 have their keys.
type keyAges [2]struct {
	Public string    `json:"public"`
	Since  time.Time `json:"since"`
}

// readKeyAges returns zero values if the file cannot be read: the age of a key then counts from now.
func readKeyAges(stateDir string) (k keyAges) {
	if text, err := os.ReadFile(filepath.Join(stateDir, keysFile)); err != nil || json.Unmarshal(text, &k) != nil {
		return keyAges{}
	}
	return k
}

// ownKeys returns the keys that a family's devices may have from an earlier agent or Felix: those announced on the
// Node, and the one in the state directory. No pod can write there.
func (a *Agent) ownKeys(i int) (keys []wireguard.Key) {
	for _, text := range []string{
		a.node.Annotations[desired.KeyAnnotations[i]], a.node.Annotations[desired.NextKeyAnnotations[i]], a.tunnels.keys[i].Public,
	} {
		if k, err := wireguard.ParseKey(text); err == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// readKeys reads the state of WireGuard's devices, unless an earlier pass has, and whether their keys must be changed.
// State that cannot be read stays as it was.
func (a *Agent) readKeys(s *desired.Snapshot, links []netlinkx.Link) error {
	asked := a.rotationAsked()
	var errs []error
	for i := range a.tunnels.states {
		state, v6 := &a.tunnels.states[i], i == 1
		if state.Public == (wireguard.Key{}) {
			a.WireGuard.Believe(a.ownKeys(i)...)
		}
		second := slices.ContainsFunc(links, func(l netlinkx.Link) bool { return wireguard.IsSecond(l, v6) })
		first := slices.ContainsFunc(links, func(l netlinkx.Link) bool { return wireguard.Is(l, v6) })
		if !second {
			state.Second = nil
		}
		if second || first && state.Public == (wireguard.Key{}) {
			if read, err := a.WireGuard.States(v6); err == nil {
				*state = read
			} else {
				errs = append(errs, err)
			}
		}
		since := a.tunnels.keys[i].Since
		s.Self.KeySince[i], s.Self.RotateKeys[i] = since, desired.KeyDue(state.Public, since, asked, a.Config.RotateKeys, time.Now())
	}
	return errors.Join(errs...)
}

// rotate makes the second device of a family, and gives its key to the first one when due.
func (a *Agent) rotate(ctx context.Context, s *desired.Snapshot, i int) error {
	state, v6 := &a.tunnels.states[i], i == 1
	d := s.SecondWireGuard(v6)
	if d == nil {
		return nil
	}
	if s.BeginsRotation(v6) {
		if err := a.WireGuard.RemoveSecond(ctx, v6); err != nil {
			return err
		}
		a.Log.Info("WireGuard key change began", "device", wireguard.Name(v6), "key", state.Public)
	}
	second, err := a.WireGuard.Merge(ctx, *d)
	if err != nil {
		state.Second = nil
		return err
	}
	state.Second = &second
	leave, takes := s.TakesKey(v6)
	if untold := a.gone || a.offline != nil; !takes || untold || !state.Changes() {
		return nil
	}
	if err := a.WireGuard.TakeKey(ctx, v6, leave); err != nil {
		return err
	}
	a.Log.Info("WireGuard key changed", "device", wireguard.Name(v6), "before", state.Public, "key", second.Public)
	state.Public = second.Public
	return nil
}

// noteKeys stores for later agents since when the devices have their keys, and removes a request that is fulfilled or
// that no device can fulfil.
func (a *Agent) noteKeys(s *desired.Snapshot) error {
	t, asked := &a.tunnels, a.rotationAsked()
	before, pending := t.keys, false
	for i, state := range t.states {
		if public := state.Public; public != (wireguard.Key{}) && t.keys[i].Public != public.String() {
			t.keys[i].Public, t.keys[i].Since = public.String(), time.Now()
		}
		pending = pending || s.Announces(i == 1) && asked.After(t.keys[i].Since)
	}
	var errs []error
	if !asked.IsZero() && !pending {
		if err := os.Remove(filepath.Join(a.Config.StateDir, rotateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if t.keys != before {
		text, err := json.Marshal(t.keys)
		errs = append(errs, err, writeState(a.Config.StateDir, keysFile, string(text)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("note since when WireGuard has its keys: %w", err)
	}
	return nil
}
