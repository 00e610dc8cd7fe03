// Package modules is what programs are linked from: the Go modules, why each of them is there, and under which licences. The table of
// docs/image.md, the image's lists (SPDX, SLSA) and its licence texts are all made from it.
package modules

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// Standard is the path that databases of vulnerabilities have for Go's own library.
const Standard = "stdlib"

// Module is one at a version. Sum is go.sum's, empty for the main module and Go's library.
type Module struct{ Path, Version, Sum string }

// Program is what the linker has written into one.
type Program struct {
	Main     Module
	Modules  []Module // with Go's library first
	Settings map[string]string
}

// Read returns what a program says of itself.
func Read(content []byte) (Program, error) {
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return Program{}, err
	}
	p := Program{
		Main:     Module{Path: info.Main.Path, Version: info.Main.Version, Sum: info.Main.Sum},
		Modules:  []Module{{Path: Standard, Version: strings.TrimPrefix(info.GoVersion, "go")}},
		Settings: map[string]string{},
	}
	for _, m := range info.Deps {
		p.Modules = append(p.Modules, linked(m))
	}
	for _, s := range info.Settings {
		p.Settings[s.Key] = s.Value
	}
	return p, nil
}

func linked(m *debug.Module) Module {
	if m.Replace != nil {
		m = m.Replace
	}
	return Module{Path: m.Path, Version: m.Version, Sum: m.Sum}
}

// list is one line for each package of a program that is in a module: the module's path and version, which are those that replace it.
const list = `{{with .Module}}{{if not .Main}}{{with .Replace}}{{.Path}} {{.Version}}{{else}}{{.Path}} {{.Version}}{{end}}{{end}}{{end}}`

// Of returns the modules of a package's program, by path, without linking it: those of the image's builds.
func Of(root, pkg string) ([]Module, error) {
	cmd := exec.Command("go", "list", "-deps", "-f", list, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the modules of %s: %w: %s", pkg, err, stderr.Bytes())
	}
	var all []Module
	for line := range strings.Lines(string(out)) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path != "" {
			all = append(all, Module{Path: path, Version: version})
		}
	}
	slices.SortFunc(all, func(a, b Module) int { return strings.Compare(a.Path, b.Path) })
	return slices.Compact(all), nil
}

// Cache is where modules and Go itself lie on this machine.
type Cache struct{ modules, goroot string }

// NewCache asks the go command.
func NewCache() (Cache, error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return Cache{}, fmt.Errorf("asking go where its modules are: %w", err)
	}
	dirs := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(dirs) != 2 {
		return Cache{}, fmt.Errorf("asking go where its modules are: it says %q", out)
	}
	return Cache{modules: dirs[0], goroot: dirs[1]}, nil
}

// dir is where a module lies.
func (c Cache) dir(m Module) (string, error) {
	if m.Path == Standard {
		return c.goroot, nil
	}
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return "", err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return "", err
	}
	return filepath.Join(c.modules, filepath.FromSlash(path)+"@"+version), nil
}
