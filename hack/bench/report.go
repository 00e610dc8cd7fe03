package main

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

//go:embed intro.md
var intro string

// countedBegins is where the part begins that make generate keeps up to date.
const countedBegins = "<!-- generated: instructions -->\n"

// results are the results of a run; those of a part that did not run are empty.
type results struct {
	about     about
	elsewhere elsewhere
	failed    error  // of parts that are missing
	counted   string // the part of the page that make perf writes
	sequences []sequence
	bursts    []burst
	nodes     []nodesRun
	asked     []asked
	starts    []start
	files     []programSize
	goBench   []goBenchmark

	routes     []*learner
	routeCount int
	throughput []throughput
	mesh       []figure
	install    []figure
	reflection *reflection // nil: that part did not run
	memory     []agentSize
	policy     policyFigures
}

// table is a Markdown table.
type table [][]string

func (t *table) row(cells ...string) { *t = append(*t, cells) }

// write aligns the columns for reading as plain text.
func (t table) write(w *bytes.Buffer) {
	widths := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for i, row := range t {
		for j, cell := range row {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)))
		}
		w.WriteString("|\n")
		if i == 0 {
			for _, width := range widths {
				w.WriteString("|" + strings.Repeat("-", width+2))
			}
			w.WriteString("|\n")
		}
	}
	w.WriteString("\n")
}

// markdown returns the whole report.
func (r *results) markdown() string {
	var w bytes.Buffer
	w.WriteString(strings.Replace(intro, countedBegins, countedBegins+r.counted, 1))
	r.about.write(&w)
	if r.failed != nil {
		fmt.Fprintf(&w, "**Parts failed, and are missing here**:\n\n```\n%v\n```\n\n", r.failed)
	}
	for _, section := range []func(*bytes.Buffer){
		r.writeVerdicts, r.writeSequences, r.writeBursts, r.writeNodes, r.writeRequests, r.writeRoutes, r.writeThroughput, r.writeMemory, r.writeMesh, r.writeReflectors, r.writeInstall, r.writePolicy, r.writeStarts, r.writeGoBenchmarks,
	} {
		section(&w)
	}
	return w.String()
}

func (r *results) writeVerdicts(w *bytes.Buffer) {
	verdicts := r.judge()
	if len(verdicts) == 0 {
		return
	}
	unmet := slices.DeleteFunc(slices.Clone(verdicts), func(v verdict) bool { return v.met })
	fmt.Fprintf(w, "### What is required\n\n%d of %d requirements are met: [benchmarks-required.csv](benchmarks-required.csv). Times and CPU are medians, "+
		"as ratios to other figures of the run. Not met, in brackets the requirement, why, and what was tried:\n\n", len(verdicts)-len(unmet), len(verdicts))
	writeUnmet(w, unmet)
}

// requirements returns the verdicts as comma-separated values.
func (r *results) requirements() ([]byte, error) {
	rows := [][]string{{"Requirement", "Measured", "Limit", "Met"}}
	for _, v := range r.judge() {
		rows = append(rows, []string{v.what, v.measured, v.limit, strconv.FormatBool(v.met)})
	}
	return commaSeparated(rows)
}

// mebibytes prints the kernel's kB.
func mebibytes(kB int64) string { return fmt.Sprintf("%.1f", float64(kB)/1024) }

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", milliseconds(d)) }

// times formats a ratio, or "" without one.
func times(a, b float64) string {
	if a == 0 || b == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f×", a/b)
}

// number formats a figure, or "" without one.
func number(f float64, format string) string {
	if f == 0 {
		return ""
	}
	return fmt.Sprintf(format, f)
}

func (r *results) writeSequences(w *bytes.Buffer) {
	if len(r.sequences) == 0 {
		return
	}
	first := r.sequences[0].add
	fmt.Fprintf(w, "### One after another\n\n%d rounds of %d ADDs and then %d DELs, all subjects in each round. ", len(first), len(first[0]), len(first[0]))
	w.WriteString("Median of all, in brackets the smallest and largest of a round; memory of the largest process; kube-apiserver's CPU per " +
		"operation. \"× GET\": time and CPU by one GET's.\n\n")
	t := table{{"", "ADD ms", "p99", "CPU ms", "× GET", "DEL ms", "p99", "CPU ms", "MiB, processes", "API server ms, ADD / DEL"}}
	var get costs
	if s := r.sequence(nameGet); s != nil {
		get = s.add
	}
	for _, s := range r.sequences {
		row := append([]string{s.subject.name}, timing(s.add)...)
		row = append(row, times(milliseconds(s.add.all(wall).median()), milliseconds(get.all(wall).median()))+" "+
			times(milliseconds(s.add.all(cpu).median()), milliseconds(get.all(cpu).median())))
		row = append(row, timing(s.del)...)
		row = append(row, fmt.Sprintf("%s, %d", mebibytes(s.size().peak), s.size().processes), s.serverTimes())
		t.row(row...)
	}
	t.write(w)
	r.writeSequencesElsewhere(w)
}

// serverTimes is empty for subjects without an API server, where it is only noise.
func (s *sequence) serverTimes() string {
	switch {
	case !s.subject.asksAPI:
		return ""
	case !s.subject.del:
		return ms(s.serverAdd)
	}
	return ms(s.serverAdd) + " / " + ms(s.serverDel)
}

func timing(c costs) []string {
	if len(c) == 0 {
		return []string{"", "", ""}
	}
	low, high := c.spread()
	return []string{fmt.Sprintf("%s (%s–%s)", ms(c.all(wall).median()), ms(low), ms(high)), ms(c.all(wall).quantile(0.99)), ms(c.all(cpu).median())}
}

func (r *results) writeSequencesElsewhere(w *bytes.Buffer) {
	fmt.Fprintf(w, "Elsewhere, not in this run ([bursts, nodes and starts](../hack/bench/elsewhere.yaml) too): %s.\n\n", strings.TrimSpace(r.elsewhere.About))
	t := table{{"elsewhere", "ADD ms", "p99", "CPU ms", "× GET", "DEL ms", "CPU ms", "MB, processes", "API server ms", "requests ADD / DEL"}}
	get := r.elsewhere.Sequence[0]
	for _, s := range r.elsewhere.Sequence {
		t.row(s.Name, number(s.Add, "%.1f"), number(s.AddP99, "%.1f"), number(s.AddCPU, "%.1f"), times(s.Add, get.Add)+" "+times(s.AddCPU, get.AddCPU),
			number(s.Del, "%.1f"), number(s.DelCPU, "%.1f"), fmt.Sprintf("%.3g, %d", s.RSS, s.Processes), number(s.ServerCPU, "%.1f"), s.Requests)
	}
	t.write(w)
}

// rate returns the median of the rates.
func rate(batches []batch) float64 {
	var spans durations
	for _, s := range batches {
		spans = append(spans, s.makespan)
	}
	if len(spans) == 0 || spans.median() == 0 {
		return 0
	}
	return float64(len(batches[0].took)) / spans.median().Seconds()
}

func together(batches []batch) durations {
	var all durations
	for _, s := range batches {
		all = append(all, s.took...)
	}
	return all
}

func (r *results) writeBursts(w *bytes.Buffer) {
	if len(r.bursts) == 0 {
		return
	}
	fmt.Fprintf(w, "### At once on one node\n\nMedian of %d bursts; a failed ADD or an address assigned twice fails the run. ", len(r.bursts[0].add))
	w.WriteString("Conflicts: answers 409 to IPAM's writes. Memory: largest sum of anonymous memory, in a burst of its own.\n\n")
	t := table{{"", "at once", "ADD ms until the last", "per s", "ADD ms, median", "worst", "conflicts per ADD", "DEL per s", "anonymous MiB, processes"}}
	for _, b := range r.bursts {
		var spans durations
		for _, s := range b.add {
			spans = append(spans, s.makespan)
		}
		conflicts := ""
		if b.subject.asksAPI {
			conflicts = fmt.Sprintf("%.2f", b.conflicts)
		}
		t.row(b.subject.name, fmt.Sprint(b.size), ms(spans.median()), fmt.Sprintf("%.0f", rate(b.add)), ms(together(b.add).median()),
			ms(together(b.add).quantile(1)), conflicts, fmt.Sprintf("%.0f", rate(b.del)), fmt.Sprintf("%s, %d", mebibytes(b.anonymous), b.processes))
	}
	t.write(w)
}

func (r *results) writeNodes(w *bytes.Buffer) {
	if len(r.nodes) == 0 {
		return
	}
	fmt.Fprintf(w, "### %d nodes, %d pods each\n\n",
		r.nodes[0].nodes, r.nodes[0].pods)
	t := table{{"", "one by one on each: ADD ms", "p99", "per s", "all at once: ADD ms, median", "worst", "per s"}}
	for _, n := range r.nodes {
		t.row(n.subject.name, ms(n.oneByOne.took.median()), ms(n.oneByOne.took.quantile(0.99)), fmt.Sprintf("%.0f", n.oneByOne.rate()),
			ms(n.atOnce.took.median()), ms(n.atOnce.took.quantile(1)), fmt.Sprintf("%.0f", n.atOnce.rate()))
	}
	t.write(w)
}

func (r *results) writeRequests(w *bytes.Buffer) {
	if len(r.asked) == 0 {
		return
	}
	w.WriteString("### Requests to the API server\n\nA round is the requests that a proxy, which holds each, sees at the same time. " +
		"[benchmarks-requests.csv](benchmarks-requests.csv) has each request.\n\n")
	for _, a := range r.asked {
		fmt.Fprintf(w, "- %s, %s: %d in %d rounds\n", a.subject, a.operation, a.count(), len(a.requests))
	}
	w.WriteString("\n")
}

// requestRows returns the requests of each round as comma-separated values.
func (r *results) requestRows() ([]byte, error) {
	rows := [][]string{{"Subject", "Operation", "Requests", "Rounds", "Connections", "Requests of each round"}}
	for _, a := range r.asked {
		rows = append(rows, []string{strings.ReplaceAll(a.subject, "`", ""), a.operation, strconv.Itoa(a.count()), strconv.Itoa(len(a.requests)),
			strconv.Itoa(a.connections), summary(a.requests)})
	}
	return commaSeparated(rows)
}

func (r *results) writeStarts(w *bytes.Buffer) {
	if len(r.starts) > 0 {
		fmt.Fprintf(w, "### Start of a program\n\n%d runs each, in turn.\n\n", len(r.starts[0].took))
		t := table{{"", "ms", "p99", "CPU ms", "× empty", "MiB", "file MB"}}
		empty := milliseconds(r.starts[0].all(wall).median())
		for _, s := range r.starts {
			all := s.all(wall)
			t.row(s.name, fmt.Sprintf("%.2f", milliseconds(all.median())), fmt.Sprintf("%.2f", milliseconds(all.quantile(0.99))),
				fmt.Sprintf("%.2f", milliseconds(s.all(cpu).median())), times(milliseconds(all.median()), empty),
				mebibytes(s.size.peak), fmt.Sprintf("%.1f", float64(s.bytes)/1e6))
		}
		t.write(w)
	}
	if len(r.files) > 0 {
		var all []string
		for _, f := range r.files {
			all = append(all, fmt.Sprintf("`%s` %.1f", f.name, float64(f.bytes)/1e6))
		}
		fmt.Fprintf(w, "Files, MB: %s.\n\n", strings.Join(all, ", "))
	}
}

func (r *results) writeGoBenchmarks(w *bytes.Buffer) {
	if len(r.goBench) == 0 {
		return
	}
	w.WriteString("### Go benchmarks\n\n[benchmarks-go.csv](benchmarks-go.csv): `go test -bench` of what needs no cluster: time of one operation, and what a benchmark " +
		"reports.\n")
}

// goBenchmarks returns the figures of Go's benchmarks as comma-separated values.
func (r *results) goBenchmarks() ([]byte, error) {
	rows := [][]string{{"Package", "Benchmark", "Figures"}}
	for _, b := range r.goBench {
		rows = append(rows, []string{b.pkg, b.name, brief(b.figures)})
	}
	return commaSeparated(rows)
}

func commaSeparated(rows [][]string) ([]byte, error) {
	var w bytes.Buffer
	err := csv.NewWriter(&w).WriteAll(rows)
	return w.Bytes(), err
}
