// Since Go 1.24 listeners are Multipath TCP, on which the kernel refuses what BGP needs: a TTL and MD5 keys.
//go:debug multipathtcp=0

// Command node is the agent that runs on every node: it announces the node's blocks by BGP, learns the others', and
// programs tunnel, routes and NAT.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/encap"
	"github.com/tortie-net/tortie/internal/fib"
	"github.com/tortie-net/tortie/internal/kube"
	"github.com/tortie-net/tortie/internal/nat"
	"github.com/tortie-net/tortie/internal/netlinkx"
	"github.com/tortie-net/tortie/internal/node"
	"github.com/tortie-net/tortie/internal/version"
)

// takeOver are the route protocols of BIRD and Felix: a node may have run Calico before.
var takeOver = []netlinkx.Protocol{12, 80}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], config.OS(), os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "node: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, env config.Env, stderr io.Writer) error {
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	flags.SetOutput(stderr)
	showVersion := flags.Bool("v", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: settings come from the environment", flags.Arg(0))
	}
	if *showVersion {
		fmt.Println(version.About("node"))
		return nil
	}
	cfg, err := config.LoadNode(env)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	log.Info(version.About("node"), "node", cfg.Nodename, "state", cfg.StateDir, "sysctls", cfg.SysctlRoot, "protocol", cfg.RouteProtocol)
	deps, err := open(cfg, log)
	if err != nil {
		return err
	}
	defer deps.Kernel.Close()
	return serve(ctx, deps)
}

// open makes the agent's doors to the API server, the kernel and BGP. No request is made yet.
func open(cfg config.Node, log *slog.Logger) (node.Deps, error) {
	rest, err := kube.Connect(cfg.Kubeconfig, "tortie-node")
	if err != nil {
		return node.Deps{}, err
	}
	store, err := kube.OpenStore(rest)
	if err != nil {
		return node.Deps{}, err
	}
	watch, err := kube.NewWatch(rest, cfg.Nodename, log)
	if err != nil {
		return node.Deps{}, err
	}
	speaker, err := bgp.New(log.With("part", "bgp"), time.Now)
	if err != nil {
		return node.Deps{}, err
	}
	kernel, err := netlinkx.Open()
	if err != nil {
		return node.Deps{}, fmt.Errorf("open rtnetlink: %w: the agent needs CAP_NET_ADMIN", err)
	}
	return node.Deps{
		Config:  cfg,
		Log:     log,
		Store:   store,
		Watch:   watch,
		Speaker: speaker,
		Kernel:  kernel,
		FIB:     fib.New(kernel, fib.Options{Protocol: netlinkx.Protocol(cfg.RouteProtocol), TakeOver: takeOver}),
		Encap:   encap.New(kernel),
		NAT:     nat.New(),
		Status:  node.NewStatus(cfg.Nodename, time.Now(), speaker.Healthy),
	}, nil
}

// serve runs the agent and its HTTP server until ctx ends or one of them fails.
func serve(ctx context.Context, deps node.Deps) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return deps.Status.Serve(ctx, deps.Config.HealthAddr, deps.Log) })
	g.Go(func() error { return node.NewAgent(deps).Run(ctx) })
	err := g.Wait()
	if err == nil {
		deps.Log.Info("told to end: routes, addresses and rules stay for the next agent")
	}
	return err
}
