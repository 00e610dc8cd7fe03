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

// plugins returns what should be in the host's directories of plugins: those to write, and all whose work is to be proven.
func plugins(cfg config.Install) (write []file, prove []string, err error) {
	names, err := imagePlugins(cfg)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(cfg.SourceDir, name))
		if err != nil {
			return nil, nil, fmt.Errorf("reading plugin from the image: %w", err)
		}
		for _, dir := range cfg.HostBinDirs {
			path := filepath.Join(dir, name)
			prove = append(prove, path)
			if _, err := os.Stat(path); !cfg.UpdateBinaries && !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			write = append(write, file{path, content, 0o755})
		}
	}
	return write, prove, nil
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
