// Package install is the program install: it installs the CNI plugins and their configuration on the host and renews
// the plugins' token.
//
// It runs as a native sidecar of the agent's pod: an init container that keeps running. With -once it installs and
// exits. Its commands uninstall and rollback are for a node without an agent.
package install

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/install"
	"github.com/tortie-net/tortie/internal/program"
)

const (
	// lastWords is how long a failed installation tries to write its Event.
	lastWords      = 5 * time.Second
	lastWordsPause = 10 * time.Millisecond
)

// commands are the program's other operations on a host, besides installing.
var commands = map[string]func(context.Context, config.InstallHost, *slog.Logger) error{
	"uninstall": install.Uninstall,
	"rollback":  install.Rollback,
}

const usage = `usage: install [-once]     put the plugins and their configuration onto the host, and stay to renew their token
       install uninstall   remove them, and put back what they replaced
       install rollback    put back the network that they replaced, without a gap

Settings come from the environment: docs/install.md.

`

// Main runs the program with its arguments, without its name, and returns the exit code.
func Main(args []string) int {
	return program.Run("install", func(ctx context.Context) error { return run(ctx, args, config.OS(), os.Stderr) })
}

func run(ctx context.Context, args []string, env config.Env, stderr io.Writer) error {
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	once := flags.Bool("once", false, "install and exit, instead of staying to renew the token")
	showVersion := flags.Bool("v", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	command := commands[flags.Arg(0)]
	if flags.NArg() > 1 || flags.NArg() == 1 && command == nil {
		return fmt.Errorf("unexpected argument %q: the commands are uninstall and rollback, settings come from the environment",
			flags.Arg(flags.NArg()-1))
	}
	if *showVersion {
		fmt.Println(version.About("install"))
		return nil
	}
	if command != nil {
		return onHost(ctx, command, env, stderr)
	}
	cfg, err := config.LoadInstall(env)
	if err != nil {
		return err
	}
	log, err := newLogger(stderr, cfg.LogLevel)
	if err != nil {
		return err
	}
	return installOn(ctx, cfg, *once || !cfg.Stay, log)
}

func onHost(ctx context.Context, command func(context.Context, config.InstallHost, *slog.Logger) error, env config.Env,
	stderr io.Writer) error {
	cfg, err := config.LoadInstallHost(env)
	if err != nil {
		return err
	}
	return command(ctx, cfg, slog.New(slog.NewTextHandler(stderr, nil)))
}

// installOn installs. It also reports its failure by an Event about the Node.
func installOn(ctx context.Context, cfg config.Install, once bool, log *slog.Logger) error {
	recorder, err := newRecorder(cfg, log)
	if err != nil {
		return err
	}
	ended, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() { _ = recorder.Run(ended) }() // never fails
	node := api.ObjectReference{APIVersion: "v1", Kind: "Node", Name: cfg.NodeName, UID: cfg.NodeName}
	warn := func(reason, text string) { recorder.Warn(node, reason, text) }
	past := func(reason, text string) { recorder.WarnOfPast(node, reason, text) }
	if err = work(ctx, cfg, once, warn, past, log); err != nil && ctx.Err() == nil {
		before := said(recorder)
		warn(install.EventFailed, err.Error())
		for end := time.Now().Add(lastWords); said(recorder) == before && time.Now().Before(end); {
			time.Sleep(lastWordsPause)
		}
	}
	return err
}

func work(ctx context.Context, cfg config.Install, once bool, warn, past func(reason, text string), log *slog.Logger) error {
	tokens, err := install.NewTokens(cfg, log)
	if err != nil {
		return err
	}
	metrics := install.NewMetrics()
	if cfg.MetricsAddr != "" {
		if err := metrics.Serve(ctx, cfg.MetricsAddr, log); err != nil {
			return err
		}
	}
	installer := install.New(cfg, install.Options{Tokens: tokens, Log: log, Warn: warn, Past: past, Metrics: metrics})
	if !once {
		return installer.Run(ctx)
	}
	if tokens != nil {
		log.Info("the plugins' token is not renewed by this installation, which ends: run it again in time, or let it stay (SLEEP=true)")
	}
	return installer.Install(ctx)
}

// newRecorder returns the recorder of Events; nil, which drops them, if there is no API server.
func newRecorder(cfg config.Install, log *slog.Logger) (*events.Recorder, error) {
	if cfg.ServiceHost == "" && cfg.Kubeconfig == "" {
		return nil, nil
	}
	api, err := install.Connect(cfg)
	if err != nil {
		return nil, err
	}
	store, err := cluster.OpenStore(cluster.Server{Config: api})
	if err != nil {
		log.Info("no Events are written", "error", err)
		return nil, nil
	}
	return events.New(store, events.Source{Component: "tortie-install", Host: cfg.NodeName}, nil, log), nil
}

// said returns the number of Events that were written or dropped.
func said(r *events.Recorder) uint64 {
	written, dropped := r.Counts()
	return written + dropped
}

func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}
