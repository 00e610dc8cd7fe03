package ipamtool

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

var checkCommand = command{
	name: "check", help: "look for leaks, and for addresses that may be given twice", args: "[-fix [-yes]] [-again 5s] [-o text|json]",
	text: `
Looks at every pool, block, claim, handle, pod and tunnel, and says what does not fit: what calicoctl ipam check finds, and
claims, counts of handles, blocks that overlap, pods with one address and tunnels of IPv6 besides.

The cluster may run. What is found is looked at once more after a pause, and is reported if it has not changed: a pod that is
just being started is no leak. With -fix it says what it would do about it, and does nothing; with -fix -yes it does it. Each
write looks at the pod and its address once more before, and lands only if nobody has touched them since. What was assigned
less than two minutes ago is left alone, as its pod may be starting. Leaks go by themselves, too, after the grace period of
the controllers: -fix is for those who cannot wait.

  note    usual in a cluster that works, if it does not last     exit code 0
  leak    kept for nobody: pods lose nothing but room            exit code 3
  danger  an address may be given twice, or a part is broken     exit code 4`,
}

func init() { checkCommand.run = (*tool).check }

func (t *tool) check(ctx context.Context, args []string) (int, error) {
	flags := t.lookFlagsOf(checkCommand)
	fix := flags.Bool("fix", false, "say what would be done about it; with -yes, do it")
	yes := flags.Bool("yes", false, "with -fix: do it")
	switch err := flags.parse(args); {
	case err != nil:
		return exitUsage, err
	case *yes && !*fix:
		return exitUsage, fmt.Errorf("%w: -yes goes with -fix", errUsage)
	case *fix && flags.again <= 0:
		return exitUsage, fmt.Errorf("%w: -fix needs a second look: -again must be more than 0", errUsage)
	}
	looks, err := t.look(ctx, flags.again)
	if err != nil {
		return exitError, err
	}
	if err := looks.write(t, flags.asJSON); err != nil {
		return exitError, err
	}
	if *fix {
		return t.fix(ctx, looks, *yes)
	}
	return code(looks.Findings), nil
}

// lookFlags are the flags of a command that checks the whole cluster.
type lookFlags struct {
	*flag.FlagSet
	again  time.Duration
	output string
	asJSON bool // once they are parsed
}

func (t *tool) lookFlagsOf(c command) *lookFlags {
	f := &lookFlags{FlagSet: t.flagsOf(c)}
	f.StringVar(&f.output, "o", "text", "`format`: text or json")
	f.DurationVar(&f.again, "again", 5*time.Second, "`pause` before the second look; 0: report what one look shows")
	return f
}

// parse parses the arguments, which are flags only.
func (f *lookFlags) parse(args []string) error {
	rest, err := parse(f.FlagSet, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: unexpected argument %q: the whole cluster is looked at", errUsage, rest[0])
	}
	f.asJSON, err = format(f.output)
	return err
}

// looks has the findings, and the two views that they rest on: the same one twice if one was enough.
type looks struct {
	first, last *inventory.View
	Findings    []audit.Finding `json:"findings"`
}

// look checks the cluster, and again if there are findings, and keeps those that have not changed.
func (t *tool) look(ctx context.Context, again time.Duration) (*looks, error) {
	v, err := t.read(ctx)
	if err != nil {
		return nil, err
	}
	found := &looks{first: v, last: v, Findings: audit.Check(v)}
	if len(found.Findings) == 0 || again <= 0 {
		return found, nil
	}
	if err := t.pause(ctx, again); err != nil {
		return nil, err
	}
	if found.last, err = t.read(ctx); err != nil {
		return nil, err
	}
	found.Findings = audit.Persisting(found.Findings, audit.Check(found.last))
	return found, nil
}

func (l *looks) write(t *tool, asJSON bool) error {
	if asJSON {
		if l.Findings == nil {
			l.Findings = []audit.Finding{}
		}
		return writeJSON(t.Out, l)
	}
	if err := writeFindings(t, l.Findings); err != nil {
		return err
	}
	_, err := fmt.Fprintln(t.Out, l.summary())
	return err
}

// writeFindings writes a table, and below it the advice for findings without a fix.
func writeFindings(t *tool, findings []audit.Finding) error {
	if len(findings) == 0 {
		return nil
	}
	rows := [][]string{{"GRADE", "WHAT", "OBJECT", "ADDRESS", "WHY", "FIX"}}
	advised := map[audit.Kind][]string{}
	for _, f := range findings {
		address, fix := "", string(f.Fix)
		if f.Address.IsValid() {
			address = f.Address.String()
		}
		if f.Fix == audit.ByHand {
			fix = "by hand"
			advised[f.Kind] = append(advised[f.Kind], f.Object)
		}
		rows = append(rows, []string{f.Grade.String(), string(f.Kind), f.Object, address, f.Detail, fix})
	}
	if err := table(t.Out, rows); err != nil {
		return err
	}
	said := map[audit.Kind]bool{}
	for _, f := range findings {
		if f.Advice == "" || f.Fix != audit.ByHand || said[f.Kind] {
			continue
		}
		said[f.Kind] = true
		fmt.Fprintf(t.Out, "\n%s (%s): %s.\n  %s\n", f.Kind, f.Kind.Explain(), f.Advice, strings.Join(some(advised[f.Kind]), ", "))
	}
	fmt.Fprintln(t.Out)
	return nil
}

// some shortens a list.
func some(names []string) []string {
	const limit = 5
	if len(names) <= limit {
		return names
	}
	return append(names[:limit:limit], fmt.Sprintf("and %d more", len(names)-limit))
}

// summary returns a line with the numbers of checked objects and findings.
func (l *looks) summary() string {
	held := 0
	for i := range l.last.Blocks {
		for j := range l.last.Blocks[i].Allocations {
			if !l.last.Blocks[i].Allocations[j].Cooling() {
				held++
			}
		}
	}
	graded := map[audit.Grade]int{}
	for _, f := range l.Findings {
		graded[f.Grade]++
	}
	verdict := "nothing is wrong"
	if len(l.Findings) > 0 {
		verdict = fmt.Sprintf("%s, %s, %s", number(graded[audit.Danger], "danger", "dangers"), number(graded[audit.Leak], "leak", "leaks"),
			number(graded[audit.Note], "note", "notes"))
	}
	v := l.last
	return fmt.Sprintf("%s: %d addresses held in %d blocks of %d pools, %d handles, %d claims, %d nodes, %d pods",
		verdict, held, len(v.Blocks), len(v.Pools), len(v.Handles), len(v.Affinities), len(v.Nodes), len(v.Pods))
}

// code returns the exit code for findings.
func code(findings []audit.Finding) int {
	worst, any := audit.Worst(findings)
	switch {
	case any && worst == audit.Danger:
		return exitDanger
	case any && worst == audit.Leak:
		return exitLeak
	}
	return exitOK
}
