package nodestatus

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// view presents a Report: as text for people, and as data for programs.
type view struct {
	help string
	text func(*Report, io.Writer) error
	data func(*Report) any
	// arguments and example are parts of its usage.
	arguments, example string
	// pick reduces the report to an argument; nil: the command takes none.
	pick func(*Report, string) error
	// picked replaces text after pick, if set.
	picked func(*Report, io.Writer) error
}

var views = map[string]view{
	"status": {"address, tunnels, pools, blocks, peers and what is wrong", (*Report).WriteStatus, func(r *Report) any { return r }, "",
		"status -o json", nil, nil},
	"peers": {"the BGP sessions, or those of one peer, and why one is down", (*Report).WritePeers, func(r *Report) any { return r.Peers },
		" [ADDRESS|NODE|BGPPEER]", "peers node2", (*Report).PickPeers, (*Report).WritePicked},
	"routes": {"the routes, or those for an address, what is announced and what was refused", (*Report).WriteRoutes,
		func(r *Report) any { return RoutesAnswer{r.Routes, r.Announced} }, " [ADDRESS|RANGE]", "routes 192.168.1.7", (*Report).PickRoutes, nil},
}

// RoutesAnswer is the JSON of `node routes`.
type RoutesAnswer struct {
	Routes
	Announced []Announced `json:"announced"`
}

// Commands returns the names of the commands, in alphabetical order.
func Commands() []string { return slices.Sorted(maps.Keys(views)) }

// Help returns a command's short description.
func Help(command string) string { return views[command].help }

// Output is where a command writes: what was asked for, and its usage.
type Output struct{ Out, Err io.Writer }

// Run executes a command, the first of args, which must be one of Commands, against the agent at address unless a flag
// names another. It writes either the whole answer or nothing.
func Run(ctx context.Context, args []string, address string, out Output) error {
	flags := flag.NewFlagSet("node "+args[0], flag.ContinueOnError)
	flags.SetOutput(out.Err)
	v, ok := views[args[0]]
	if !ok {
		return Usagef("unknown command %q: there are %s", args[0], strings.Join(Commands(), ", "))
	}
	flags.Usage = func() {
		fmt.Fprintf(out.Err, "usage: node %s [flags]%s\n\nPrints %s. It asks the agent of this node.\nExample: node %s\n"+
			"Words and columns: docs/fields.csv, docs/node.md.\n\n", args[0], v.arguments, v.help, v.example)
		flags.PrintDefaults()
	}
	format := flags.String("o", "text", "`format`: text, json or yaml")
	flags.StringVar(&address, "address", address, "`host:port` on which the agent serves /status; from FELIX_HEALTHHOST and FELIX_HEALTHPORT")
	if err := Parse(flags, args[1:]); err != nil {
		return err
	}
	named, err := v.argument(args[0], flags)
	if err != nil {
		return err
	}
	if named != "" && v.picked != nil {
		v.text = v.picked
	}
	write, err := v.writer(*format)
	if err != nil {
		return err
	}
	report, err := Fetch(ctx, address)
	if err == nil && named != "" {
		err = v.pick(report, named)
	}
	if err != nil {
		return err
	}
	if err := write(report, out.Out); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// argument reads the one argument that some commands take, and flags after it.
func (v view) argument(command string, flags *flag.FlagSet) (string, error) {
	if flags.NArg() == 0 {
		return "", nil
	}
	named := flags.Arg(0)
	if err := Parse(flags, flags.Args()[1:]); err != nil {
		return "", err
	}
	switch {
	case v.pick == nil:
		return "", Usagef("unexpected argument %q: node %s takes only flags, -o and -address", named, command)
	case flags.NArg() > 0:
		return "", Usagef("unexpected argument %q: node %s takes one", flags.Arg(0), command)
	}
	return named, nil
}

// writer returns a function that writes a Report in a format.
func (v view) writer(format string) (func(*Report, io.Writer) error, error) {
	switch format {
	case "text":
		return v.text, nil
	case "json":
		return v.encoded(func(data any) ([]byte, error) {
			text, err := json.MarshalIndent(data, "", "  ")
			return append(text, '\n'), err
		}), nil
	case "yaml":
		return v.encoded(yaml.Marshal), nil
	}
	return nil, Usagef("-o %q: must be text, json or yaml", format)
}

func (v view) encoded(encode func(any) ([]byte, error)) func(*Report, io.Writer) error {
	return func(r *Report, w io.Writer) error {
		text, err := encode(v.data(r))
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
}
