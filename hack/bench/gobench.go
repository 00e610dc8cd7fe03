package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// benchmarked returns the packages with Go benchmarks, which need no cluster.
func benchmarked(root string) ([]string, error) {
	found := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && bytes.Contains(text, []byte("\nfunc Benchmark")) {
			dir, err := filepath.Rel(root, filepath.Dir(path))
			found["./"+dir] = true
			return err
		}
		return err
	})
	return slices.Sorted(maps.Keys(found)), err
}

const bfdPackage = "internal/bgp/bfd"

// goBenchmark is one line of `go test -bench`.
type goBenchmark struct{ pkg, name, figures string }

// goBenchTime is the limit for one package. The controllers' benchmark collects 30,000 addresses, which takes minutes.
const goBenchTime = "30m"

// runOtherBenchmarks runs the Go benchmarks of all packages but those of another part.
func (r *results) runOtherBenchmarks(ctx context.Context, root string, size sizes) error {
	packages, err := benchmarked(root)
	if err != nil {
		return fmt.Errorf("find benchmarks: %w", err)
	}
	packages = slices.DeleteFunc(packages, func(path string) bool { return path == "./"+netpolPackage || path == "./"+flowsPackage })
	found, err := runGoBenchmarks(ctx, root, size, packages, "-skip="+servicesOnly)
	r.goBench = append(r.goBench, found...)
	return err
}

// The benchmark of addresses of Services is a part of its own, as it has a limit.
const (
	controllersPackage = "internal/program/controllers"
	servicesOnly       = "^BenchmarkServices$"
)

func (r *results) runServices(ctx context.Context, root string, size sizes) error {
	found, err := runGoBenchmarks(ctx, root, size, []string{"./" + controllersPackage}, "-bench="+servicesOnly)
	r.goBench = append(r.goBench, found...)
	return err
}

func (r *results) judgeServices() []verdict {
	n, ok := r.reportedBy("Services", "s/10000", controllersPackage)
	if !ok {
		return nil
	}
	return []verdict{bounded("10,000 Services of one family, until each has its address", n, maxServices, "s")}
}

// runGoBenchmarks runs the Go benchmarks of these packages; flags are further ones of `go test`.
func runGoBenchmarks(ctx context.Context, root string, size sizes, packages []string, flags ...string) ([]goBenchmark, error) {
	args := slices.Concat([]string{"test", "-run=^$", "-bench=.", "-benchmem", "-benchtime=" + size.benchTime, "-timeout=" + goBenchTime}, flags, packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return parseGoBenchmarks(string(out)), nil
}

// reportedBy is a figure that a benchmark of one of these packages reports.
func (r *results) reportedBy(benchmark, unit string, packages ...string) (float64, bool) {
	for _, b := range r.goBench {
		words := strings.Fields(b.figures)
		for i := 1; i < len(words) && slices.Contains(packages, b.pkg) && b.name == benchmark; i++ {
			if words[i] == unit {
				n, err := strconv.ParseFloat(words[i-1], 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}

// judgeBFD judges the cost of 500 sessions at 3 × 300 ms, beside that of bare system calls for the same packets.
func (r *results) judgeBFD() []verdict {
	const what = "500 BFD sessions at 3 × 300 ms"
	cpu, ok := r.reportedBy("Sessions", "%cpu/end", bfdPackage)
	memory, hasMemory := r.reportedBy("Sessions", "KiB/end", bfdPackage)
	bare, hasBare := r.reportedBy("Packets", "%cpu/end", bfdPackage)
	if !ok || !hasMemory || !hasBare {
		return nil
	}
	return []verdict{
		{what + ", CPU", fmt.Sprintf("%.2f %% of a core, bare system calls %.2f %%", cpu, bare), fmt.Sprintf("≤ %d %%", maxBFD), cpu <= maxBFD},
		bounded(what+", memory of Go", memory/1024, maxBFDMemory, "MiB"),
	}
}

var goBenchLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// brief keeps of a benchmark's figures the time of one operation, in a unit that fits, and what the benchmark reports by itself.
func brief(figures string) string {
	words := strings.Fields(figures)
	var kept []string
	for i := 0; i+1 < len(words); i += 2 {
		switch words[i+1] {
		case "ns/op":
			kept = append([]string{duration(words[i])}, kept...)
		case "B/op", "allocs/op":
		default:
			kept = append(kept, words[i]+" "+words[i+1])
		}
	}
	return strings.Join(kept, "; ")
}

// duration writes nanoseconds with three digits.
func duration(nanoseconds string) string {
	n, err := strconv.ParseFloat(nanoseconds, 64)
	if err != nil {
		return nanoseconds + " ns"
	}
	for _, unit := range []string{"ns", "µs", "ms"} {
		if n < 1000 {
			return fmt.Sprintf("%.3g %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3g s", n)
}

func parseGoBenchmarks(text string) []goBenchmark {
	var all []goBenchmark
	pkg := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "pkg: "); ok {
			pkg = strings.TrimPrefix(name, "github.com/tortie-net/tortie/")
		}
		if m := goBenchLine.FindStringSubmatch(line); m != nil {
			all = append(all, goBenchmark{pkg, m[1], strings.Join(strings.Fields(m[2]), " ")})
		}
	}
	return all
}
