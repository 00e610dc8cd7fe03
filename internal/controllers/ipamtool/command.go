package ipamtool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Command is the name of the tool, Help its short description.
const (
	Command = "ipam"
	Help    = "check, show and free the addresses of the cluster (ipam -h)"
)

// The exit codes. A check returns the code of its worst finding.
const (
	exitOK     = 0
	exitError  = 1 // the command failed
	exitUsage  = 2
	exitLeak   = 3 // an unused allocation, or a refusal
	exitDanger = 4 // an address may be assigned twice
)

// Output is where the tool writes: the result, and messages.
type Output struct{ Out, Err io.Writer }

// Open connects to the cluster. It is called once, after the arguments were parsed.
type Open func(context.Context) (inventory.Source, error)

// tool is one run of a command.
type tool struct {
	Output
	open   Open
	now    func() time.Time
	source inventory.Source
}

// command is a subcommand.
type command struct {
	name, args, help string
	text             string // its purpose and use
	run              func(*tool, context.Context, []string) (int, error)
}

var commands = []*command{&checkCommand, &showCommand, &auditCommand, &releaseCommand}

// errUsage means wrong arguments.
var errUsage = errors.New("usage")

// Main runs the tool with its arguments, without its name, and returns the exit code.
func Main(ctx context.Context, args []string, open Open, out Output) int {
	t := &tool{Output: out, open: open, now: time.Now}
	code, err := t.main(ctx, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintf(out.Err, "kube-controllers ipam: %v\n", err)
		return exitUsage
	case err != nil:
		fmt.Fprintf(out.Err, "kube-controllers ipam: %v\n", err)
		return exitError
	}
	return code
}

func (t *tool) main(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		t.usage(t.Err)
		return exitUsage, nil
	}
	if slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		t.usage(t.Out)
		return exitOK, nil
	}
	i := slices.IndexFunc(commands, func(c *command) bool { return c.name == args[0] })
	if i < 0 {
		return exitUsage, fmt.Errorf("%w: there is no command %q: there are check, show, audit and release", errUsage, args[0])
	}
	return commands[i].run(t, ctx, args[1:])
}

func (t *tool) usage(w io.Writer) {
	fmt.Fprint(w, `usage: kube-controllers ipam COMMAND [flags]

Looks after the addresses of the cluster, while it runs:

`)
	for _, c := range commands {
		fmt.Fprintf(w, "  %-8s %s\n", c.name, c.help)
	}
	fmt.Fprint(w, `
kube-controllers ipam COMMAND -h describes a command. The cluster is that of the controllers: KUBECONFIG, or the pod's own
account; DATASTORE_TYPE and the ETCD_ variables where IPAM lives in etcd.

Exit codes: 0 all is well, 1 it could not be done, 2 the arguments are wrong, 3 something is kept for nobody or was not
freed, 4 an address may be given twice.
`)
}

// flagsOf returns a command's flags.
func (t *tool) flagsOf(c command) *flag.FlagSet {
	flags := flag.NewFlagSet("kube-controllers ipam "+c.name, flag.ContinueOnError)
	flags.SetOutput(t.Err)
	flags.Usage = func() {
		fmt.Fprintf(t.Err, "usage: kube-controllers ipam %s\n\n%s\n\n", strings.TrimSpace(c.name+" "+c.args), strings.TrimSpace(c.text))
		flags.PrintDefaults()
	}
	return flags
}

// parse parses flags before and after the arguments, and returns the arguments.
func parse(flags *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, fmt.Errorf("%w: %w", errUsage, err)
		}
		if flags.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, flags.Arg(0)), flags.Args()[1:]
	}
}

// format parses the value of -o.
func format(value string) (asJSON bool, err error) {
	switch value {
	case "text":
		return false, nil
	case "json":
		return true, nil
	}
	return false, fmt.Errorf("%w: -o %q: must be text or json", errUsage, value)
}

// readTime bounds reading the cluster.
const readTime = 2 * time.Minute

// read reads the whole cluster. In a large cluster, where that takes a while, it prints a line.
func (t *tool) read(ctx context.Context) (*inventory.View, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if t.source.IPAM == nil {
		source, err := t.open(ctx)
		if err != nil {
			return nil, err
		}
		t.source = source
	}
	slow := time.AfterFunc(2*time.Second, func() { fmt.Fprintln(t.Err, "reading the cluster ...") })
	defer slow.Stop()
	v, err := inventory.Read(ctx, t.source, t.now)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// pause waits between two looks.
func (t *tool) pause(ctx context.Context, d time.Duration) error {
	if d >= 2*time.Second {
		fmt.Fprintf(t.Err, "something was found: looking again in %v, as the cluster is at work ...\n", d)
	}
	if !wait.Sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
