package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/takeover"
)

const (
	cleanupCommand = "cleanup"
	cleanupHelp    = "hand over to Calico what an agent that has ended left in the kernel, or remove it; cleanup calico: remove " +
		"the rules that Calico left"
	calicoRules = "calico"
)

// cleanup is the command node cleanup.
func cleanup(ctx context.Context, args []string, settings config.Diagnose, out nodestatus.Output) error {
	flags := flag.NewFlagSet("node "+cleanupCommand, flag.ContinueOnError)
	flags.SetOutput(out.Err)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: node %s [-dry-run] [-all]\n       node %s [-dry-run] %s\n\n%s\nExample: node cleanup -dry-run\n\n",
			cleanupCommand, cleanupCommand, calicoRules, cleanupAbout)
		flags.PrintDefaults()
	}
	dryRun := flags.Bool("dry-run", false, "only say what would be done")
	all := flags.Bool("all", false, "nothing takes the agent's place: remove all that it left, whatever still uses it")
	address := flags.String("address", settings.HealthAddr,
		"`host:port` on which an agent that still runs serves /status; from FELIX_HEALTHHOST and FELIX_HEALTHPORT")
	if err := nodestatus.Parse(flags, args); err != nil {
		return err
	}
	ofCalico := flags.NArg() == 1 && flags.Arg(0) == calicoRules
	if flags.NArg() > 0 && !ofCalico || ofCalico && *all {
		flags.Usage()
		return nodestatus.Usagef("%s: it takes no arguments but %s, which takes no -all", cleanupCommand, calicoRules)
	}
	kernel, err := netlinkx.Open()
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w: this takes CAP_NET_ADMIN", err)
	}
	defer kernel.Close()
	r, err := nodestatus.Fetch(ctx, *address)
	if ofCalico {
		if err == nil && slices.Contains(withoutPolicies, reasonOf(r)) {
			return fmt.Errorf("the agent of node %s does not enforce NetworkPolicies (%s), so that none would be in force without Felix's rules: "+
				"set TORTIE_REMOVE_CALICO_RULES=true, and the agent removes them once its own are in force", r.Node, reasonOf(r))
		}
		steps, err := takeover.RemoveRules(ctx, kernel, nft.New(nil), *dryRun)
		return tellSteps(out, steps, *dryRun, err)
	}
	if err == nil {
		return fmt.Errorf("the agent of node %s still runs, and would make anew what is removed: end it first (it answers on %s)",
			r.Node, *address)
	}
	steps, err := takeover.Handover{
		Kernel: kernel, Table: nft.New(nil), Protocol: netlinkx.Protocol(settings.RouteProtocol), All: *all, DryRun: *dryRun,
	}.Run(ctx)
	return tellSteps(out, steps, *dryRun, err)
}

// withoutPolicies are the reasons for which an agent does not enforce policies yet, but should once Felix's rules are
// gone.
var withoutPolicies = []string{"felix", "starting", "failing"}

func reasonOf(r *nodestatus.Report) string {
	if r.Policy == nil {
		return ""
	}
	return r.Policy.Reason
}

const cleanupAbout = `Run it on a node where the agent has ended. Routes are given to Calico's BIRD and Felix, by their protocol numbers: no
packet is lost, and they keep, change or remove them as they see fit. The agent's table of nftables goes when Felix has made its rules: run
it once more then. With -all everything goes at once.`

// tellSteps prints the steps that were done, or would be.
func tellSteps(out nodestatus.Output, steps []takeover.Step, dryRun bool, err error) error {
	begin := ""
	if dryRun {
		begin = "would "
	}
	for _, s := range steps {
		if _, printed := fmt.Fprintf(out.Out, "%s%s: %s\n", begin, s.What, s.About); printed != nil {
			return errors.Join(err, printed)
		}
	}
	if len(steps) == 0 && err == nil {
		_, err = fmt.Fprintln(out.Out, "there is nothing to do")
	}
	return err
}
