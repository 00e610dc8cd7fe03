package diagnose

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// Command is the command's name, Help its description.
const (
	Command = "diagnose"
	Help    = "check this node and the paths to its peers, with remedies"
)

// runTime bounds a diagnosis.
const runTime = 25 * time.Second

// Main runs the command with its arguments. It fails, after writing the result, if a check has found a problem.
func Main(ctx context.Context, args []string, settings config.Diagnose, out nodestatus.Output) error {
	flags := flag.NewFlagSet("node "+Command, flag.ContinueOnError)
	flags.SetOutput(out.Err)
	flags.Usage = func() {
		fmt.Fprintf(out.Err, "usage: node %s [flags] [ADDRESS...]\n\nChecks this node and the paths to its peers, and says what to do. With "+
			"addresses, only these peers are probed.\nExample: node %s 10.0.0.7\nExit code 1: a problem was found, or no agent runs here.\n\n",
			Command, Command)
		flags.PrintDefaults()
	}
	format := flags.String("o", "text", "`format`: text or json")
	root := flags.String("root", "/", "`directory` where the host's file system is")
	address := flags.String("address", settings.HealthAddr,
		"`host:port` on which the agent serves /status; from FELIX_HEALTHHOST and FELIX_HEALTHPORT")
	if err := nodestatus.Parse(flags, args); err != nil {
		return err
	}
	opts := Options{
		Address: *address, Root: *root, Protocol: netlinkx.Protocol(settings.RouteProtocol), Settings: settings,
		Progress: func(text string) { fmt.Fprintln(out.Err, text+" ...") },
	}
	for _, arg := range flags.Args() {
		addr, err := netip.ParseAddr(arg)
		if err != nil {
			return nodestatus.Usagef("%q is no address: name peers by their addresses, such as 10.0.0.7 (node peers lists them)", arg)
		}
		opts.Only = append(opts.Only, addr.Unmap())
	}
	write, ok := map[string]func(*Result) error{
		"text": func(r *Result) error { return r.WriteText(out.Out) },
		"json": func(r *Result) error { return r.WriteJSON(out.Out) },
	}[*format]
	if !ok {
		return nodestatus.Usagef("-o %q: must be text or json", *format)
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	result, err := Run(ctx, opts)
	if err != nil {
		return err
	}
	if err := write(result); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	if n := result.Count(Problem); n > 0 {
		return fmt.Errorf("%d of %d checks found a problem", n, len(result.Findings))
	}
	return nil
}
