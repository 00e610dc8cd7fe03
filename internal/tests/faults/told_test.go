package faults

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// step is a command: a line of shell on a node, or the arguments of kubectl or helm.
type step struct{ where, line string }

func (s step) String() string { return s.where + ": " + s.line }

// brief is the step for the report; empty for one that waits.
func (s step) brief() string {
	line, _, _ := strings.Cut(s.line, " --image=") // of a pod
	line = strings.NewReplacer(labtest.Root()+"/", "", "apply -f - <<END\n", "apply ", "\nEND", "").Replace(line)
	if strings.HasPrefix(line, "wait ") {
		return ""
	}
	return s.where + ": " + line
}

// told is one place where an operator reads of a fault. " ... " in a text stands for any text. Texts are written for
// crd.projectcalico.org/v1.
type told interface {
	// by returns nil if the report was made since the fault.
	by(ctx context.Context, w *world, since time.Time) error
	place() string
	said() string
}

// event is an Event of an object whose name begins so.
type event struct{ kind, name, reason, words string }

func (e event) place() string { return fmt.Sprintf("Event %s of %s %s", e.reason, e.kind, e.name) }
func (e event) said() string  { return e.words }

func (e event) by(ctx context.Context, w *world, since time.Time) error {
	all, err := w.events(ctx, since)
	if err != nil {
		return err
	}
	var seen []string
	for _, o := range all {
		about := o.InvolvedObject.Kind == e.kind && strings.HasPrefix(o.InvolvedObject.Name, e.name)
		if about && o.Reason == e.reason && contains(o.Message, w.InGroupText(e.words)) {
			return nil
		}
		if about {
			seen = append(seen, o.Reason+": "+o.Message)
		}
	}
	return fmt.Errorf("no %s with %q, but %q", e.place(), e.words, seen)
}

// finding is one of `node diagnose`, and its remedy.
type finding struct {
	node, check string
	level       nodestatus.Level
	seen, do    string
}

func (f finding) place() string { return "node diagnose on " + f.node + ", " + f.check }
func (f finding) said() string  { return f.seen + "; " + f.do }

func (f finding) by(ctx context.Context, w *world, _ time.Time) error {
	d, err := w.diagnose(ctx, f.node)
	if err != nil {
		return err
	}
	var seen []string
	for _, o := range d.Findings {
		if o.Check == f.check && o.Level == f.level && contains(o.Seen, w.InGroupText(f.seen)) && contains(o.Do, w.InGroupText(f.do)) {
			return nil
		}
		if o.Level != nodestatus.OK {
			seen = append(seen, inWords(o))
		}
	}
	return fmt.Errorf("%s: no %s with %q and %q, but %q", f.place(), f.level, f.seen, f.do, seen)
}

// line is one of `node status`.
type line struct{ node, words string }

func (l line) place() string { return "node status on " + l.node }
func (l line) said() string  { return l.words }

func (l line) by(ctx context.Context, w *world, _ time.Time) error {
	out, err := w.ask(ctx, l.node, "status")
	if err != nil {
		return err
	}
	for text := range strings.Lines(out) {
		if contains(text, w.InGroupText(l.words)) {
			return nil
		}
	}
	return fmt.Errorf("%s: no line with %q: %s", l.place(), l.words, out)
}
