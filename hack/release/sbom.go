package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/tortie-net/tortie/hack/modules"
)

// program is a program of the image with cyclonedx-gomod's list of its modules.
type program struct {
	arch, name string
	sum        string // SHA-256
	list       cdx.BOM
}

// components writes the list of the modules in all programs of the image.
func (m maker) components() error {
	var all []program
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range slices.Sorted(maps.Keys(modules.Programs)) {
			p, err := m.read(arch, name)
			if err != nil {
				return fmt.Errorf("listing the modules of %s for %s: %w", name, arch, err)
			}
			all = append(all, p)
		}
	}
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(merge(all, m.version, m.created)); err != nil {
		return fmt.Errorf("writing the list of modules: %w", err)
	}
	return os.WriteFile(filepath.Join(m.out, "tortie-"+m.version+".cdx.json"), out.Bytes(), 0o644)
}

func (m maker) read(arch, name string) (program, error) {
	path := filepath.Join(m.sources, "dist", arch, name)
	command := []string{m.cyclonedx, "bin", "-json", "-std", "-noserial", "-notimestamp", "-short-purls"}
	if strings.HasPrefix(modules.Programs[name], "./") { // of these sources: no module version
		command = append(command, "-version", m.version)
	}
	text, err := output(m.sources, append(command, path)...)
	if err != nil {
		return program{}, err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return program{}, err
	}
	p := program{arch: arch, name: name, sum: fmt.Sprintf("%x", sha256.Sum256(content))}
	err = cdx.NewBOMDecoder(strings.NewReader(text), cdx.BOMFileFormatJSON).Decode(&p.list)
	return p, err
}

// merge returns one list: the image, its programs, and each module once with the programs that have it as a dependency.
func merge(all []program, version string, created time.Time) *cdx.BOM {
	image := cdx.Component{BOMRef: "image", Type: cdx.ComponentTypeContainer, Name: repository, Version: version}
	var programs, found []cdx.Component
	contains := cdx.Dependency{Ref: image.BOMRef, Dependencies: &[]string{}}
	dependencies := []cdx.Dependency{}
	for _, p := range all {
		c := *p.list.Metadata.Component
		found = append(found, modulesOf(p)...)
		refs := []string{}
		for _, m := range modulesOf(p) {
			refs = append(refs, m.BOMRef)
		}
		c.BOMRef, c.Name = "linux/"+p.arch+"/"+p.name, p.name
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.sum}}
		programs = append(programs, c)
		*contains.Dependencies = append(*contains.Dependencies, c.BOMRef)
		dependencies = append(dependencies, cdx.Dependency{Ref: c.BOMRef, Dependencies: &refs})
	}
	byRef := func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) }
	slices.SortFunc(found, byRef)
	found = slices.CompactFunc(found, func(a, b cdx.Component) bool { return a.BOMRef == b.BOMRef })
	components := append(programs, found...)
	dependencies = append(dependencies, contains)
	list := cdx.NewBOM()
	list.Metadata = &cdx.Metadata{
		Timestamp: created.Format(time.RFC3339), Component: &image,
		Tools: &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "cyclonedx-gomod"}}},
	}
	list.Components, list.Dependencies = &components, &dependencies
	return list
}

// modulesOf returns the modules of a program, the one with its main package included.
func modulesOf(p program) []cdx.Component {
	main := *p.list.Metadata.Component
	main.Type = cdx.ComponentTypeLibrary
	return append([]cdx.Component{main}, *p.list.Components...)
}
