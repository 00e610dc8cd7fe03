package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// benchmarked are the packages with benchmarks of what a plugin or the agent does often, without a cluster.
var benchmarked = []string{"./internal/ipam", "./internal/podnet", "./internal/facts", "./internal/selector", "./internal/fib"}

// goBenchmark is one line of `go test -bench`.
type goBenchmark struct{ pkg, name, figures string }

// runGoBenchmarks runs the benchmarks of Go's own kind that the packages have.
func runGoBenchmarks(ctx context.Context, root string, size sizes) ([]goBenchmark, error) {
	args := append([]string{"test", "-run=^$", "-bench=.", "-benchmem", "-benchtime=" + size.benchTime, "-count=1"}, benchmarked...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return parseGoBenchmarks(string(out)), nil
}

var goBenchLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

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
