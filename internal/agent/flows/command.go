package flows

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// Command is the name of the command, Help a short description.
const (
	Command = "flows"
	Help    = "which connections of this node's pods were allowed and denied, and by which policies; -f: and those that come"
)

const usage = `usage: node flows [flags] [NAMESPACE[/POD]]

The connections of this node's pods in the last minutes, added up by pods of the same owner, port and deciding policy; with an argument
those from or to a namespace, or pods whose names begin so. TORTIE_FLOWS of the agent must be true.
Example: node flows -denied shop/web

`

// followPause is the pause between requests for new records.
const followPause = time.Second

// asked holds the arguments of one `node flows`.
type asked struct {
	address, format        string
	follow, denied, staged bool
	namespace, pod         string
}

// Main runs the command with the arguments after its name, against the agent at address.
func Main(ctx context.Context, args []string, address string, out nodestatus.Output) error {
	a := asked{address: address}
	if err := a.parse(args, out.Err); err != nil {
		return err
	}
	write := a.text(out.Out)
	if a.format == "json" {
		encoder := json.NewEncoder(out.Out)
		write = func(r *Record) error { return encoder.Encode(r) }
	}
	for after := uint64(0); ; {
		var answer Answer
		if err := a.ask(ctx, after, &answer); err != nil {
			return err
		}
		for i := range answer.Records {
			if r := &answer.Records[i]; a.wants(r) {
				if err := write(r); err != nil {
					return fmt.Errorf("write the answer: %w", err)
				}
			}
		}
		after = answer.Next
		if len(answer.Records) == mostServed {
			continue
		}
		if !a.follow || !wait.Sleep(ctx, followPause) {
			return nil
		}
	}
}

func (a *asked) ask(ctx context.Context, after uint64, answer *Answer) error {
	err := nodestatus.Ask(ctx, a.address, fmt.Sprintf("%s?after=%d", Path, after), answer)
	var refused *nodestatus.RefusedError
	if errors.As(err, &refused) && refused.Code == http.StatusNotFound {
		// Only an agent answers /status; else err stands: another program has the port.
		if _, agent := nodestatus.Fetch(ctx, a.address); agent == nil {
			return fmt.Errorf("the agent on %s records no flows: set the chart's policy.flows.enabled (TORTIE_FLOWS), and policy.enabled", a.address)
		}
	}
	return err
}

// parse reads flags before and after the argument.
func (a *asked) parse(args []string, w io.Writer) error {
	flags := flag.NewFlagSet("node "+Command, flag.ContinueOnError)
	flags.SetOutput(w)
	flags.Usage = func() { fmt.Fprint(w, usage); flags.PrintDefaults() }
	flags.StringVar(&a.format, "o", "text", "`format`: text, or json: a line for each record")
	flags.StringVar(&a.address, "address", a.address,
		"`host:port` on which the agent serves "+Path+"; from FELIX_HEALTHHOST and FELIX_HEALTHPORT")
	flags.BoolVar(&a.follow, "f", false, "go on with the records that come")
	flags.BoolVar(&a.denied, "denied", false, "only what was denied")
	flags.BoolVar(&a.staged, "staged", false, "only what staged policies would change")
	if err := nodestatus.Parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		a.namespace, a.pod, _ = strings.Cut(flags.Arg(0), "/")
		if err := nodestatus.Parse(flags, flags.Args()[1:]); err != nil {
			return err
		}
	}
	switch {
	case flags.NArg() > 0:
		return nodestatus.Usagef("unexpected argument %q: node flows takes one", flags.Arg(0))
	case a.format != "text" && a.format != "json":
		return nodestatus.Usagef("-o %q: must be text or json", a.format)
	}
	return nil
}

func (a *asked) wants(r *Record) bool {
	is := func(e RecordEnd) bool {
		return a.namespace == "" || e.Namespace == a.namespace && strings.HasPrefix(e.Name, a.pod)
	}
	return (is(r.Source) || is(r.Dest)) && (!a.denied || r.Action == Action(false)) && (!a.staged || r.Policies.Action != "")
}

// text returns a function that writes records for people: a head first, then a line per record.
func (a *asked) text(w io.Writer) func(*Record) error {
	const columns = "%-8s  %-5s  %-7s  %-36s  %-44s  %5s  %9s  %9s  %s\n"
	headed := false
	return func(r *Record) error {
		if !headed {
			if _, err := fmt.Fprintf(w, columns, "TIME", "", "SIDE", "FROM", "TO", "CONNS", "SENT", "RECEIVED", "BY"); err != nil {
				return err
			}
			headed = true
		}
		_, err := fmt.Fprintf(w, columns, time.Unix(r.End, 0).UTC().Format(time.TimeOnly), r.Action, r.side(), r.Source, r.to(),
			fmt.Sprint(r.Flows), size(r.OutBytes), size(r.InBytes), r.by())
		return err
	}
}

// side returns the direction of the policies that decided.
func (r *Record) side() string {
	if r.Reporter == "src" {
		return "egress"
	}
	return "ingress"
}

func (r *Record) to() string {
	if r.Port == 0 {
		return fmt.Sprintf("%s/%s", r.Dest, strings.ToUpper(r.Protocol))
	}
	return fmt.Sprintf("%s:%d/%s", r.Dest, r.Port, strings.ToUpper(r.Protocol))
}

// by returns the deciding rule, and what staged policies would do.
func (r *Record) by() string {
	text := decider(r.Policies.Enforced)
	if r.Policies.Action != "" {
		text += fmt.Sprintf("; staged: %s, %s", r.Policies.Action, decider(r.Policies.Pending))
	}
	return text
}

// size formats a number of bytes for people.
func size(n uint64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if n < 10000 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%d TB", n)
}
