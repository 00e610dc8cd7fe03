package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// finding is a vulnerability with a called function.
type finding struct {
	id, summary           string
	module, version       string
	fixed, function, from string
}

// message is the used part of a message of govulncheck. https://pkg.go.dev/golang.org/x/vuln/internal/govulncheck
type message struct {
	OSV *struct {
		ID, Summary string
	}
	Finding *struct {
		OSV          string
		FixedVersion string `json:"fixed_version"`
		Trace        []struct{ Module, Version, Package, Function, Receiver string }
	}
}

// parse returns one finding for each vulnerability with a called function. Vulnerabilities that are only linked or
// required have no function in the first frame of their trace.
func parse(r io.Reader) ([]finding, error) {
	summaries, found := map[string]string{}, map[string]finding{}
	for d := json.NewDecoder(r); ; {
		var m message
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading govulncheck's answer: %w", err)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			first, last := f.Trace[0], f.Trace[len(f.Trace)-1]
			found[f.OSV] = finding{
				id: f.OSV, module: first.Module, version: first.Version, fixed: f.FixedVersion,
				function: first.Package + "." + first.Function, from: last.Package + "." + last.Function,
			}
		}
	}
	var all []finding
	for _, id := range slices.Sorted(maps.Keys(found)) {
		f := found[id]
		f.summary = summaries[id]
		all = append(all, f)
	}
	return all, nil
}

func (f finding) String() string {
	remedy := "there is no release without it"
	if f.fixed != "" {
		remedy = "fixed in " + f.fixed
	}
	return fmt.Sprintf("%s: %s: %s %s is called, from %s: %s; %s", f.id, f.summary, f.module, f.version, f.from, f.function, remedy)
}

// exception accepts a vulnerability until a day.
type exception struct {
	ID      string `json:"id"`
	CVE     string `json:"cve"`
	Judged  string `json:"judged"`  // the day
	Expires string `json:"expires"` // the last day
	Reason  string `json:"reason"`
	Test    string `json:"test"` // test of the reason: directory and test, e.g. internal/bgp TestAdvisories/GO-2026-0001
}

func readExceptions(path string) ([]exception, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading exceptions: %w", err)
	}
	var all []exception
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, e := range all {
		_, judged := time.Parse(time.DateOnly, e.Judged)
		_, expires := time.Parse(time.DateOnly, e.Expires)
		if judged != nil || expires != nil || e.ID == "" || e.Reason == "" || len(strings.Fields(e.Test)) != 2 {
			return nil, fmt.Errorf(
				"%s: exception %d (%q): it needs an id, a reason, a test, the day when it was judged and the last day, as 2026-12-31", path, i+1, e.ID)
		}
	}
	return all, nil
}

// judge returns the problems: findings without a valid exception, and expired exceptions that are not needed. Before
// its last day an exception may be unused: the modules of an advisory differ between databases and over time.
func judge(findings []finding, accepted []exception, now time.Time) []error {
	var problems []error
	used := map[string]bool{}
	for _, f := range findings {
		i := slices.IndexFunc(accepted, func(e exception) bool { return e.ID == f.id })
		switch {
		case i < 0:
			problems = append(problems, errors.New(f.String()))
		case now.Format(time.DateOnly) > accepted[i].Expires:
			problems = append(problems, fmt.Errorf("%s; the exception ended on %s", f, accepted[i].Expires))
		}
		used[f.id] = true
	}
	for _, e := range accepted {
		if !used[e.ID] && now.Format(time.DateOnly) > e.Expires {
			problems = append(problems, fmt.Errorf("exception %s ended on %s and nothing calls it any more: remove it", e.ID, e.Expires))
		}
	}
	return problems
}
