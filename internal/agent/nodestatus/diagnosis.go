package nodestatus

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Level is how bad a finding is.
type Level string

// The levels, the worst first.
const (
	Problem Level = "problem" // pods suffer, or will
	Warning Level = "warning" // it may do harm
	Unknown Level = "unknown" // it could not be looked at
	OK      Level = "ok"
)

var levels = []Level{Problem, Warning, Unknown, OK}

// Finding is the answer of one check about one thing. The names of its fields, and of checks, are stable.
type Finding struct {
	Check string `json:"check" help:"Name of the check."`
	Level Level  `json:"level" help:"problem, warning, unknown (it could not be looked at) or ok."`
	About string `json:"about,omitempty" help:"What it is about: a peer, a link, a file, a parameter."`
	Seen  string `json:"seen" help:"What was seen."`
	Why   string `json:"why,omitempty" help:"Why it matters."`
	Do    string `json:"do,omitempty" help:"What to do."`
}

// Diagnosis is the answer of `node diagnose`: what was found on one node.
type Diagnosis struct {
	Node     string    `json:"node,omitempty" help:"Name of the node, if its agent answers."`
	Time     time.Time `json:"time" help:"When the checks began."`
	Seconds  float64   `json:"seconds" help:"How long they took."`
	Findings []Finding `json:"findings" help:"The answers, the worst first."`
}

// Order sorts the findings by level, the worst first, then by check.
func (r *Diagnosis) Order() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(slices.Index(levels, a.Level)-slices.Index(levels, b.Level), cmp.Compare(a.Check, b.Check))
	})
}

// Count returns how many findings have a level.
func (r *Diagnosis) Count(l Level) int {
	n := 0
	for _, f := range r.Findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// WriteJSON writes the result for programs.
func (r *Diagnosis) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the result for people: what is wrong in full, what is right in a line.
func (r *Diagnosis) WriteText(w io.Writer) error {
	var b strings.Builder
	if r.Node != "" {
		fmt.Fprintf(&b, "Node %s: ", r.Node)
	}
	fmt.Fprintf(&b, "%d checks in %.1f s: %s, %s, %d could not be made, %d ok\n", len(r.Findings), r.Seconds,
		count(r.Count(Problem), "problem"), count(r.Count(Warning), "warning"), r.Count(Unknown), r.Count(OK))
	for i, f := range r.Findings {
		if f.Level == OK && i > 0 && r.Findings[i-1].Level != OK {
			b.WriteString("\n")
		}
		if f.Level == OK || r.alike(i) < maxAlike {
			f.write(&b)
		} else if last := i+1 == len(r.Findings) || !r.Findings[i+1].alike(f); last {
			fmt.Fprintf(&b, "\n%-8s %s: %d more: -o json has them\n", strings.ToUpper(string(f.Level)), f.Check, r.alike(i)+1-maxAlike)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxAlike bounds the findings of one check and level that are shown in full; ok ones are not bounded.
const maxAlike = 5

func (f Finding) alike(o Finding) bool { return f.Check == o.Check && f.Level == o.Level }

// alike counts the findings just before index i with the same check and level.
func (r *Diagnosis) alike(i int) int {
	n := 0
	for n < i && r.Findings[i-1-n].alike(r.Findings[i]) {
		n++
	}
	return n
}

func (f Finding) write(b *strings.Builder) {
	name := f.Check
	if f.About != "" {
		name += ", " + f.About
	}
	if f.Level == OK {
		fmt.Fprintf(b, "ok       %s: %s\n", name, f.Seen)
		return
	}
	fmt.Fprintf(b, "\n%-8s %s: %s\n", strings.ToUpper(string(f.Level)), name, indent(f.Seen))
	if f.Why != "" {
		fmt.Fprintf(b, "         why: %s\n", indent(f.Why))
	}
	if f.Do != "" {
		fmt.Fprintf(b, "         do:  %s\n", indent(f.Do))
	}
}

// indent keeps a text of several lines below the finding that it belongs to.
func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n              ") }
