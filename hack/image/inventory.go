package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/hack/modules"
)

// inventory lists the components of an image, from the build information of its programs. The SBOM (SPDX) and the
// licence texts are generated from it.
type inventory struct {
	programs map[string]modules.Program          // by path in the image
	modules  map[modules.Module]modules.Licences // of all programs, and of the certificates
	roots    modules.Module                      // source of the certificates
}

// rootsModule is the module with Mozilla's certificates.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

func takeInventory(programs map[string][]byte, o options) (*inventory, error) {
	all := &inventory{programs: map[string]modules.Program{}, modules: map[modules.Module]modules.Licences{}}
	cache, err := modules.NewCache()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		p, err := modules.Read(programs[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		own := p.Main.Sum == "" // built from this repository, not from a module
		if own {
			p.Main.Version = o.version
			if all.modules[p.Main], err = ownLicence(o.root); err != nil {
				return nil, err
			}
		}
		p.Modules = append([]modules.Module{p.Main}, p.Modules...)
		all.programs[name] = p
		if err := all.add(cache, p.Modules); err != nil {
			return nil, err
		}
	}
	if all.roots, err = ownDependency(rootsModule); err != nil {
		return nil, err
	}
	return all, all.add(cache, []modules.Module{all.roots})
}

func (i *inventory) add(cache modules.Cache, all []modules.Module) error {
	for _, m := range all {
		if _, known := i.modules[m]; known {
			continue
		}
		licences, err := cache.Licences(m)
		if err != nil {
			return err
		}
		i.modules[m] = licences
	}
	return nil
}

func ownLicence(root string) (modules.Licences, error) {
	text, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	return modules.Licences{Texts: map[string][]byte{"LICENSE": text}, Expression: license}, err
}

// ownDependency returns the module of a package of this program.
func ownDependency(name string) (modules.Module, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return modules.Module{}, errors.New("this program does not know its modules")
	}
	i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == name })
	if i < 0 {
		return modules.Module{}, fmt.Errorf("this program is built without %s", name)
	}
	return modules.Module{Path: name, Version: info.Deps[i].Version, Sum: info.Deps[i].Sum}, nil
}

// sorted returns all modules, by path and version.
func (i *inventory) sorted() []modules.Module {
	return slices.SortedFunc(maps.Keys(i.modules), func(a, b modules.Module) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Version, b.Version))
	})
}

// licenceFiles returns the texts of all modules. Equal texts, such as many of Apache's, are one file with hard links.
func (i *inventory) licenceFiles() map[string]file {
	texts := map[string][]byte{}
	for m, licences := range i.modules {
		for name, text := range licences.Texts {
			texts[path.Join(licencePath(m), name)] = text
		}
	}
	files, first := map[string]file{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(texts)) { // a link comes after its target
		text := string(texts[name])
		if target, there := first[text]; there {
			files[name] = file{target: target, hard: true}
			continue
		}
		first[text] = name
		files[name] = file{content: texts[name], mode: 0o644}
	}
	return files
}

// licencePath has no version: programs of one build have one version of a module.
func licencePath(m modules.Module) string { return path.Join(licences, m.Path) }
