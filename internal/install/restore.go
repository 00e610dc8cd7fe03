package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/app/cniconf"
)

const (
	eventRestored       = "ConflistRestored"
	eventPluginRestored = "PluginRestored"
	// restores may follow one another, then one per restorePause: the installer does not fight another program that
	// removes the file again and again.
	restores     = 5
	restorePause = 5 * time.Minute
)

// restorer restores the conflist and its kubeconfig, or the required plugins, after another program has removed or
// changed them.
type restorer struct {
	reason  string // of its Events
	limit   *rate.Limiter
	times   int
	others  []string  // other networks' configurations from before the conflist
	foreign bool      // another network's plugin was there before, too, as in a read-only directory
	said    string    // the last reported reason not to restore
	failed  bool      // the last try failed: the next one is no further restoration
	next    time.Time // earliest next try after a failure
}

func newRestorer(reason string) *restorer {
	return &restorer{reason: reason, limit: rate.NewLimiter(rate.Every(restorePause), restores)}
}

// begin notes the files of other networks before the conflist is written.
func (i *Installer) begin(ctx context.Context, restorers ...*restorer) error {
	others := i.otherNetworks()
	return i.locked(ctx, func(l *ledger) error {
		for _, r := range restorers {
			r.others, r.foreign = others, l.others
		}
		return nil
	})
}

// loss describes what another program did to the conflist, the kubeconfig, or plugins ("removed" or "changed"); empty:
// nothing.
type loss struct {
	conflist, kubeconfig, plugin string
	plugins                      []string // paths of lost plugins
	left                         string   // why they should not be restored; empty: they should
}

// named returns the name and directory of a lost file, and what was done to it.
func (i *Installer) named(lost loss) (name, dir, done string) {
	switch {
	case lost.plugin != "":
		return filepath.Base(lost.plugins[0]), strings.TrimPrefix(filepath.Dir(lost.plugins[0]), "/host"), lost.plugin
	case lost.conflist != "":
		return i.cfg.ConfName, i.cfg.NetDir, lost.conflist
	}
	return KubeconfigName, i.cfg.NetDir, lost.kubeconfig
}

// restore checks and restores a restorer's files, and returns the time until the next check; 0: at the next change.
func (i *Installer) restore(ctx context.Context, r *restorer) (again time.Duration, err error) {
	if !i.noted { // without a ledger an uninstallation looks like an accident
		return 0, nil
	}
	lost := i.lost(ctx, r)
	name, dir, done := i.named(lost)
	if done == "" {
		r.said, r.failed = "", false
		return 0, nil
	}
	if pause := time.Until(r.next); r.failed && pause > 0 && lost.left == "" {
		return pause, nil
	}
	if lost.left == "" && !r.failed && !r.limit.Allow() {
		again = restorePause
		lost.left = fmt.Sprintf("it was put back %d times since this installer started: find the program that does this; it is put back in %v",
			r.times, again)
	}
	if lost.left != "" {
		text := fmt.Sprintf("%s in %s was %s, and is left so: %s", name, dir, done, lost.left)
		if r.said != text {
			r.said = text
			i.log.Warn("a file is not put back", "file", name, "dir", dir, "reason", text)
		}
		i.warn(r.reason, text)
		return again, nil
	}
	if err := i.putBack(ctx, lost, r.failed); err != nil {
		r.failed, r.next = true, time.Now().Add(refusalPause)
		i.warn(r.reason, fmt.Sprintf("%s in %s was %s by another program, and is not back yet: %v", name, dir, done, err))
		return refusalPause, err
	}
	r.said, r.failed = "", false
	r.times++
	i.log.Warn("a file is put back", "file", name, "dir", dir, "was", done, "times", r.times)
	i.past(r.reason,
		fmt.Sprintf("%s in %s was %s by another program, and is put back (%d times since this installer started)", name, dir, done, r.times))
	return 0, nil
}

// putBack writes lost files, in the order of an installation: with a conflist and no working kubeconfig every ADD would
// fail. After a failed try the kubeconfig may be unproven.
func (i *Installer) putBack(ctx context.Context, lost loss, unproven bool) error {
	if lost.plugin != "" {
		return i.putPluginsBack(ctx)
	}
	if i.tokens != nil && (unproven || lost.kubeconfig != "") {
		if _, err := i.renew(ctx); err != nil {
			return fmt.Errorf("putting the kubeconfig back: %w", err)
		}
	}
	if lost.conflist == "" {
		return nil
	}
	if err := i.activate(ctx); err != nil {
		return fmt.Errorf("putting the conflist back: %w", err)
	}
	return nil
}

// lost compares a restorer's files with those that were written.
func (i *Installer) lost(ctx context.Context, r *restorer) (lost loss) {
	others := false
	if i.locked(ctx, func(l *ledger) (err error) {
		lost, others, err = i.losses(l, r)
		return err
	}) != nil { // the host was rolled back or uninstalled, or the lock is held: the next change checks again
		return loss{}
	}
	came := slices.DeleteFunc(i.otherNetworks(), func(name string) bool { return slices.Contains(r.others, name) })
	switch {
	case others && !i.broken(ctx, lost.plugins):
		lost.left = fmt.Sprintf("the plugin %s on this host is another network's now, which is taken for an operator's choice; to go back to "+
			"this network, start this pod anew", mainPlugin)
	case len(came) > 0:
		lost.left = fmt.Sprintf("%s has come, which is taken for an operator's choice; to go back to this network, remove it",
			strings.Join(came, ", "))
	}
	return lost
}

// losses returns what was done to a restorer's files, and whether the plugin calico has become another network's since
// the conflist was written. An installation of another version is no change by others.
func (i *Installer) losses(l *ledger, r *restorer) (lost loss, others bool, err error) {
	if r.reason == eventPluginRestored {
		lost.plugins, lost.plugin = i.lostPlugins(l)
	} else {
		lost.conflist = l.done(i.cfg.Conf(), func(now []byte) bool { return extends(now, i.conflist) })
		if i.tokens != nil {
			lost.kubeconfig = l.done(i.kubeconfig(), func([]byte) bool { return false })
		}
	}
	// Checked again, after the files: the plugin may have changed since the ledger was opened.
	err = l.see(i.cfg.HostBinDirs, !l.adopted)
	return lost, l.others && !r.foreign, err
}

// lostPlugins returns the paths of plugins that this installer wrote last and that others have removed or changed, and
// what was done to the first. Plugins of another installer, as in an upgrade, are left to that one.
func (i *Installer) lostPlugins(l *ledger) (paths []string, done string) {
	for _, path := range slices.Sorted(maps.Keys(i.plugins)) {
		want := i.plugins[path]
		if e := l.files[path]; e == nil || len(e.Ours) == 0 || e.Ours[len(e.Ours)-1] != want {
			continue
		}
		was := "changed"
		switch now, err := look(path); {
		case err == nil && now == nil:
			was = "removed"
		case err == nil && now.Mode == pluginMode && l.wrote(path, now.Digest):
			continue
		}
		if paths = append(paths, path); done == "" {
			done = was
		}
	}
	return paths, done
}

// putPluginsBack writes the lost plugins.
func (i *Installer) putPluginsBack(ctx context.Context) error {
	return i.locked(ctx, func(l *ledger) error {
		paths, _ := i.lostPlugins(l)
		for _, path := range paths {
			content, err := i.imagePlugin(filepath.Base(path))
			if err != nil {
				return err
			}
			if err := i.put(l, file{path, content, pluginMode}); err != nil {
				return fmt.Errorf("putting a plugin back: %w", err)
			}
		}
		return nil
	})
}

// broken reports whether a changed main plugin does not run, and so is not another network's.
func (i *Installer) broken(ctx context.Context, plugins []string) bool {
	return slices.ContainsFunc(plugins, func(path string) bool { return filepath.Base(path) == mainPlugin && proveBinary(ctx, path) != nil })
}

// done returns "removed" or "changed" if another program did that to a file, empty if not, or if willDo accepts the
// present content.
func (l *ledger) done(path string, willDo func(now []byte) bool) string {
	if l.isOurs(path) {
		return ""
	}
	now, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "removed"
	case err != nil || !willDo(now):
		return "changed"
	}
	return ""
}

// otherNetworks returns the names of the other configurations in the runtime's directory, without multus', which
// derives its own from the network's.
func (i *Installer) otherNetworks() (names []string) {
	files, err := cniconf.Read(i.cfg.HostNetDir)
	if err != nil {
		return nil
	}
	for _, f := range files {
		if f.Name != i.cfg.ConfName && !isMeta(f) {
			names = append(names, f.Name)
		}
	}
	return names
}

// extends reports whether a conflist has all that another has, and perhaps further plugins: service meshes, for
// example, chain theirs behind a network's.
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
