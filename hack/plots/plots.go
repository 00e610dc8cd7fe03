// Package plots makes the pictures of docs/benchmarks.md from files of figures.
package plots

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Files that are read, below the root of the repository.
const (
	timesFile  = "docs/benchmarks.csv"
	ratiosFile = "internal/tests/perf/testdata/ratios.csv"
)

// Files returns the pictures by their paths below the root.
func Files(root string) (map[string][]byte, error) {
	all, err := read(root)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, draw := range map[string]func(figures) (picture, error){
		"add": adds, "burst": bursts, "paths": paths, "policy": policies, "memory": memory,
	} {
		p, err := draw(all)
		if err == nil {
			out["docs/benchmarks-"+name+".svg"], err = p.svg()
		}
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", name, err)
		}
	}
	return out, nil
}

// figure is a line of a file: a measurement of a subject, with so many pods, policies or nodes.
type figure struct {
	part, subject, what string
	size, median        float64
}

type figures []figure

// read reads both files. The counted ratios become figures of the part "paths".
func read(root string) (figures, error) {
	times, err := rows(root, timesFile)
	if err != nil {
		return nil, err
	}
	counted, err := rows(root, ratiosFile)
	if err != nil {
		return nil, err
	}
	var all figures
	for _, r := range counted {
		times = append(times, map[string]string{"Part": "paths", "Subject": r["what"], "Figure": r["unit"], "Median": r["stable"]})
	}
	for _, r := range times {
		f := figure{part: r["Part"], subject: r["Subject"], what: r["Figure"]}
		if f.median, err = strconv.ParseFloat(r["Median"], 64); err == nil && r["Size"] != "" {
			f.size, err = strconv.ParseFloat(r["Size"], 64)
		}
		if err != nil {
			return nil, fmt.Errorf("figure %q of %q: %w", f.what, f.subject, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// rows returns the lines of a file, by the names of its columns.
func rows(root, name string) (all []map[string]string, err error) {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return nil, err
	}
	lines, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil || len(lines) == 0 {
		return nil, fmt.Errorf("%s: no lines (%w)", name, err)
	}
	for _, line := range lines[1:] {
		r := map[string]string{}
		for i, cell := range line {
			r[lines[0][i]] = cell
		}
		all = append(all, r)
	}
	return all, nil
}

// of returns a subject's figures in the order of their sizes. There must be one: otherwise a missing line would not be
// noticed.
func (f figures) of(part, subject, what string) (figures, error) {
	var found figures
	for _, one := range f {
		if one.part == part && one.subject == subject && one.what == what {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no figure %q of %q in part %q: %s or %s has lost it", what, subject, part, timesFile, ratiosFile)
	}
	slices.SortFunc(found, func(a, b figure) int { return cmp.Compare(a.size, b.size) })
	return found, nil
}

// group is the content of bars or a line: the name in the picture, and the place of the figures. An empty part is the
// picture's.
type group struct{ label, subject, what, part string }

func adds(all figures) (picture, error) {
	p := picture{title: "ADD of one pod after another: milliseconds, less is better"}
	err := p.bars(all, "add", []group{{label: "time", what: "ADD"}, {label: "processor", what: "ADD, CPU"}}, []group{
		{label: "an empty program", subject: "floor: an empty Go program"}, {label: "one GET", subject: "floor: one authenticated GET"},
		{label: "links, address, routes", subject: "floor: veth, address, routes"}, {label: "ptp, host-local", subject: "ptp + host-local"},
		{label: "Tortie", subject: "calico"}, {label: "Tortie, agent down", subject: "calico without facts"},
	})
	return p, err
}

func bursts(all figures) (picture, error) {
	p := picture{title: "Pods at once on one node: seconds until the last is connected", x: "pods", y: "s", scale: 1e-3}
	const what = "all ADDs"
	return p, p.lines(all, "burst", []group{
		{"Tortie", "calico", what, ""}, {"Tortie, agent down", "calico without facts", what, ""},
		{"ptp, host-local", "ptp + host-local", what, ""},
		{"links, address, routes", "floor: veth, address, routes", what, ""},
	})
}

func paths(all figures) (picture, error) {
	p := picture{title: "Instructions between pods by those between their nodes, less is better"}
	err := p.bars(all, "paths", []group{{label: "stream", what: "KiB of a stream"}, {label: "round trip", what: "round trip"}}, []group{
		{label: "routes, no rules", subject: "routes, no rules"}, {label: "routes", subject: "routes"},
		{label: "routes, flowtable", subject: "routes, 1,000 policies, flowtable"}, {label: "IPIP", subject: "IPIP"},
		{label: "IPIP, flowtable", subject: "IPIP, flowtable"}, {label: "VXLAN", subject: "VXLAN"}, {label: "WireGuard", subject: "WireGuard"},
	})
	return p, err
}

func policies(all figures) (picture, error) {
	p := picture{title: "A connection's first packet by number of policies: microseconds of processor", x: "policies", y: "µs", scale: 1e-3}
	const what = "first packet"
	return p, p.lines(all, "policy", []group{{"policies with ports", "by ports", what, ""}, {"policies with peers", "by peers", what, ""}})
}

func memory(all figures) (picture, error) {
	p := picture{title: "Resident memory by nodes: MiB", x: "nodes", y: "MiB", scale: 1}
	const what = "memory"
	return p, p.lines(all, "memory", []group{
		{"an agent, full mesh", "full mesh, all peers answer", what, ""},
		{"an agent, route reflectors", "route reflectors, so no mesh", what, ""},
		{"BGP alone, of a reflector", "a reflector", what, "reflectors"}, {"BGP alone, of a client", "a client", what, "reflectors"},
	})
}
