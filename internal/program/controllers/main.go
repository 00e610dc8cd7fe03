// Package controllers is the program kube-controllers: the cluster-wide part of IPAM. With the argument ipam it is the
// tool for addresses, with migrate the tool for the API groups; with -r or -l it probes the running controllers.
package controllers

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/memlimit"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/controllers/ipamtool"
	"github.com/tortie-net/tortie/internal/controllers/migrate"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/program"
)

const name = "kube-controllers"

// Main runs the program with its arguments, without its name, and returns the exit code.
func Main(args []string) int {
	if len(args) > 0 && args[0] == ipamtool.Command {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		open := func(ctx context.Context) (inventory.Source, error) { return openSource(ctx, config.OS()) }
		return ipamtool.Main(ctx, args[1:], open, ipamtool.Output{Out: os.Stdout, Err: os.Stderr})
	}
	if len(args) > 0 && args[0] == migrate.Command {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		open := func() (migrate.Cluster, error) { return openBoth(config.OS()) }
		return migrate.Main(ctx, args[1:], open, os.Stdout, os.Stderr)
	}
	return program.Run(name, func(ctx context.Context) error { return run(ctx, args, config.OS(), os.Stdout, os.Stderr) })
}

func run(ctx context.Context, args []string, env config.Env, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: %[1]s [-v|-r|-l]\n       %[1]s %[2]s COMMAND: %[3]s\n       %[1]s %[4]s COMMAND: %[5]s\n\n"+
			"Without arguments it is the controllers, whose settings come from the environment.\n\n",
			name, ipamtool.Command, ipamtool.Help, migrate.Command, migrate.Help)
		flags.PrintDefaults()
	}
	showVersion := flags.Bool("v", false, "print the version and exit")
	ready := flags.Bool("r", false, "ask the controllers that run in this container whether they are ready")
	alive := flags.Bool("l", false, "ask them whether they are alive")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		flags.Usage()
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	case *showVersion:
		_, err := fmt.Fprintln(stdout, version.About(name))
		return err
	case *ready:
		return ask(ctx, env, "/readyz")
	case *alive:
		return ask(ctx, env, "/livez")
	}
	return runControllers(ctx, env, stderr)
}

// askTime bounds a probe.
const askTime = 5 * time.Second

// ask probes the running controllers; path is /readyz or /livez.
func ask(ctx context.Context, env config.Env, path string) error {
	address, err := config.LoadControllersAddress(env)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	return nil
}

// runControllers runs the controllers until ctx ends.
func runControllers(ctx context.Context, env config.Env, stderr io.Writer) error {
	cfg, err := config.LoadControllers(env)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	if cfg.Identity == "" {
		cfg.Identity, _ = os.Hostname() // without one the random part suffices
	}
	identity := identity(cfg.Identity)
	log.Info(version.About(name), "identity", identity, "etcd", cfg.Etcd)
	if len(cfg.Ignored) > 0 {
		log.Warn("these controllers of Calico's are not provided: what they do is left undone", "controllers", cfg.Ignored)
	}
	memlimit.Follow(ctx, env, log)
	deps, err := open(ctx, cfg, identity, log)
	if err != nil {
		return err
	}
	err = controllers.New(deps).Run(ctx)
	if err == nil {
		log.Info("shutting down")
	}
	return err
}

// noNode is no name of a node: the controllers follow no node's pods.
const noNode = "-"

// open makes the clients. It makes no request.
func open(ctx context.Context, cfg config.Controllers, identity string, log *slog.Logger) (controllers.Deps, error) {
	rest, err := cluster.Connect(cfg.Kubeconfig, "tortie-"+name)
	if err != nil {
		return controllers.Deps{}, err
	}
	server := cluster.Finding(rest, cfg.APIGroup)
	deps := controllers.Deps{Config: cfg, Log: log, Identity: identity, Group: server.Group}
	if deps.Store, err = cluster.OpenStore(server); err != nil {
		return controllers.Deps{}, err
	}
	if cfg.Etcd {
		store, err := openEtcd(ctx, cfg.Plugin)
		if err != nil {
			return controllers.Deps{}, err
		}
		deps.Etcd = store
	}
	if deps.Watch, err = cluster.NewInventory(server, !cfg.Etcd, log); err != nil {
		return controllers.Deps{}, err
	}
	if cfg.LoadBalancers && !cfg.Etcd {
		if deps.LoadBalancers, err = cluster.NewLoadBalancers(server, log); err != nil {
			return controllers.Deps{}, err
		}
	}
	if !cfg.Etcd {
		if deps.Configurations, err = cluster.NewConfigurations(server, log); err != nil {
			return controllers.Deps{}, err
		}
	}
	if cfg.NoPolicy {
		deps.Policies, err = cluster.NewPolicies(server, log)
	} else {
		if deps.PolicyFeed, err = cluster.NewPolicyFeed(server, noNode, log); err == nil {
			err = deps.PolicyFeed.WatchStaged()
		}
	}
	if err != nil {
		return controllers.Deps{}, err
	}
	deps.Events = events.New(deps.Store, events.Source{Component: "tortie-" + name, Host: cfg.Identity}, server.Group, log)
	return deps, nil
}

// identity returns a unique identity, also among earlier processes in the same pod.
func identity(pod string) string {
	return pod + "_" + strconv.FormatUint(rand.Uint64(), 36)
}
