// Package instructions reads and writes the instructions that make perf has counted, and has the requirements on them.
package instructions

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The files, below the root of the repository: the present figures for comparisons, and the last release's.
const (
	File     = "internal/tests/perf/testdata/ratios.csv"
	released = "internal/tests/perf/testdata/released.csv"
)

// Kernels are the names of the kernels, in the order of the columns.
var Kernels = []string{"stable", "newest"}

// columns are the columns of both files. In File a column follows with the instructions on each kernel; its name is the
// kernel's release.
var columns = append([]string{"what", "unit", "tolerance"}, Kernels...)

// figure is the instructions of a unit on a kernel, and their ratio to the unit's reference; for several runs the sum,
// until it is divided by their number.
type figure struct{ instructions, ratio, runs float64 }

// key is a path or other work, and the counted unit.
type key struct{ what, unit string }

// row is a line of a file.
type row struct {
	key
	tolerance string
	on        [2]figure // of Kernels
}

// Table is a file.
type Table struct {
	releases [2]string // of Kernels
	rows     []row
}

func load(root, name string) (t Table, err error) {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return t, fmt.Errorf("read what was counted: %w", err)
	}
	lines, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return t, fmt.Errorf("%s: %w", name, err)
	}
	if len(lines) == 0 || len(lines[0]) < len(columns) || !slices.Equal(lines[0][:len(columns)], columns) {
		return t, fmt.Errorf("%s: it does not begin with the columns %s", name, strings.Join(columns, ","))
	}
	copy(t.releases[:], lines[0][len(columns):])
	for i, line := range lines[1:] {
		r := row{key: key{line[0], line[1]}, tolerance: line[2]}
		for j, text := range line[3:] {
			f, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return t, fmt.Errorf("%s, line %d: %w", name, i+2, err)
			}
			if on := &r.on[j%len(Kernels)]; j < len(Kernels) {
				on.ratio = f
			} else {
				on.instructions = f
			}
		}
		t.rows = append(t.rows, r)
	}
	return t, nil
}

// write writes the file.
func (t Table) write(root string) error {
	lines := [][]string{append(slices.Clone(columns), t.releases[:]...)}
	for _, r := range t.rows {
		line := []string{r.what, r.unit, r.tolerance}
		for _, f := range r.on {
			line = append(line, fmt.Sprintf("%.3f", f.ratio))
		}
		for _, f := range r.on {
			line = append(line, fmt.Sprintf("%.0f", f.instructions))
		}
		lines = append(lines, line)
	}
	var out bytes.Buffer
	if err := csv.NewWriter(&out).WriteAll(lines); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, File), out.Bytes(), 0o644)
}
