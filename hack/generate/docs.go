package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/tortie-net/tortie/hack/messages"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/install"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

// section finds a generated part of a page: <!-- generated: NAME --> ... <!-- end -->.
var section = regexp.MustCompile(`(?s)(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)`)

// docs returns the pages of docs/ with their generated parts made anew.
func docs(o options) (files, error) {
	parts, err := sections(o)
	if err != nil {
		return nil, err
	}
	pages, err := filepath.Glob(filepath.Join(o.root, "docs", "*.md"))
	if err != nil {
		return nil, fmt.Errorf("listing docs: %w", err)
	}
	out, used := files{}, map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, fmt.Errorf("reading page: %w", err)
		}
		if err := checkNames(page, string(text), parts, used); err != nil {
			return nil, err
		}
		out["docs/"+filepath.Base(page)] = section.ReplaceAllFunc(text, func(match []byte) []byte {
			groups := section.FindSubmatch(match)
			return []byte(string(groups[1]) + parts[string(groups[2])] + string(groups[3]))
		})
	}
	for name := range parts {
		if !used[name] {
			return nil, fmt.Errorf("no page in docs/ has the section <!-- generated: %s -->", name)
		}
	}
	return out, nil
}

// checkNames marks the sections of a page as used and rejects unknown ones, which would never be updated.
func checkNames(page, text string, parts map[string]string, used map[string]bool) error {
	for _, groups := range section.FindAllStringSubmatch(text, -1) {
		name := groups[2]
		if _, ok := parts[name]; !ok {
			return fmt.Errorf("%s has an unknown section %q", page, name)
		}
		used[name] = true
	}
	if opened, closed := strings.Count(text, "<!-- generated:"), len(section.FindAllString(text, -1)); opened != closed {
		return fmt.Errorf("%s has %d sections that begin and %d that are whole", page, opened, closed)
	}
	return nil
}

// sections returns the generated parts by name.
func sections(o options) (map[string]string, error) {
	values, err := os.ReadFile(filepath.Join(o.root, "charts/tortie/values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the chart's values: %w", err)
	}
	schema, err := os.ReadFile(filepath.Join(o.root, "charts/tortie/values.schema.json"))
	if err != nil {
		return nil, fmt.Errorf("reading the schema of the chart's values: %w", err)
	}
	valueTable, err := valueTable(values, schema)
	if err != nil {
		return nil, err
	}
	plugins, err := readPluginInputs(o.root)
	if err != nil {
		return nil, err
	}
	help, err := exec.Command(o.lab, "help").Output()
	if err != nil {
		return nil, fmt.Errorf("asking the lab for its commands: %w (run `make bin/lab`)", err)
	}
	parts := map[string]string{
		"install-env":          envTable(config.Describe(config.RawInstall{})),
		"install-placeholders": placeholderTable(),
		"controllers-env":      envTable(config.Describe(config.RawControllers{})),
		"node-env":             envTable(config.Describe(config.RawNode{})),
		"cni-options":          plugins.optionTable(ofCNI),
		"ipam-options":         plugins.optionTable(ofIPAM),
		"cni-env":              envTable(config.Describe(config.RawPlugin{})),
		"upgrade-env":          envTable(config.Describe(config.RawUpgrade{})),
		"cni-args":             plugins.argumentTable(),
		"cni-annotations":      plugins.annotationTable(),
		"chart-values":         valueTable,
		"fence":                fence.Table(),
		"reads":                fence.ReadTable(),
		"host":                 fence.HostTable(),
		"lab-commands":         "```\n" + string(help) + "```\n",
	}
	return parts, errors.Join(addMetrics(parts, o.root), addFields(parts), addDependencies(parts, o.root), addMessages(parts, o.root))
}

// addMetrics adds the tables of what the programs count.
func addMetrics(parts map[string]string, root string) (err error) {
	for program, folder := range map[string]string{"node": "agent", "install": "install", "controllers": "controllers"} {
		if parts[program+"-metrics"], err = metricTable(filepath.Join(root, "internal", folder)); err != nil {
			return err
		}
	}
	return nil
}

// addMessages adds the tables of what programs report.
func addMessages(parts map[string]string, root string) error {
	catalogue, err := messages.Load(root)
	for name, entries := range catalogue {
		parts["messages-"+name] = table(messages.Rows(entries))
	}
	return err
}

// addFields adds the lists of what node status and node diagnose answer.
func addFields(parts map[string]string) (err error) {
	for name, of := range map[string]reflect.Type{
		"node-status": reflect.TypeFor[nodestatus.Report](), "node-diagnose": reflect.TypeFor[nodestatus.Diagnosis](),
	} {
		if parts[name], err = fieldList(of); err != nil {
			return err
		}
	}
	return nil
}

func envTable(vars []config.Var) string {
	rows := [][]string{{"Variable", "Default", "Meaning"}}
	for _, v := range vars {
		rows = append(rows, []string{code(v.Name), code(v.Default), v.Help})
	}
	return table(rows)
}

func placeholderTable() string {
	rows := [][]string{{"Placeholder", "Stands for"}}
	for _, p := range install.Placeholders() {
		rows = append(rows, []string{code(p.Name), p.Help})
	}
	return table(rows)
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// table returns a Markdown table whose first row is the head.
func table(rows [][]string) string {
	var out strings.Builder
	for i, row := range rows {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = strings.ReplaceAll(cell, "|", `\|`)
		}
		fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintf(&out, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	return out.String()
}
