package node

import (
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

// rotate is the command of that name.
func rotate(args []string, env config.Env, out nodestatus.Output) error {
	if len(args) > 0 {
		return fmt.Errorf("%s: it takes no arguments, and has %q", rotateCommand, args)
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
