package node

import (
	"flag"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/agent"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
)

const (
	rotateCommand = "rotate"
	rotateHelp    = "have the agent change WireGuard's keys; status says when the devices have new ones"
)

// rotate is the command node rotate.
func rotate(args []string, env config.Env, out nodestatus.Output) error {
	flags := flag.NewFlagSet("node "+rotateCommand, flag.ContinueOnError)
	flags.SetOutput(out.Err)
	flags.Usage = func() {
		fmt.Fprintf(out.Err, "usage: node %s\n\nAsks the agent of this node to change WireGuard's keys; no packet is lost. It takes no "+
			"arguments.\nExample: node %s; node status shows since when the keys are there\n", rotateCommand, rotateCommand)
	}
	if err := nodestatus.Parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return nodestatus.Usagef("%s: it takes no arguments, and has %q", rotateCommand, flags.Args())
	}
	dir, err := config.LoadStateDir(env)
	if err != nil {
		return err
	}
	if err := agent.AskRotation(dir, time.Now()); err != nil {
		return fmt.Errorf("ask the agent for new keys: %w", err)
	}
	_, err = fmt.Fprintln(out.Out, "asked; the agent begins within half a minute where WireGuard is on, once no other node changes its key")
	return err
}
