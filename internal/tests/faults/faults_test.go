package faults

import (
	"bytes"
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

var report = flag.String("faults-report", "",
	"file into which TestFaults writes the faults as comma-separated values: where they are told, in which words")

// fault is a fault that is injected, reported, and undone.
type fault struct {
	number, what string
	inject       []step
	told         []told
	// after is reported once the fault has ended: a node that cannot reach the API server reports nothing before.
	after []told
	// undo is empty for a fault that heals by itself.
	undo []step
	// checks are the checks of `node diagnose` that may find something meanwhile, on any node. A finding of another check
	// is a wrong accusation.
	checks []string
	// traffic is the effect on packets between pods of node1 and node2.
	traffic traffic
}

type traffic string

const (
	kept  traffic = "no packet was lost"
	short traffic = "some packets may be lost until the agent has mended it"
	some  traffic = "some packets may be lost until the end of the fault"
	cut   traffic = "lost until the end of the fault"
)

// worlds is how many clusters are broken at once: for most of a fault's time its cluster waits.
const worlds = 2

// TestFaults injects one fault after the other into each of its clusters. Each must be reported in the table's texts,
// without another cause; after each the cluster recovers. In projectcalico.org/v3 it has the faults that differ there.
func TestFaults(t *testing.T) {
	needtest.More(t, "the lab and the image, built")
	wanted := faults
	if labtest.Group(t) != groups.V1 {
		wanted = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !f.namesGroup() })
	}
	queue := make(chan fault, len(wanted))
	for _, f := range wanted {
		queue <- f
	}
	close(queue)
	t.Run("at once", func(t *testing.T) {
		for i := range worlds {
			t.Run(fmt.Sprint("cluster ", i), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				defer w.LogDiagnostics(t)
				meshtest.Within(t, patience, func() error { return w.well(t.Context()) })
				for f := range queue {
					if !t.Run(f.number, func(t *testing.T) { w.suffers(t, f) }) {
						if err := w.well(t.Context()); err != nil {
							t.Fatalf("the next faults would be told beside this one: %v", err)
						}
					}
				}
			})
		}
	})
	if *report == "" || t.Failed() || len(wanted) < len(faults) {
		return
	}
	errtest.Must(t, os.WriteFile(*report, written(t), 0o644))
}

// namesGroup reports whether an object of Calico's, which differs between the API groups, is part of a fault.
func (f *fault) namesGroup() bool { return strings.Contains(fmt.Sprint(*f), string(groups.V1)) }

// TestReport: docs/faults.csv has the contents of the table. `make faults` writes it, once all of it has come true.
func TestReport(t *testing.T) {
	got, err := os.ReadFile(filepath.Join(labtest.Root(), "docs/faults.csv"))
	errtest.Must(t, err)
	difftest.Want(t, "docs/faults.csv", string(written(t)), string(got))
}

// written is the report.
func written(t *testing.T) []byte {
	t.Helper()
	rows := [][]string{{"Number", "Fault", "Injected by", "Told where", "In which words", "Heals by itself", "Packets of pods"}}
	for _, f := range faults {
		rows = append(rows, f.lines()...)
	}
	var b bytes.Buffer
	errtest.Must(t, csv.NewWriter(&b).WriteAll(rows))
	return b.Bytes()
}

// lines returns the lines of a fault in the report, one for each place where it is reported.
func (f *fault) lines() (all [][]string) {
	var injected []string
	for _, s := range f.inject {
		if text := s.brief(); text != "" {
			injected = append(injected, text)
		}
	}
	add := func(where string, one told) {
		all = append(all, []string{f.number, f.what, strings.Join(injected, "; "), where, one.said(),
			map[bool]string{true: "yes", false: "no"}[len(f.undo) == 0], string(f.traffic)})
	}
	for _, one := range f.told {
		add(one.place(), one)
	}
	for _, one := range f.after {
		add(one.place()+", once the fault has ended", one)
	}
	return all
}

// suffers makes one fault.
func (w *world) suffers(t *testing.T, f fault) {
	streams := meshtest.StartTraffic(t, w.pods["node1"], w.pods["node2"])
	began := time.Now()
	healed := false
	defer func() { // the next fault begins with a cluster that is well
		if healed {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, s := range f.undo {
			if err := w.do(ctx, s); err != nil {
				t.Errorf("undo: %v", err)
			}
		}
		for err := w.well(ctx); err != nil && ctx.Err() == nil; err = w.well(ctx) {
		}
	}()
	for _, s := range f.inject {
		w.must(t, s)
	}
	hear := func(all []told) {
		for _, one := range all {
			meshtest.Within(t, patience, func() error { return one.by(t.Context(), w, began) })
			t.Logf("after %v: %s: %s", time.Since(began).Round(100*time.Millisecond), one.place(), w.InGroupText(one.said()))
		}
	}
	hear(f.told)
	if len(f.undo)+len(f.checks) > 0 {
		w.blamesNothingElse(t, f)
	}
	for _, s := range f.undo {
		w.must(t, s)
	}
	hear(f.after)
	meshtest.Within(t, patience, func() error { return w.well(t.Context()) })
	healed = true
	t.Logf("well after %v", time.Since(began).Round(100*time.Millisecond))
	f.traffic.holds(t, streams)
}

func (w *world) must(t *testing.T, s step) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := w.do(ctx, s)
	errtest.Must(t, err)
}

// blamesNothingElse fails the test if `node diagnose` names a cause that is none.
func (w *world) blamesNothingElse(t *testing.T, f fault) {
	t.Helper()
	for _, node := range nodes {
		var d nodestatus.Diagnosis
		meshtest.Within(t, patience, func() (err error) { // an upgrade may end the pod that answers
			d, err = w.diagnose(t.Context(), node)
			return err
		})
		for _, o := range d.Findings {
			if o.Level != nodestatus.OK && !slices.Contains(f.checks, o.Check) {
				t.Errorf("%s blames what is not the cause: %s", node, inWords(o))
			}
		}
	}
}

// holds ends the streams, and fails the test unless they lost what the fault takes. After it they must have gone on.
func (want traffic) holds(t *testing.T, streams meshtest.Traffic) {
	t.Helper()
	if want == kept {
		streams.Intact(t)
		return
	}
	arrived := func() (n []int) {
		for _, s := range streams {
			n = append(n, s.Arrived())
		}
		return n
	}
	before, lost := arrived(), 0
	meshtest.Eventually(t, func() error {
		for i, n := range arrived() {
			if n == before[i] {
				return fmt.Errorf("packets arrived: %d, and none since: the pods do not reach each other again", n)
			}
		}
		return nil
	})
	for _, s := range streams {
		c := s.End()
		t.Log(c)
		lost += c.Lost
	}
	if want == cut && lost == 0 {
		t.Error("no packet was lost: the fault was none")
	}
}
