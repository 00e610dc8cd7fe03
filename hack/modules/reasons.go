package modules

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/yaml"
)

// Programs maps the image's files to their packages.
var Programs = map[string]string{
	"tortie":    "./cmd/tortie",
	"calico":    "./cmd/calico",
	"portmap":   "github.com/containernetworking/plugins/plugins/meta/portmap",
	"bandwidth": "github.com/containernetworking/plugins/plugins/meta/bandwidth",
	"loopback":  "github.com/containernetworking/plugins/plugins/main/loopback",
}

//go:embed reasons.yaml
var reasonText []byte

// Reasons returns the reason for each linked module, by path, from the hand-written reasons.yaml.
func Reasons() (map[string]string, error) {
	var reasons map[string]string
	if err := yaml.UnmarshalStrict(reasonText, &reasons); err != nil {
		return nil, fmt.Errorf("reasons.yaml: %w", err)
	}
	return reasons, nil
}

// Dependency is a module with the programs that link it, and the reason.
type Dependency struct {
	Module
	In     []string
	Reason string
}

// Dependencies returns the dependencies of all programs, by path. A module without a reason, and a reason without a
// module, are errors.
func Dependencies(root string) ([]Dependency, error) {
	in, versions := map[string][]string{}, map[string]Module{}
	for _, program := range slices.Sorted(maps.Keys(Programs)) {
		all, err := Of(root, Programs[program])
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			in[m.Path] = append(in[m.Path], program)
			versions[m.Path] = m
		}
	}
	reasons, err := Reasons()
	if err != nil {
		return nil, err
	}
	return explain(versions, in, reasons)
}

func explain(versions map[string]Module, in map[string][]string, reasons map[string]string) ([]Dependency, error) {
	var all []Dependency
	var problems []error
	for _, path := range slices.Sorted(maps.Keys(versions)) {
		if reasons[path] == "" {
			problems = append(problems, fmt.Errorf("%s is linked into %v and hack/modules/reasons.yaml does not say why", path, in[path]))
		}
		all = append(all, Dependency{Module: versions[path], In: in[path], Reason: reasons[path]})
	}
	for _, path := range slices.Sorted(maps.Keys(reasons)) {
		if _, linked := versions[path]; !linked {
			problems = append(problems, fmt.Errorf("hack/modules/reasons.yaml says why %s is linked, which it is not", path))
		}
	}
	return all, errors.Join(problems...)
}
