// Package cniconf reads the network configurations of a container runtime. It changes none.
package cniconf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
)

// Dir is the directory that runtimes read by default.
const Dir = "/etc/cni/net.d"

// File is a network configuration.
type File struct {
	Name  string
	Types []string // of its plugins, in their order
	Err   error    // why Types is not known
	// Unread names the keys of the plugin calico that have no effect; see Unread.
	Unread string
}

// Is reports whether runtimes read a file of that name as a network configuration. libcni ignores others silently.
func Is(name string) bool {
	return slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(name))
}

// Read returns the network configurations in a directory in the order of their names: a runtime uses the first.
func Read(dir string) ([]File, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	var files []File
	for _, e := range entries {
		if e.IsDir() || !Is(e.Name()) {
			continue
		}
		f := File{Name: e.Name()}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			f.Types, err = types(text)
			f.Unread = Unread(text)
		}
		f.Err = err
		files = append(files, f)
	}
	return files, nil
}

// types lists the plugins of a configuration, which is a list or a single plugin.
func types(text []byte) ([]string, error) {
	var conf struct {
		Type    string
		Plugins []struct{ Type string }
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return nil, err
	}
	var types []string
	if conf.Type != "" {
		types = append(types, conf.Type)
	}
	for _, p := range conf.Plugins {
		types = append(types, p.Type)
	}
	return types, nil
}
