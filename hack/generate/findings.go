package main

import "github.com/tortie-net/tortie/internal/ipam/audit"

// findingsPath is the list of the findings of kube-controllers ipam check.
const findingsPath = "docs/findings.csv"

func findings() ([]byte, error) {
	rows := [][]string{{"Grade", "Finding", "Meaning"}}
	for _, k := range audit.Kinds() {
		rows = append(rows, []string{k.Grade().String(), string(k), k.Explain()})
	}
	return commaSeparated(rows)
}
