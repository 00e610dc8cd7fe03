package main

import (
	"strings"

	"github.com/tortie-net/tortie/hack/modules"
)

// addDependencies adds the table of the modules that the image's programs are linked from.
func addDependencies(parts map[string]string, root string) error {
	all, err := modules.Dependencies(root)
	if err != nil {
		return err
	}
	cache, err := modules.NewCache()
	if err != nil {
		return err
	}
	rows := [][]string{{"Module", "Version", "Licence", "In", "Why"}}
	for _, d := range all {
		licences, err := cache.Licences(d.Module)
		if err != nil {
			return err
		}
		rows = append(rows, []string{code(d.Path), d.Version, licences.Expression, strings.Join(d.In, ", "), d.Reason})
	}
	parts["dependencies"] = table(rows)
	return nil
}
