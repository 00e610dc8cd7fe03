package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/app/cniconf"
)

const (
	eventRestored = "ConflistRestored"
	// restores may follow one another; later there is one for each restorePause: another program that removes the file again and again is
	// not fought.
	restores     = 5
	restorePause = 5 * time.Minute
)

// restorer puts the conflist back if another program removes or changes it.
type restorer struct {
	limit  *rate.Limiter
	times  int
	others []string // configurations of other networks that were there as the conflist was written
	said   string   // why the conflist is left as it is
}

func newRestorer() *restorer {
	return &restorer{limit: rate.NewLimiter(rate.Every(restorePause), restores)}
}

// restore looks at the conflist after something has changed in its directory, and returns how long to wait before it looks again; 0: until the
// next change.
func (i *Installer) restore(ctx context.Context, r *restorer) (again time.Duration, err error) {
	if !i.noted { // without a ledger an uninstallation could not be told from an accident
		return 0, nil
	}
	done, left := i.lost(ctx, r)
	if done == "" {
		r.said = ""
		return 0, nil
	}
	if left == "" && !r.limit.Allow() {
		again = restorePause
		left = fmt.Sprintf("it was put back %d times since this installer started: find the program that does this; it is put back in %v", r.times, again)
	}
	if left != "" {
		text := fmt.Sprintf("%s in %s was %s, and is left so: %s", i.cfg.ConfName, i.cfg.NetDir, done, left)
		if r.said != text {
			r.said = text
			i.log.Warn("conflist is not put back", "path", i.cfg.Conf(), "reason", text)
		}
		i.warn(eventRestored, text)
		return again, nil
	}
	if err := i.activate(ctx); err != nil {
		return refusalPause, fmt.Errorf("putting the conflist back: %w", err)
	}
	r.said = ""
	r.times++
	i.log.Warn("conflist is put back", "path", i.cfg.Conf(), "was", done, "times", r.times)
	i.warn(eventRestored, fmt.Sprintf("%s in %s was %s by another program, and is put back (%d times since this installer started)", i.cfg.ConfName, i.cfg.NetDir, done, r.times))
	return 0, nil
}

// lost says what was done to the conflist, empty if it is as it should be, and why it should be left so, if it should.
func (i *Installer) lost(ctx context.Context, r *restorer) (done, left string) {
	if i.locked(ctx, func(l *ledger) error { // an installation of another version is no change by others
		if l.isOurs(i.cfg.Conf()) {
			done = ""
			return nil
		}
		now, err := os.ReadFile(i.cfg.Conf())
		switch {
		case errors.Is(err, fs.ErrNotExist):
			done = "removed"
		case err != nil || !extends(now, i.conflist):
			done = "changed"
		}
		return nil
	}) != nil { // the host was rolled back or uninstalled, or the lock is held: the next change asks again
		return "", ""
	}
	if done == "" {
		return "", ""
	}
	if came := slices.DeleteFunc(i.otherNetworks(), func(name string) bool { return slices.Contains(r.others, name) }); len(came) > 0 {
		left = fmt.Sprintf("%s has come, which is taken for an operator's choice; to go back to this network, remove it", strings.Join(came, ", "))
	}
	return done, left
}

// otherNetworks are the other configurations in the runtime's directory.
func (i *Installer) otherNetworks() (names []string) {
	files, err := cniconf.Read(i.cfg.HostNetDir)
	if err != nil {
		return nil
	}
	for _, f := range files {
		if f.Name != i.cfg.ConfName {
			names = append(names, f.Name)
		}
	}
	return names
}

// extends reports that a conflist has all that another has, and further plugins perhaps: meshes and others chain theirs behind a network's.
func extends(have, want []byte) bool {
	var h, w map[string]any
	if json.Unmarshal(have, &h) != nil || json.Unmarshal(want, &w) != nil {
		return false
	}
	rest, ok := h["plugins"].([]any)
	plugins, _ := w["plugins"].([]any)
	if !ok && plugins != nil {
		return false
	}
	for _, p := range plugins {
		at := slices.IndexFunc(rest, func(o any) bool { return reflect.DeepEqual(o, p) })
		if at < 0 {
			return false
		}
		rest = rest[at+1:]
	}
	delete(h, "plugins")
	delete(w, "plugins")
	return reflect.DeepEqual(h, w)
}
