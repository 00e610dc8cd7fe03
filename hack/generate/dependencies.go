package main

import (
	"strings"

	"github.com/tortie-net/tortie/hack/modules"
)

// addDependencies adds the table of the modules that the image's programs are linked from; a module is in tortie unless the
// row names other programs.
func addDependencies(parts map[string]string, root string) error {
	all, err := modules.Dependencies(root)
	if err != nil {
		return err
	}
	cache, err := modules.NewCache()
	if err != nil {
		return err
	}
	rows := [][]string{{"Module", "Licence", "Why"}}
	for _, d := range all {
		licences, err := cache.Licences(d.Module)
		if err != nil {
			return err
		}
		why := d.Reason
		if in := strings.Join(d.In, ", "); in != "tortie" {
			why += " (in " + in + ")"
		}
		rows = append(rows, []string{code(d.Path) + " " + d.Version, licences.Expression, why})
	}
	parts["dependencies"] = table(rows)
	return nil
}
