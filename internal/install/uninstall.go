package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

// Uninstall removes the files of installations, plugins and agent from the host, and restores the files that they
// replaced. It may be repeated, and continues where a run was killed.
//
// The conflist is removed first: a runtime without a network makes no pods, while without the network's plugin it fails
// at each. Former files are restored in the order of an installation. Files that were changed since stay, and are
// logged.
func Uninstall(ctx context.Context, cfg config.InstallHost, log *slog.Logger) error {
	return remove(ctx, cfg, log, func(r *removal) error {
		for _, path := range r.wiring() {
			if err := r.remove(path); err != nil {
				return err
			}
		}
		if err := r.restoreOrRemove(r.plugins()); err != nil {
			return err
		}
		if err := r.restoreOrRemove(backwards(r.wiring())); err != nil {
			return err
		}
		return r.state()
	})
}

// Rollback restores the network that an installation replaced: its plugins, its kubeconfig and its conflist, in this
// order and each in one step, so that the runtime has a network at any time. Then it removes files that the
// installation added. The agent's files stay: it may still run, and has addresses to release. It fails if there was no
// former network.
func Rollback(ctx context.Context, cfg config.InstallHost, log *slog.Logger) error {
	return remove(ctx, cfg, log, func(r *removal) error {
		if !slices.ContainsFunc(r.configurations(), r.replaced) {
			return fmt.Errorf("there is no network to go back to: %s names no configuration that an installation replaced (to remove "+
				"this network: install uninstall)", filepath.Join(cfg.HostNetDir, ledgerName))
		}
		paths := append(r.plugins(), backwards(r.wiring())...)
		added := backwards(slices.DeleteFunc(slices.Clone(paths), r.replaced))
		if err := r.restoreOrRemove(slices.DeleteFunc(paths, func(path string) bool { return slices.Contains(added, path) })); err != nil {
			return err
		}
		return r.restoreOrRemove(added)
	})
}

// remove calls files with a removal under the lock, then drops the ledger and temporary files.
func remove(ctx context.Context, cfg config.InstallHost, log *slog.Logger, files func(*removal) error) error {
	return locked(ctx, cfg, log, func(l *ledger) error {
		r := &removal{cfg: cfg, ledger: l, log: log, own: l.ownPlugin(cfg)}
		if err := files(r); err != nil {
			return err
		}
		if err := errors.Join(l.drop(), sweep(cfg)); err != nil {
			return err
		}
		log.Info("host files restored", "restored", r.restored, "removed", r.removed, "left", r.left)
		return nil
	})
}

func sweep(cfg config.InstallHost) error {
	dirs := slices.DeleteFunc(slices.Clone(cfg.HostBinDirs), func(dir string) bool { return hostfile.Writable(dir) != nil })
	for _, dir := range append(dirs, cfg.HostNetDir) {
		if err := hostfile.Sweep(dir); err != nil {
			return err
		}
	}
	return nil
}

// removal is one uninstallation or rollback.
type removal struct {
	cfg    config.InstallHost
	ledger *ledger
	log    *slog.Logger
	own    bool // the plugin calico is this project's, and so is a configuration that leads to it

	restored, removed, left []string
}

// ownPlugin reports whether the plugin calico on the host is this project's.
func (l *ledger) ownPlugin(cfg config.InstallHost) bool {
	for _, dir := range cfg.HostBinDirs {
		path := filepath.Join(dir, mainPlugin)
		if now, err := look(path); err == nil && now != nil && (isOwnProgram(path) || l.wrote(path, now.Digest)) {
			return true
		}
	}
	return false
}

// configurations returns the files by which a runtime finds the network.
func (r *removal) configurations() []string {
	paths := []string{r.cfg.Conf()}
	if r.cfg.OldConfName != r.cfg.ConfName {
		paths = append(paths, filepath.Join(r.cfg.HostNetDir, r.cfg.OldConfName))
	}
	return paths
}

// wiring returns the configurations, and then the files that they refer to, except plugins.
func (r *removal) wiring() []string {
	paths := append(r.configurations(), filepath.Join(r.cfg.HostNetDir, KubeconfigName))
	for _, name := range []string{etcdCA, etcdCert, etcdKey} {
		paths = append(paths, filepath.Join(r.cfg.HostNetDir, etcdDir, name))
	}
	return paths
}

// plugins returns the other paths in the ledger, and the paths of required plugins in writable directories, which may
// be this project's without a ledger.
func (r *removal) plugins() []string {
	wiring := r.wiring()
	paths := slices.Collect(maps.Keys(r.ledger.files))
	for _, dir := range r.cfg.HostBinDirs {
		if hostfile.Writable(dir) != nil {
			continue
		}
		for _, name := range required {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	slices.Sort(paths)
	return slices.DeleteFunc(slices.Compact(paths), func(path string) bool { return slices.Contains(wiring, path) })
}

func backwards(paths []string) []string {
	paths = slices.Clone(paths)
	slices.Reverse(paths)
	return paths
}

// replaced reports whether an installation replaced a file at path.
func (r *removal) replaced(path string) bool {
	e := r.ledger.files[path]
	return e != nil && e.Before != nil
}

func (r *removal) restoreOrRemove(paths []string) error {
	for _, path := range paths {
		do := r.remove
		if r.replaced(path) {
			do = r.restore
		}
		if err := do(path); err != nil {
			return err
		}
	}
	return nil
}

func (r *removal) remove(path string) error {
	now, err := look(path)
	if err != nil || now == nil || !r.mine(path, *now) {
		return err
	}
	if _, err := hostfile.Remove(path); err != nil {
		return err
	}
	r.removed = append(r.removed, path)
	return nil
}

// restore restores the former file at path, unless another program has written there since.
func (r *removal) restore(path string) error {
	now, err := look(path)
	if err != nil || now != nil && !r.mine(path, *now) {
		return err
	}
	if err := r.ledger.restore(path); err != nil {
		return err
	}
	r.restored = append(r.restored, path)
	return nil
}

// mine reports whether an installation put the file at path there. A foreign file is left, and reported.
func (r *removal) mine(path string, now before) bool {
	if r.replaced(path) && *r.ledger.files[path].Before == now {
		return false // it is restored already
	}
	if r.ledger.wrote(path, now.Digest) || isOwnProgram(path) || r.own && slices.Contains(r.wiring(), path) {
		return true
	}
	if !slices.Contains(r.left, path) {
		r.left = append(r.left, path)
		r.log.Info("left on the host: it is not what an installation wrote there", "path", path)
	}
	return false
}

// state removes the state of the agent and the plugins on the host. If there is still a plugin calico, the files that
// Calico uses too stay.
func (r *removal) state() error {
	switch n, err := journal.Dir(filepath.Join(r.cfg.StateDir, "tortie/journal")).Len(); {
	case err != nil:
		return fmt.Errorf("looking for addresses to release: %w", err)
	case n > 0:
		r.log.Info("addresses of containers that are gone were not released: a cluster's garbage collection finds them", "containers", n)
	}
	gone := []string{filepath.Join(r.cfg.StateDir, "tortie"), filepath.Join(r.cfg.RunDir, "tortie")}
	if !slices.ContainsFunc(r.cfg.HostBinDirs, hasMainPlugin) {
		ext := filepath.Ext(r.cfg.LogFile)
		logs, err := filepath.Glob(strings.TrimSuffix(r.cfg.LogFile, ext) + "*" + ext)
		if err != nil {
			return fmt.Errorf("looking for the plugins' log: %w", err)
		}
		gone = append(append(gone, logs...), filepath.Join(r.cfg.StateDir, "nodename"), filepath.Join(r.cfg.StateDir, "mtu"),
			filepath.Join(r.cfg.RunDir, "ipam.lock"))
	}
	for _, path := range gone {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("removing %s: %w", path, err)
		}
		r.removed = append(r.removed, path)
	}
	return errors.Join(removeIfEmpty(filepath.Join(r.cfg.HostNetDir, etcdDir)), removeIfEmpty(filepath.Dir(r.cfg.LogFile)))
}

func hasMainPlugin(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, mainPlugin))
	return err == nil
}

// removeIfEmpty removes an empty directory, unless it is a mount point.
func removeIfEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	if err == nil {
		err = os.Remove(dir)
	}
	if err != nil && !errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}
