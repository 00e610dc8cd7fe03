// Package modules lists the Go modules that programs are linked from, with reasons and licences. The table of
// docs/image.md, the image's SBOM (SPDX) and licence texts are generated from it.
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

// Standard is the path of Go's standard library in vulnerability databases.
const Standard = "stdlib"

// Module is a module at a version. Sum is from go.sum, empty for the main module and the standard library.
type Module struct{ Path, Version, Sum string }

// Program is the build information of a program.
type Program struct {
	Main    Module
	Modules []Module // with the standard library first
}

// Read returns the build information of a program.
func Read(content []byte) (Program, error) {
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return Program{}, err
	}
	p := Program{
		Main:    Module{Path: info.Main.Path, Version: info.Main.Version, Sum: info.Main.Sum},
		Modules: []Module{{Path: Standard, Version: strings.TrimPrefix(info.GoVersion, "go")}},
	}
	for _, m := range info.Deps {
		p.Modules = append(p.Modules, linked(m))
	}
	return p, nil
}

func linked(m *debug.Module) Module {
	if m.Replace != nil {
		m = m.Replace
	}
	return Module{Path: m.Path, Version: m.Version, Sum: m.Sum}
}

// list prints one line for each package of a program that is in a module: the path and version of the module, or of its
// replacement.
const list = `{{with .Module}}{{if not .Main}}{{with .Replace}}{{.Path}} {{.Version}}{{else}}{{.Path}} {{.Version}}{{end}}{{end}}{{end}}`

// Of returns the modules of a package's program, by path, without linking it, with the build settings of the image.
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

// Cache is the module cache and GOROOT of this machine.
type Cache struct{ modules, goroot string }

// NewCache reads both from `go env`.
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

// dir returns the directory of a module.
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
