// Command testsum runs every test suite of the repository, shows progress, and ends with one summary.
//
//	testsum -root .. [-set check|test|docs] [-only lint,unit]
//
// Suites run in an order that shows cheap failures first. Full logs go to dist/test/. The last line is
// "N passed, N failed", and the exit code is 0 only if nothing failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	set := flag.String("set", "test", "which suites: check (short, with nothing but Go and root), test, or docs (documents and tools)")
	only := flag.String("only", "", "comma-separated names of the suites to run; empty runs all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, *root, *set, *only)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, root, set, only string) (ok bool, err error) {
	root, err = filepath.Abs(root)
	if err != nil {
		return false, fmt.Errorf("finding the root: %w", err)
	}
	logs := filepath.Join(root, "dist", "test")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return false, fmt.Errorf("making the directory of logs: %w", err)
	}
	all, ok := sets[set]
	if !ok {
		return false, fmt.Errorf("-set %s: the sets are check, test and docs", set)
	}
	chosen, err := choose(all(root), only)
	if err != nil {
		return false, err
	}
	return summarize(os.Stdout, runAll(ctx, chosen, logs), len(chosen), logs), nil
}

// besides is how many suites run beside the others at once. With one per processor, what each gets of what the others leave is the most.
const besides = 2

// runAll runs suites one after another, but for those that run beside the ones that follow, and returns the results of all that were begun.
func runAll(ctx context.Context, suites []suite, logs string) []result {
	results := make([]result, len(suites))
	begun := 0
	var beside sync.WaitGroup
	slots := make(chan struct{}, besides)
	for i, s := range suites {
		fmt.Printf("=== %d/%d %s: %s\n", i+1, len(suites), s.name, s.what)
		begun++
		run := func() { results[i] = s.run(ctx, filepath.Join(logs, s.name+".log")) }
		if s.beside {
			beside.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				run()
			})
			continue
		}
		run()
		if ctx.Err() != nil {
			break
		}
		// Without the programs all suites fail, and the output would hide the cause.
		if results[i].failed > 0 && s.vital {
			fmt.Printf("=== %s failed: the remaining suites cannot run\n", s.name)
			break
		}
	}
	beside.Wait()
	return results[:begun]
}

func choose(all []suite, only string) ([]suite, error) {
	if only == "" {
		return all, nil
	}
	var chosen []suite
	var names []string
	for _, s := range all {
		names = append(names, s.name)
		for name := range strings.SplitSeq(only, ",") {
			if name == s.name {
				chosen = append(chosen, s)
			}
		}
	}
	if len(chosen) != len(strings.Split(only, ",")) {
		return nil, fmt.Errorf("-only %s: the suites are %s", only, strings.Join(names, ", "))
	}
	return chosen, nil
}

// result is the result of one suite.
type result struct {
	name                    string
	passed, failed, skipped int
	took                    time.Duration
	failures                []string          // names of failed tests
	said                    map[string]string // by name: what a failed test or command said, in short
	skips                   []string
	left                    map[string]int // skipped in a short run, by dependency
}

// leave counts a test that is skipped for a missing dependency.
func (r *result) leave(need string) {
	if r.left == nil {
		r.left = map[string]int{}
	}
	r.left[need]++
}

// summarize prints the table and reports whether all suites ran and none failed.
func summarize(w *os.File, results []result, planned int, logs string) bool {
	var passed, failed int
	fmt.Fprintf(w, "\n%-14s %7s %7s %7s %8s\n", "suite", "passed", "failed", "skipped", "seconds")
	for _, r := range results {
		fmt.Fprintf(w, "%-14s %7d %7d %7d %8.1f\n", r.name, r.passed, r.failed, r.skipped, r.took.Seconds())
		passed, failed = passed+r.passed, failed+r.failed
	}
	for _, r := range results {
		for _, name := range r.skips {
			fmt.Fprintf(w, "skipped in %s: %s\n", r.name, name)
		}
		for _, need := range slices.Sorted(maps.Keys(r.left)) {
			fmt.Fprintf(w, "left out of %s: %d that need %s\n", r.name, r.left[need], need)
		}
	}
	for _, r := range results {
		for _, name := range r.failures {
			fmt.Fprintf(w, "FAILED in %s: %s (log: %s)\n%s", r.name, name, filepath.Join(logs, r.name+".log"), r.said[name])
		}
	}
	if missing := planned - len(results); missing > 0 {
		fmt.Fprintf(w, "not run: %d of %d suites\n", missing, planned)
		failed += missing
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", passed, failed)
	return failed == 0
}
