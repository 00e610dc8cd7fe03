// Command testsum runs suites of tests, which are targets of make, shows progress, and ends with one summary.
//
//	testsum [-root ..] [-only lint,unit] SUITE...
//
// It runs `make suite-NAME` for one suite after another. "+NAME" runs beside the following ones, with the processor
// time that these leave. "NAME!" ends the run if it fails. dist/test/NAME.log has the output of suite NAME, and
// dist/test/NAME.json the events of go test.
//
// gotestsum runs go test in the suites, and runs a failed test again. Its summary covers one run of go test. Here there
// are twenty, some at a time, so this program handles the order, the processors, signals and the summary.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

func main() {
	root := flag.String("root", ".", "directory of the Makefile")
	only := flag.String("only", "", "comma-separated names of the suites to run; empty runs all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, *root, *only, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run runs the suites of a list and reports whether all ran and none failed.
func run(ctx context.Context, root, only string, list []string) (ok bool, err error) {
	suites, err := choose(list, only)
	if err != nil {
		return false, err
	}
	logs := filepath.Join(root, "dist", "test")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return false, fmt.Errorf("making the directory of logs: %w", err)
	}
	results := runAll(ctx, suites, root, logs)
	ok = summarize(os.Stdout, results, len(suites))
	return ok, writeFlaky(filepath.Join(root, "dist", "flaky.txt"), results)
}

// suite is an element of the list of suites.
type suite struct {
	name   string
	beside bool // it runs beside those that follow
	vital  bool // without it the others cannot run
}

// choose returns the suites of a list that only names.
func choose(list []string, only string) ([]suite, error) {
	var chosen []suite
	var names []string
	wanted := strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
	for _, text := range list {
		s := suite{name: strings.Trim(text, "+!"), beside: strings.HasPrefix(text, "+"), vital: strings.HasSuffix(text, "!")}
		names = append(names, s.name)
		if len(wanted) == 0 || slices.Contains(wanted, s.name) {
			chosen = append(chosen, s)
		}
	}
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is no suite %q: the suites are %s", name, strings.Join(names, ","))
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("no suites: name some as arguments")
	}
	return chosen, nil
}

// besides is how many suites run beside the others at once. One per processor gets the most of the processor time that
// the others leave.
const besides = 2

// runAll runs suites one after another, except for those that run beside the following ones, and returns the results of
// all started suites.
func runAll(ctx context.Context, suites []suite, root, logs string) []result {
	results := make([]result, len(suites))
	begun := 0
	var beside sync.WaitGroup
	queue := make(chan func(), len(suites)) // in the order of the list
	for range besides {
		beside.Go(func() {
			for run := range queue {
				run()
			}
		})
	}
	for i, s := range suites {
		begun++
		run := func() {
			if ctx.Err() != nil {
				results[i] = result{name: s.name, failures: []failure{{name: s.name, said: "    not run: interrupted\n"}}}
				return
			}
			fmt.Printf("=== %d/%d %s\n", i+1, len(suites), s.name)
			results[i] = s.run(ctx, root, logs)
			report(os.Stdout, results[i])
		}
		if s.beside {
			queue <- run
			continue
		}
		run()
		if ctx.Err() != nil {
			break
		}
		// Without the programs all suites fail, and the output would hide the cause.
		if s.vital && len(results[i].failures) > 0 {
			fmt.Printf("=== %s failed: the remaining suites cannot run\n", s.name)
			break
		}
	}
	close(queue)
	beside.Wait()
	return results[:begun]
}
