package install

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/tortie-net/tortie/internal/hostfile"
)

// required are the plugins without which the conflist cannot work; the image brings more.
var required = []string{"calico", "calico-ipam"}

// copyBinaries makes every file of source executable in each of the directories. The result names what was written.
func copyBinaries(source string, dirs []string) (written []string, err error) {
	names, err := binaries(source)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return written, fmt.Errorf("reading plugin from the image: %w", err)
		}
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			changed, err := hostfile.Replace(path, content, 0o755)
			if err != nil {
				return written, err
			}
			if changed {
				written = append(written, path)
			}
		}
	}
	return written, nil
}

func binaries(source string) ([]string, error) {
	entries, err := os.ReadDir(source)
	if err != nil {
		return nil, fmt.Errorf("listing the image's plugins: %w (CNI_BIN_SOURCE_DIR must name their directory)", err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	for _, name := range required {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("plugin %s is missing in %s (CNI_BIN_SOURCE_DIR must name the directory of the image's plugins)", name, source)
		}
	}
	return names, nil
}
