// Package node is the program node: the agent of a node. It announces the node's blocks by BGP, learns other nodes'
// blocks, and programs tunnels, routes, NAT and policies. With the argument status, peers or routes it requests the
// state of the running agent and prints it; with policy it explains which connections policies allow, with diagnose it
// searches for problems, with rotate it makes the agent change WireGuard's keys, and with cleanup it hands a node over
// to Calico.
package node

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/agent"
	"github.com/tortie-net/tortie/internal/agent/diagnose"
	"github.com/tortie-net/tortie/internal/agent/flows"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/agent/policyview"
	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/memlimit"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/takeover"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/program"
)

// Main runs the program with its arguments, without its name, and returns the exit code. A program that calls it must
// be built with //go:debug multipathtcp=0 in its main package.
func Main(args []string) int {
	return program.Run("node", func(ctx context.Context) error {
		return run(ctx, args, config.OS(), nodestatus.Output{Out: os.Stdout, Err: os.Stderr})
	})
}

func run(ctx context.Context, args []string, env config.Env, out nodestatus.Output) error {
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	flags.SetOutput(out.Err)
	flags.Usage = func() { usage(flags) }
	showVersion := flags.Bool("v", false, "print the version and exit")
	flags.BoolVar(showVersion, "version", false, "the same")
	if err := nodestatus.Parse(flags, args); err != nil {
		return err
	}
	if flags.Arg(0) == "help" { // help COMMAND is COMMAND -h
		if args = append(flags.Args()[1:min(2, flags.NArg())], "-h"); flags.NArg() == 1 {
			flags.SetOutput(out.Out)
		}
		if err := nodestatus.Parse(flags, args); err != nil {
			return err
		}
	}
	switch {
	case *showVersion, flags.Arg(0) == "version":
		_, err := fmt.Fprintln(out.Out, version.About("node"))
		return err
	case flags.NArg() == 0:
		return runAgent(ctx, env, out.Err)
	case flags.Arg(0) == diagnose.Command, flags.Arg(0) == cleanupCommand:
		settings, err := config.LoadDiagnose(env)
		if err != nil {
			return err
		}
		command := diagnose.Main
		if flags.Arg(0) == cleanupCommand {
			command = cleanup
		}
		return command(ctx, flags.Args()[1:], settings, out)
	case flags.Arg(0) == policyview.Command:
		return policyview.Main(ctx, flags.Args()[1:], config.LoadPolicyView(env), out)
	case flags.Arg(0) == rotateCommand:
		return rotate(flags.Args()[1:], env, out)
	case flags.Arg(0) != flows.Command && !slices.Contains(nodestatus.Commands(), flags.Arg(0)):
		return nodestatus.Usagef(
			"unknown command %q: there are %s; without a command node is the agent, whose settings come from the environment", flags.Arg(0),
			strings.Join(append(nodestatus.Commands(), flows.Command, policyview.Command, diagnose.Command, rotateCommand, cleanupCommand), ", "))
	}
	address, err := config.LoadHealthAddr(env)
	if err != nil {
		return err
	}
	if flags.Arg(0) == flows.Command {
		return flows.Main(ctx, flags.Args()[1:], address, out)
	}
	return nodestatus.Run(ctx, flags.Args(), address, out)
}

func usage(flags *flag.FlagSet) {
	w := flags.Output()
	fmt.Fprint(w, "usage: node [-v]\n       node COMMAND [-o text|json|yaml] [-address HOST:PORT] [ARGUMENT]\n       node help [COMMAND], "+
		"node COMMAND -h\n       node version\n\nWithout a command node is the agent. The commands ask the agent of this node:\n")
	for _, name := range nodestatus.Commands() {
		fmt.Fprintf(w, "  %-8s %s\n", name, nodestatus.Help(name))
	}
	fmt.Fprintf(w, "  %-8s %s\n", flows.Command, flows.Help)
	fmt.Fprintf(w, "  %-8s %s\n  %-8s %s\n  %-8s %s\n  %-8s %s\n", policyview.Command, policyview.Help, diagnose.Command, diagnose.Help,
		rotateCommand, rotateHelp, cleanupCommand, cleanupHelp)
	fmt.Fprint(w, "\nExit codes: 0; 1: no answer, or a problem was found; 2: wrong arguments.\n\n")
	flags.PrintDefaults()
}

// runAgent runs the agent until ctx ends.
func runAgent(ctx context.Context, env config.Env, stderr io.Writer) error {
	cfg, err := config.LoadNode(env)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	log.Info(version.About("node"), "node", cfg.Nodename, "state", cfg.StateDir, "sysctls", cfg.SysctlRoot, "protocol", cfg.RouteProtocol)
	memlimit.Follow(ctx, env, log)
	deps, err := open(cfg, log)
	if err != nil {
		return err
	}
	defer deps.Kernel.Close()
	return serve(ctx, deps)
}

// newStatus returns the agent's status, with the counters of its parts.
func newStatus(cfg config.Node, speaker bgp.Speaker, recorder *events.Recorder, packets *guard.Syncer, p policyParts) *agent.Status {
	status := agent.NewStatus(cfg.Nodename, time.Now(), speaker.Healthy)
	status.ShowEvents(recorder.Counts)
	status.ShowGuard(packets.Counters)
	status.ShowPolicies(p.worker, p.engine.Counters)
	if p.flows != nil {
		status.ShowFlows(p.flows)
	}
	status.ShowTraffic(speaker.Traffic, speaker.Totals, speaker.Told)
	status.ShowEnds(speaker.Ends().Of)
	if cfg.Metrics.PerPeer {
		status.ShowPeers()
	}
	return status
}

// open makes the agent's clients of the API server, the kernel and BGP. It makes no request.
func open(cfg config.Node, log *slog.Logger) (agent.Deps, error) {
	rest, err := cluster.Connect(cfg.Kubeconfig, "tortie-node")
	if err != nil {
		return agent.Deps{}, err
	}
	server := cluster.Finding(rest, cfg.APIGroup)
	store, err := cluster.OpenStore(server)
	if err != nil {
		return agent.Deps{}, err
	}
	watch, err := cluster.NewWatch(server, cfg.Nodename, cfg.Namespace, log)
	if err != nil {
		return agent.Deps{}, err
	}
	speaker, err := bgp.New(log.With("part", "bgp"), time.Now)
	if err != nil {
		return agent.Deps{}, err
	}
	kernel, err := netlinkx.Open()
	if err != nil {
		return agent.Deps{}, fmt.Errorf("open rtnetlink: %w: the agent needs CAP_NET_ADMIN", err)
	}
	table := nft.New(nil)
	recorder := events.New(store, events.Source{Component: "tortie-node", Host: cfg.Nodename}, server.Group, log)
	packets := guard.New(table)
	feed, err := cluster.NewPolicyFeed(server, cfg.Nodename, log)
	if err != nil {
		return agent.Deps{}, err
	}
	recorded, err := newFlows(cfg, feed, kernel, log)
	if err != nil {
		return agent.Deps{}, err
	}
	fast := flowtable.New(nil)
	policy := newPolicies(cfg, feed, agent.Dataplane{Kernel: kernel, NFT: table, Flowtable: fast}, recorded, log)
	if cfg.LockoutGuard {
		policy.worker.APIServer = guarded(cluster.Endpoints(rest), cluster.Answers(rest))
	}
	return agent.Deps{
		Dataplane: agent.Dataplane{
			Kernel: kernel,
			FIB: routes.New(kernel, routes.Options{
				Protocol: netlinkx.Protocol(cfg.RouteProtocol), TakeOver: takeover.Protocols,
				Devices: []string{ipip.Device, vxlan.Device4, vxlan.Device6},
			}),
			WireGuard: wireguard.New(kernel, netlinkx.Protocol(cfg.RouteProtocol), takeover.Protocols),
			Encap:     ipip.New(kernel), VXLAN: vxlan.New(kernel), NFT: table, NAT: nat.New(table), Guard: packets, Flowtable: fast,
		},
		Config: cfg, Log: log, Store: store, Watch: watch, Speaker: speaker, Status: newStatus(cfg, speaker, recorder, packets, policy),
		APIServer: cluster.Addresses(rest), Events: recorder, Policies: policy.worker, Pods: feed,
	}, nil
}

// policyParts are the parts that keep policies in force.
type policyParts struct {
	worker *policies.Worker
	engine *netpol.Engine
	flows  *flows.Recorder // nil: no flow records
}

// newFlows returns the recorder of flows, nil if it is disabled.
func newFlows(cfg config.Node, feed *cluster.PolicyFeed, kernel *netlinkx.Conn, log *slog.Logger) (*flows.Recorder, error) {
	if !cfg.Flows.Enabled || !cfg.Policy.Enforces() {
		return nil, nil
	}
	if err := feed.WatchStaged(); err != nil {
		return nil, err
	}
	o := flows.Options{Node: cfg.Nodename, Interval: cfg.Flows.Interval(), Kernel: kernel, Sysctls: sysctl.Root(cfg.SysctlRoot),
		Log: log.With("part", "flows")}
	if cfg.Flows.File != "" {
		o.File = &flows.File{Path: cfg.Flows.File, Size: int64(cfg.Flows.FileSize) << 20, Old: cfg.Flows.OldFiles}
	}
	return flows.New(o), nil
}

// askTime bounds one try to reach the API server.
const askTime = 5 * time.Second

// guarded returns the API server's addresses and probe for the lockout guard.
func guarded(addresses []netip.AddrPort, answers func(context.Context, *net.Dialer) error) *policies.APIServer {
	return &policies.APIServer{Addresses: addresses, Patience: policies.LockoutPatience, Answers: func(ctx context.Context, judged bool) bool {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		var dialer net.Dialer
		if judged {
			dialer.Control = netpol.AskJudgement
		}
		return answers(ctx, &dialer) == nil
	}}
}

func newPolicies(cfg config.Node, feed *cluster.PolicyFeed, plane agent.Dataplane, recorded *flows.Recorder, log *slog.Logger) policyParts {
	engine := netpol.New(nil, podnet.DefaultVethPrefix)
	o := policies.Options{
		Mode: cfg.Policy, KeepConnections: cfg.KeepConnections, FelixGoes: cfg.RemoveRules, ConfDir: cniconf.Dir,
		Feed: feed, Engine: engine, Kernel: plane.Kernel, Table: plane.NFT, Flowtable: plane.Flowtable, Log: log.With("part", "policy"),
		Drops: func(ctx context.Context) (<-chan netpol.Drop, error) { return netpol.Drops(ctx, nil) },
	}
	if recorded != nil {
		o.Flows = recorded
	}
	return policyParts{policies.New(o), engine, recorded}
}

// serve runs the agent and its HTTP server until ctx ends or one of them fails.
func serve(ctx context.Context, deps agent.Deps) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return deps.Status.Serve(ctx, deps.Config.HealthAddr, deps.Log) })
	if addr := deps.Config.Metrics.Addr; addr != "" {
		g.Go(func() error { return deps.Status.ServeMetrics(ctx, addr, deps.Log) })
	}
	g.Go(func() error { return agent.NewAgent(deps).Run(ctx) })
	err := g.Wait()
	if err == nil {
		deps.Log.Info("shutting down; routes, addresses and rules stay for the next agent")
	}
	return err
}
