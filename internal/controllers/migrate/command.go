package migrate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"path"
	"text/tabwriter"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// Command is the name of the tool, Help its short description.
const (
	Command = "migrate"
	Help    = "move Calico's objects to the other API group (migrate -h)"
)

// LeaseName is the name of the Lease that allows one run at a time in a cluster, whatever POD_NAMESPACE says.
const LeaseName = "tortie-migrate"

const leaseNamespace = "kube-system"

// The exit codes.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitConflict = 3
)

const usage = `usage: kube-controllers migrate COMMAND

Moves Calico's objects between crd.projectcalico.org/v1 and projectcalico.org/v3, while pods run, in a cluster without
Calico's own programs. While it moves, no pod gets or frees an address.

  status              how far a move is, and which objects would be written
  start --to v1|v3    moves all objects, or resumes a move that was interrupted. Before it locks anything it tries each
                      create by a dry run
  abort               undoes a move that is not over
  finish --yes        removes the objects of the group that is not used any more, once the agents of all nodes have
                      answered in the other one; it names nodes that do not

The cluster is that of KUBECONFIG, or of the pod's own account, which needs an administrator's rights on both groups:
the account of the controllers has too few. POD_NAMESPACE is the release's namespace (kube-system). See docs/apigroups.md.

Exit codes: 0 done, 1 it could not be done, 2 the arguments are wrong, 3 objects are in the way: of
the target, or being deleted.
`

// Cluster is the cluster of a run.
type Cluster struct {
	// Stores has a Store for each group.
	Stores map[groups.Group]*kubernetes.Store
	// Namespace is the release's; Identity is unique.
	Namespace, Identity string
}

// Main runs the tool with its arguments, without its name, and returns the exit code. It opens the cluster after the
// arguments were parsed.
func Main(ctx context.Context, args []string, open func() (Cluster, error), out, errs io.Writer) int {
	run, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(errs, "kube-controllers migrate: %v\n\n%s", err, usage)
		return exitUsage
	}
	c, err := open()
	if err == nil {
		m := New(c.Stores, func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) })
		m.Namespace = c.Namespace
		err = run.on(ctx, m, c, out, errs)
	}
	if err != nil {
		fmt.Fprintf(errs, "kube-controllers migrate: %v\n", err)
	}
	switch {
	case errors.Is(err, ErrConflict):
		return exitConflict
	case err != nil:
		return exitError
	}
	return exitOK
}

// command is the parsed arguments.
type command struct {
	name string
	to   groups.Group
}

// parse reads the arguments. It returns flag.ErrHelp if they ask for help.
func parse(args []string) (command, error) {
	if len(args) == 0 {
		return command{}, errors.New("which command?")
	}
	c := command{name: args[0]}
	flags := flag.NewFlagSet(Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints
	to, yes := "", false
	switch c.name {
	case "-h", "-help", "--help", "help":
		return c, flag.ErrHelp
	case "start":
		flags.StringVar(&to, "to", "", "")
	case "finish":
		flags.BoolVar(&yes, "yes", false, "")
	case "status", "abort":
	default:
		return c, fmt.Errorf("there is no command %q", c.name)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return c, err
	}
	c.to = map[string]groups.Group{"v1": groups.V1, "v3": groups.V3}[to]
	switch {
	case flags.NArg() > 0:
		return c, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case c.name == "start" && c.to == "":
		return c, fmt.Errorf("start: --to %q: must be v1 or v3", to)
	case c.name == "finish" && !yes:
		return c, errors.New("finish deletes objects that agents may still use, and cannot be undone: say --yes")
	}
	return c, nil
}

// on carries out a command. All commands except status hold the Lease.
func (c command) on(ctx context.Context, m *Mover, cluster Cluster, out, errs io.Writer) error {
	switch c.name {
	case "status":
		return m.Status(ctx, out)
	case "start":
		return alone(ctx, cluster, errs, func(ctx context.Context) error { return m.Start(ctx, c.to) })
	case "abort":
		return alone(ctx, cluster, errs, m.Abort)
	}
	return alone(ctx, cluster, errs, m.Finish)
}

// alone calls do once this run holds the Lease. The context of do ends if the Lease is lost; do is called again, and
// resumes, when this run has it again.
func alone(ctx context.Context, c Cluster, errs io.Writer, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelWarn}))
	elector := controllers.NewElector(c.Stores[groups.V1], leaseNamespace, LeaseName, c.Identity, log)
	waiting := time.AfterFunc(2*time.Second, func() {
		fmt.Fprintf(errs, "waiting for Lease %s/%s, which another run has, or had until it was killed\n", leaseNamespace, LeaseName)
	})
	defer waiting.Stop()
	err := context.Canceled
	elector.Run(ctx, func(leading context.Context) {
		waiting.Stop()
		if err = do(leading); leading.Err() == nil {
			cancel()
		}
	})
	return err
}

// Status prints the phase of a move, and the number of objects of each kind.
func (m *Mover) Status(ctx context.Context, out io.Writer) error {
	s, _, err := m.read(ctx)
	if err != nil {
		return err
	}
	to := s.To
	switch s.phase {
	case idle:
		to = s.now.Other()
		fmt.Fprintf(out, "no move; the cluster uses %s\n", s.now)
	case moved:
		fmt.Fprintf(out, "moved to %s (move %s)\n", to, s.ID)
		return nil
	case switching:
		fmt.Fprintf(out, "%s: the move to %s (move %s) is copied: start --to %s ends it\n", s.phase, to, s.ID, path.Base(string(to)))
		return nil
	case unclear:
		fmt.Fprintf(out, "%s; programs that start use %s: %v\n", s.phase, s.now, s.doubt())
		return nil
	default:
		what := "a move"
		if s.Aborting {
			what = "an abort of the move"
		}
		fmt.Fprintf(out, "%s: %s to %s (move %s) is under way: start --to %s resumes the move, abort undoes it\n", s.phase, what, to, s.ID,
			path.Base(string(to)))
	}
	plans, err := m.plans(ctx, mark{To: to, ID: s.ID})
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tSOURCE\tTARGET\tEQUAL\tDUE\tCONFLICTS")
	for _, p := range plans {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\n", p.of.Kind, p.source, p.target, p.equal, p.due(), len(p.conflicts))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, c := range conflicts(plans) {
		fmt.Fprintln(out, "conflict:", c)
	}
	return nil
}
