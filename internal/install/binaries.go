package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// mainPlugin is the first plugin of the conflist.
const mainPlugin = "calico"

// required are the plugins without which the conflist cannot work; the image contains more.
var required = []string{mainPlugin, "calico-ipam"}

const pluginMode fs.FileMode = 0o755

// putPlugins installs the plugins in the host's directories, and returns the paths of those to prove. It holds one
// plugin at a time in memory: all together exceed the process' other needs.
func (i *Installer) putPlugins(l *ledger, conflist []byte) (prove []string, err error) {
	names, err := imagePlugins(i.cfg)
	if err != nil {
		return nil, err
	}
	dirs, prove, err := i.binDirs(needed(conflist, names))
	if err != nil {
		return nil, err
	}
	i.plugins = map[string]string{}
	for _, name := range names {
		content, err := i.imagePlugin(name)
		if err != nil {
			return nil, err
		}
		var files []file
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			prove = append(prove, path)
			if _, err := os.Stat(path); i.cfg.UpdateBinaries || errors.Is(err, fs.ErrNotExist) {
				files = append(files, file{path, content, pluginMode})
				if slices.Contains(required, name) {
					i.plugins[path] = digest(content)
				}
			}
		}
		if err := i.put(l, files...); err != nil {
			return nil, err
		}
	}
	return prove, nil
}

// binDirs returns the host's writable directories of plugins, and the paths of correct plugins in unwritable ones. Of
// several directories some may be unusable.
func (i *Installer) binDirs(need []string) (dirs, prove []string, err error) {
	var skipped []error
	for _, dir := range i.cfg.HostBinDirs {
		unwritable := hostfile.Writable(dir)
		if unwritable == nil {
			dirs = append(dirs, dir)
			continue
		}
		lacks, err := i.lacks(dir, need)
		if err != nil {
			return nil, nil, err
		}
		if lacks != "" {
			skipped = append(skipped, fmt.Errorf("writing %s: %w", filepath.Join(dir, lacks), unwritable))
			continue
		}
		for _, name := range need {
			prove = append(prove, filepath.Join(dir, name))
		}
	}
	if len(dirs)+len(prove) == 0 {
		return nil, nil, skipped[0]
	}
	for _, err := range skipped {
		i.log.Warn("cannot write a directory of plugins: a runtime that uses only this one finds other plugins, or none", "error", err)
	}
	return dirs, prove, nil
}

// lacks returns the name of a plugin that is missing or wrong in a directory, empty if there is none.
func (i *Installer) lacks(dir string, need []string) (string, error) {
	for _, name := range need {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			return name, nil
		}
		if !i.cfg.UpdateBinaries {
			continue
		}
		content, err := i.imagePlugin(name)
		if err != nil || !hostfile.Same(path, content, pluginMode) {
			return name, err
		}
	}
	return "", nil
}

func (i *Installer) imagePlugin(name string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(i.cfg.SourceDir, name))
	if err != nil {
		return nil, fmt.Errorf("reading plugin from the image: %w", err)
	}
	return content, nil
}

// needed lists the image's plugins that the network needs: the required ones, and those that the configuration names.
func needed(conf []byte, names []string) []string {
	type plugin struct {
		Type string
		IPAM struct{ Type string }
	}
	var list struct {
		plugin
		Plugins []plugin
	}
	types := slices.Clone(required)
	_ = json.Unmarshal(conf, &list) // conf was checked; a plugin with fields of other types is none of this image's
	for _, p := range append(list.Plugins, list.plugin) {
		types = append(types, p.Type, p.IPAM.Type)
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(types, name) })
}

// imagePlugins lists the image's plugins to install.
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
			return nil, fmt.Errorf("plugin %s is missing in %s (CNI_BIN_SOURCE_DIR must name the directory of the image's plugins)",
				name, cfg.SourceDir)
		}
	}
	return names, nil
}
