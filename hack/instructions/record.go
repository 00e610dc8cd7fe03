package instructions

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Lines of a run's output, as internal/tests/perf prints them: a figure, and the kernel's release.
const (
	prefix  = "perf: "
	between = "|"
	release = "kernel"
)

// Record writes the file from the output of runs: at least one on each kernel, and the mean of several. Tolerances
// stay; a new row has the tolerance of the first row of its unit. Unless worse is true it refuses figures that are
// worse by more than their tolerance than the file's, or the last release's.
func Record(root string, runs map[string][]string, worse bool) error {
	old, err := load(root, File)
	if err != nil {
		return err
	}
	last, err := load(root, released)
	if err != nil {
		return err
	}
	tolerances := map[key]string{}
	for _, r := range slices.Backward(old.rows) {
		tolerances[key{"", r.unit}], tolerances[r.key] = r.tolerance, r.tolerance
	}
	var t Table
	for i, kernel := range Kernels {
		if len(runs[kernel]) == 0 {
			return fmt.Errorf("no run on the %s kernel: name one, as %s=FILE", kernel, kernel)
		}
		for _, path := range runs[kernel] {
			if err := t.add(i, path); err != nil {
				return fmt.Errorf("%s=%s: %w", kernel, path, err)
			}
		}
	}
	for i := range t.rows {
		r := &t.rows[i]
		r.tolerance = cmp.Or(tolerances[r.key], tolerances[key{"", r.unit}])
		for j := range r.on {
			on := &r.on[j]
			if on.runs == 0 {
				return fmt.Errorf("%s, %s: not counted on the %s kernel", r.what, r.unit, Kernels[j])
			}
			on.instructions, on.ratio = on.instructions/on.runs, on.ratio/on.runs
		}
	}
	if lost := append(t.worse(&old, "before"), t.worse(&last, "at the last release")...); len(lost) > 0 && !worse {
		return fmt.Errorf("worse by more than the tolerance:\n%s\nFind out why; -worse (make perf WRITE=worse) writes them all the same",
			strings.Join(lost, "\n"))
	}
	return t.write(root)
}

// worse lists the figures that are worse than in another table: ratios, and, on the same kernel, instructions, which
// show a loss of both a path and its reference.
func (t *Table) worse(than *Table, when string) (lost []string) {
	for _, r := range t.rows {
		tolerance, _ := strconv.ParseFloat(r.tolerance, 64)
		had := than.at(r.key)
		for i, kernel := range Kernels {
			now, then := r.on[i], had.on[i]
			if then.ratio > 0 && now.ratio > then.ratio*(1+tolerance) {
				lost = append(lost, fmt.Sprintf("%s, %s, %s kernel: %.3f, %s %.3f", r.what, r.unit, kernel, now.ratio, when, then.ratio))
			} else if then.instructions > 0 && t.releases[i] == than.releases[i] && now.instructions > then.instructions*(1+tolerance) {
				lost = append(lost,
					fmt.Sprintf("%s, %s, %s kernel: %.0f instructions, %s %.0f", r.what, r.unit, kernel, now.instructions, when, then.instructions))
			}
		}
	}
	return lost
}

// add adds a run to the sums of a kernel's figures.
func (t *Table) add(kernel int, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	found := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), prefix)
		if !ok {
			continue
		}
		cells := strings.Split(text, between)
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[0] == release && len(cells) == 2 {
			t.releases[kernel] = cells[1]
			continue
		}
		if len(cells) != 4 {
			return fmt.Errorf("%q is no line of a figure", lines.Text())
		}
		one, err1 := strconv.ParseFloat(cells[2], 64)
		ratio, err2 := strconv.ParseFloat(cells[3], 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		on := &t.row(key{cells[0], cells[1]}).on[kernel]
		on.instructions, on.ratio, on.runs, found = on.instructions+one, on.ratio+ratio, on.runs+1, true
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !found {
		return errors.New("no figures in it")
	}
	return nil
}

// row returns the row of a key, a new one if there is none.
func (t *Table) row(k key) *row {
	i := slices.IndexFunc(t.rows, func(r row) bool { return r.key == k })
	if i < 0 {
		i, t.rows = len(t.rows), append(t.rows, row{key: k})
	}
	return &t.rows[i]
}
