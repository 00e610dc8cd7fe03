// Command generate writes every file of the repository that is made from another one, or checks that it is up to date.
//
//	generate -root .. -helm /path/to/helm [-check]
//
// The files: CustomResourceDefinitions from internal/api, the chart's copy of the conflist, manifests/ from the chart,
// the lists of docs/ from the code that reads the settings, and the plots of docs/benchmarks.md from the files of
// figures.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/hack/instructions"
	"github.com/tortie-net/tortie/hack/plots"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

// countedPath has the requirements on the instructions that make perf counts.
const countedPath = "docs/benchmarks-instructions.csv"

// files is generated content by path below the repository's root.
type files map[string][]byte

// options are the command's flags.
type options struct {
	root, helm string
	check      bool
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "root of the repository")
	flag.StringVar(&o.helm, "helm", "helm", "helm program")
	flag.BoolVar(&o.check, "check", false, "write nothing; fail if a file is not up to date")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "generate: %v\n", err)
		os.Exit(1)
	}
}

// run works in two steps, because the manifest is rendered from a chart that itself has generated files.
func run(o options) error {
	first, err := crds(o.root)
	if err != nil {
		return err
	}
	conflist, err := os.ReadFile(filepath.Join(o.root, "internal/install/conflist.json"))
	if err != nil {
		return fmt.Errorf("reading the built-in conflist: %w", err)
	}
	first["charts/tortie/files/conflist.json"] = conflist
	if err := settle(o, first); err != nil {
		return err
	}
	second, err := docs(o)
	if err != nil {
		return err
	}
	for path, content := range map[string]func() ([]byte, error){
		modulesPath:      func() ([]byte, error) { return moduleList(o.root) },
		"docs/fence.csv": func() ([]byte, error) { return commaSeparated(fence.Rows()) },
		"docs/host.csv":  func() ([]byte, error) { return commaSeparated(fence.HostRows()) },
		"docs/reads.csv": func() ([]byte, error) { return commaSeparated(fence.ReadRows()) },
		countedPath:      func() ([]byte, error) { return table(instructions.Required(o.root)) },
		findingsPath:     findings,
		eventHelpPath:    func() ([]byte, error) { return eventHelp(o.root) },
		metricsPath:      func() ([]byte, error) { return metrics(o.root) },
		fieldsPath:       fields,
		settingsPath:     func() ([]byte, error) { return commaSeparated(settings()) },
		inputsPath:       func() ([]byte, error) { return commaSeparated(inputs()) },
		policyFieldsPath: func() ([]byte, error) { return table(policyFields()) },
		manifestPath:     func() ([]byte, error) { return manifest(o) },
		uninstallPath:    func() ([]byte, error) { return uninstall(o) },
	} {
		if second[path], err = content(); err != nil {
			return err
		}
	}
	overlays, err := kustomize(o)
	if err != nil {
		return err
	}
	maps.Copy(second, overlays)
	pictures, err := plots.Files(o.root)
	if err != nil {
		return err
	}
	maps.Copy(second, pictures)
	return settle(o, second)
}

// settle writes outdated files, or reports them.
func settle(o options, want files) error {
	stale, err := outdated(o.root, want)
	if err != nil {
		return err
	}
	orphans, err := orphaned(o.root, want)
	if err != nil {
		return err
	}
	if o.check {
		if all := append(stale, orphans...); len(all) > 0 {
			return fmt.Errorf("not up to date: %s (run `make generate` and commit the result)", strings.Join(all, ", "))
		}
		return nil
	}
	for _, name := range stale {
		path := filepath.Join(o.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		if err := os.WriteFile(path, want[name], 0o644); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		fmt.Println("wrote", name)
	}
	for _, name := range orphans {
		if err := os.Remove(filepath.Join(o.root, name)); err != nil {
			return fmt.Errorf("removing what nothing generates any more: %w", err)
		}
		fmt.Println("removed", name)
	}
	return nil
}

func outdated(root string, want files) ([]string, error) {
	var stale []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		have, err := os.ReadFile(filepath.Join(root, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		if err != nil || !bytes.Equal(have, want[name]) {
			stale = append(stale, name)
		}
	}
	return stale, nil
}

// orphaned returns definitions of kinds that no longer exist. Only in their directories every file is generated.
func orphaned(root string, want files) ([]string, error) {
	var orphans []string
	for _, dir := range definitionDirs {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(name string) bool { return path.Dir(name) == dir }) {
			continue
		}
		present, err := filepath.Glob(filepath.Join(root, dir, "*"))
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", dir, err)
		}
		for _, file := range present {
			name := path.Join(dir, filepath.Base(file))
			if _, ok := want[name]; !ok {
				orphans = append(orphans, name)
			}
		}
	}
	slices.Sort(orphans)
	return orphans, nil
}
