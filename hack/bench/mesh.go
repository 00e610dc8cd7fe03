package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// meshTests are the measuring tests of internal/tests/mesh: real agents on a cluster of their own.
var meshTests = []string{"TestThirty", "TestDrift", "TestRestarts"}

// figure is one quantity that the tests have measured, with all its values.
type figure struct {
	Name   string
	Unit   string
	Values []float64
}

// at returns a quantile.
func (f figure) at(q float64) float64 {
	sorted := slices.Sorted(slices.Values(f.Values))
	return sorted[int(q*float64(len(sorted)-1))]
}

func (f figure) sum() (total float64) {
	for _, v := range f.Values {
		total += v
	}
	return total
}

// runTests runs measuring tests of a package in sequence, so that none disturbs another. A failed test is an error.
func runTests(ctx context.Context, root, dir, pkg string, names ...string) (all []figure, err error) {
	for _, name := range names {
		file := filepath.Join(dir, name+".json")
		cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=15m", "-run=^"+name+"$", "./"+pkg, "-figures="+file)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, out)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("figures of %s: %w", name, err)
		}
		var figures []figure
		if err := json.Unmarshal(text, &figures); err != nil {
			return nil, fmt.Errorf("figures of %s: %w", name, err)
		}
		all = append(all, figures...)
	}
	return all, nil
}

func (r *results) writeMesh(w *bytes.Buffer) {
	if len(r.mesh) == 0 {
		return
	}
	w.WriteString("### Agents in a mesh\n\nReal agents and API server on this machine: thirty in full mesh, two whose kernels are changed by hand, and five pairs with " +
		"1,000 packets per second each way while agents are killed, replaced and started again. A block's route is counted by the kernel's event on each of the 29 " +
		"other nodes. Median, 95th percentile and largest, in brackets how often:\n\n")
	writeFigures(w, r.mesh)
}

func writeFigures(w *bytes.Buffer, all []figure) {
	for _, f := range all {
		switch {
		case f.Unit == "":
			fmt.Fprintf(w, "- %s: %.0f\n", f.Name, f.sum())
		case len(f.Values) == 1:
			fmt.Fprintf(w, "- %s: %.1f %s\n", f.Name, f.at(1), f.Unit)
		default:
			fmt.Fprintf(w, "- %s: %.1f, %.1f, %.1f %s (%d)\n", f.Name, f.at(0.5), f.at(0.95), f.at(1), f.Unit, len(f.Values))
		}
	}
	w.WriteString("\n")
}

// Limits of agents, on a machine that is not overloaded.
const (
	maxNewNode = 2000 // ms, worst of all nodes
	maxSteady  = 100  // ms, median
	maxDrift   = 1000 // ms, worst
)

func (r *results) judgeMesh() []verdict {
	var all []verdict
	limit := func(f figure, q float64, most float64) {
		measured := f.at(q)
		all = append(all, verdict{f.Name, fmt.Sprintf("%.0f ms", measured), fmt.Sprintf("≤ %.0f ms", most), measured <= most})
	}
	for _, f := range r.mesh {
		switch {
		case strings.HasPrefix(f.Name, "a new node's first block"):
			limit(f, 1, maxNewNode)
		case strings.HasPrefix(f.Name, "a block in steady state"):
			limit(f, 0.5, maxSteady)
		case strings.HasSuffix(f.Name, ": put right"):
			limit(f, 1, maxDrift)
		case strings.HasPrefix(f.Name, "packets lost"):
			all = append(all, verdict{f.Name, fmt.Sprintf("%.0f", f.sum()), "0", f.sum() == 0})
		}
	}
	return all
}
