package instructions

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// units are what is counted of a path.
var units = []string{"KiB of a stream", "round trip", "connection", "datagram"}

// Page returns the part of docs/benchmarks.md.
func Page(root string) (string, error) {
	now, err := load(root, File)
	if err != nil {
		return "", err
	}
	before, err := load(root, released)
	if err != nil {
		return "", err
	}
	var w strings.Builder
	for i, name := range []string{"Debian's kernel", "The newest kernel of Debian's unstable release"} {
		fmt.Fprintf(&w, "%s, %s:\n\n", name, now.releases[i])
		now.paths(&w, &before, i)
	}
	w.WriteString("The plugin's and the agent's own work, beside the least that the kernel asks for it, and processes, " +
		"with the kernel's work for them, beside one that makes a GET of the API server, in the same order:\n\n")
	now.work(&w, &before)
	w.WriteString("### Required instructions\n\nWhat is asked of these figures, by the two kernels:\n\n")
	if err := now.required(&w); err != nil {
		return "", err
	}
	return w.String(), nil
}

// paths writes a kernel's table: a line for each path.
func (t *Table) paths(w *strings.Builder, before *Table, kernel int) {
	head(w, append([]string{""}, strings.Split(strings.Join(units, ",×,")+",×", ",")...))
	for _, r := range t.rows {
		if r.unit != units[0] {
			continue
		}
		cells := []string{r.what}
		for _, unit := range units {
			cells = append(cells, t.cells(before, key{r.what, unit}, kernel)...)
		}
		line(w, cells)
	}
	w.WriteString("\n")
}

// work writes the table of what is no path.
func (t *Table) work(w *strings.Builder, before *Table) {
	head(w, []string{"", "instructions", "×", "instructions", "×"})
	for _, r := range t.rows {
		if slices.Contains(units, r.unit) {
			continue
		}
		cells := []string{r.what + ", a " + r.unit}
		for i := range Kernels {
			cells = append(cells, t.cells(before, r.key, i)...)
		}
		line(w, cells)
	}
	w.WriteString("\n")
}

// cells are the instructions and the ratio, in brackets what it was before; empty where nothing is counted.
func (t *Table) cells(before *Table, k key, kernel int) []string {
	now, had := t.at(k).on[kernel], before.at(k).on[kernel]
	switch {
	case now.ratio == 0:
		return []string{"", ""}
	case had.ratio == 0:
		return []string{thousands(now.instructions), fmt.Sprintf("%.3f", now.ratio)}
	}
	return []string{thousands(now.instructions), fmt.Sprintf("%.3f (%.3f)", now.ratio, had.ratio)}
}

// thousands separates them by commas.
func thousands(f float64) string {
	text := strconv.FormatFloat(f, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func head(w *strings.Builder, cells []string) {
	line(w, cells)
	w.WriteString("|" + strings.Repeat("---|", len(cells)) + "\n")
}

func line(w *strings.Builder, cells []string) {
	w.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
