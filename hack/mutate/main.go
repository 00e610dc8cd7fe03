// Program mutate shows that tests detect each decision on facts that are not known yet. mutations.txt has small changes
// of the code, each of which a test must detect. All are built into the tests at once, by an overlay, so that no file
// of the repository changes; an environment variable selects the change of a run.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

//go:embed mutations.txt
var list string

// suite is a part of a package's tests.
type suite struct {
	name, dir string
	args      []string
}

const (
	// worlds is the proof; a unit test must detect changes that it does not.
	worlds = "TestNothingPassesByWhatIsWithheld"
	// long match tests that take long, and concern sizes, times, or the remains of a process.
	long = "TestPassesHavePauses|TestRunEnds|TestSelectorsOfNetworkSets|TestLookupsAreBounded|TestSelectionsAreToldApart|" +
		"TestOthersNetworksCloseNothing|TestPortsDoNotMultiplyOthersNetworks|TestAdministratorsSelectorsCloseNothing|TestHuge.*"
)

func suites(worldsOfEach string) []suite {
	return []suite{
		{"worlds", "internal/agent/policies", []string{"-test.run=^" + worlds + "$", "-worlds=" + worldsOfEach}},
		{"unit tests", "internal/agent/policies", []string{"-test.short", "-test.skip=^(" + worlds + "|" + long + ")$"}},
		{"unit tests", "internal/cluster", []string{"-test.short", "-test.skip=^(" + long + ")$"}},
		{"unit tests", "internal/policy", []string{"-test.short", "-test.skip=^(" + long + ")$"}},
	}
}

func main() {
	root := flag.String("root", "..", "the repository")
	only := flag.String("only", "", "the mutations whose description has this in it")
	each := flag.String("worlds", "20000", "how many worlds the test has for each mutation")
	parallel := flag.Int("parallel", runtime.NumCPU(), "how many mutations are tried at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *root, *only, *parallel, suites(*each)); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, only string, parallel int, all []suite) error {
	mutations, err := parse(list)
	if err != nil {
		return err
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := build(ctx, root, dir, mutations, all); err != nil {
		return err
	}
	if by, err := try(ctx, root, dir, 0, all); err != nil || by != "" {
		return errors.Join(err, fmt.Errorf("without a mutation a test fails: %s", by))
	}
	var mu sync.Mutex
	counts := map[string]int{}
	var wrong []string
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, m := range mutations {
		if !strings.Contains(m.String(), only) {
			continue
		}
		group.Go(func() error {
			by, err := try(ctx, root, dir, i+1, all)
			if err != nil {
				return err
			}
			kind, said, asListed := m.verdict(by)
			mu.Lock()
			defer mu.Unlock()
			counts[kind]++
			fmt.Printf("%s\n    %s\n", m, said)
			if !asListed {
				wrong = append(wrong, fmt.Sprintf("%s: %s", m, said))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Println(counts)
	switch {
	case len(counts) == 0:
		return fmt.Errorf("-only %s: no mutation's description has this in it", only)
	case len(wrong) > 0:
		return fmt.Errorf("%d mutations escape, or are not what the list says:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}

// verdict judges a mutation by the suite and test that detected it; empty: none did.
func (m mutation) verdict(by string) (kind, said string, asListed bool) {
	switch {
	case by == "" && m.equivalent != "":
		return "equivalent", "equivalent: " + m.equivalent, true
	case by == "":
		return "ESCAPED", "ESCAPED", false
	case m.equivalent != "":
		return "not equivalent", "it is said to be equivalent, but is seen by " + by, false
	}
	kind, _, _ = strings.Cut(by, ":")
	return kind, by, true
}

// binary returns the path of a suite's test binary.
func (s suite) binary(dir string) string {
	return filepath.Join(dir, strings.ReplaceAll(s.dir, "/", "-")+".test")
}

// build writes the mutated files, and builds the tests with them.
func build(ctx context.Context, root, dir string, mutations []mutation, all []suite) error {
	files, err := mutate(root, mutations)
	if err != nil {
		return err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for path, text := range files {
		to := filepath.Join(dir, strings.ReplaceAll(path, "/", "-"))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return err
		}
		overlay.Replace[filepath.Join(root, path)] = to
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	overlays := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlays, text, 0o600); err != nil {
		return err
	}
	for _, s := range all {
		if _, err := os.Stat(s.binary(dir)); err == nil {
			continue
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlays, "-o", s.binary(dir), "./"+s.dir)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building the tests of %s with all mutations: %w\n%s", s.dir, err, out)
		}
	}
	return nil
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*)|^(fatal error: .*)`)

// try runs the tests with one mutation, and returns the first suite that detects it, with the test; empty: none does.
func try(ctx context.Context, root, dir string, mutation int, all []suite) (by string, err error) {
	for _, s := range all {
		cmd := exec.CommandContext(ctx, s.binary(dir), append(s.args, "-test.failfast", "-test.timeout=10m")...)
		cmd.Dir = filepath.Join(root, s.dir)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", variable, mutation))
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err == nil {
			continue
		}
		var ended *exec.ExitError
		if !errors.As(err, &ended) {
			return "", err
		}
		found := failed.FindSubmatch(out)
		if found == nil {
			return "", fmt.Errorf("%s: no test fails, but: %w\n%s", s.dir, err, out)
		}
		return fmt.Sprintf("%s: %s of %s", s.name, bytes.Join(found[1:], nil), s.dir), nil
	}
	return "", nil
}
