package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tortie-net/tortie/internal/config"
)

// mainPlugin is the one that the conflist begins with.
const mainPlugin = "calico"

// required are the plugins without which the conflist cannot work; the image brings more.
var required = []string{mainPlugin, "calico-ipam"}

// putPlugins makes the host's directories of plugins what they should be, and returns the plugins whose work is to be proven. One plugin at a
// time is in memory: all of them are more than this process needs otherwise.
func (i *Installer) putPlugins(l *ledger) (prove []string, err error) {
	names, err := imagePlugins(i.cfg)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(i.cfg.SourceDir, name))
		if err != nil {
			return nil, fmt.Errorf("reading plugin from the image: %w", err)
		}
		var files []file
		for _, dir := range i.cfg.HostBinDirs {
			path := filepath.Join(dir, name)
			prove = append(prove, path)
			if _, err := os.Stat(path); i.cfg.UpdateBinaries || errors.Is(err, fs.ErrNotExist) {
				files = append(files, file{path, content, 0o755})
			}
		}
		if err := i.put(l, files...); err != nil {
			return nil, err
		}
	}
	return prove, nil
}

// imagePlugins lists what is to be installed of the image's plugins.
func imagePlugins(cfg config.Install) ([]string, error) {
	entries, err := os.ReadDir(cfg.SourceDir)
	if err != nil {
		return nil, fmt.Errorf("listing the image's plugins: %w (CNI_BIN_SOURCE_DIR must name their directory)", err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && (slices.Contains(required, e.Name()) || !slices.Contains(cfg.SkipBinaries, e.Name())) {
			names = append(names, e.Name())
		}
	}
	for _, name := range required {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("plugin %s is missing in %s (CNI_BIN_SOURCE_DIR must name the directory of the image's plugins)", name, cfg.SourceDir)
		}
	}
	return names, nil
}
