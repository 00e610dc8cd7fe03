package main

import (
	"bytes"
	"encoding/csv"
	"strings"

	"github.com/tortie-net/tortie/hack/modules"
)

const modulesPath = "docs/modules.csv"

// moduleList returns the modules that the image's programs are linked from, as comma-separated values.
func moduleList(root string) ([]byte, error) {
	all, err := modules.Dependencies(root)
	if err != nil {
		return nil, err
	}
	cache, err := modules.NewCache()
	if err != nil {
		return nil, err
	}
	rows := [][]string{{"Module", "Version", "Licence", "In", "Why"}}
	for _, d := range all {
		licences, err := cache.Licences(d.Module)
		if err != nil {
			return nil, err
		}
		rows = append(rows, []string{d.Path, d.Version, licences.Expression, strings.Join(d.In, " "), d.Reason})
	}
	return commaSeparated(rows)
}

// commaSeparated writes rows as GitHub shows them in a table that can be searched.
func commaSeparated(rows [][]string) ([]byte, error) {
	var out bytes.Buffer
	err := csv.NewWriter(&out).WriteAll(rows)
	return out.Bytes(), err
}

// table is commaSeparated for a function's rows and error.
func table(rows [][]string, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return commaSeparated(rows)
}
