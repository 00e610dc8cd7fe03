// Package install is the program of that name: it puts the CNI plugins and their configuration onto the host and keeps the
// plugins' token fresh.
//
// It runs as a native sidecar of the agent's pod: an init container that stays. With -once it installs and exits.
package install

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/install"
	"github.com/tortie-net/tortie/internal/program"
	"github.com/tortie-net/tortie/internal/version"
)

// Main runs the program with its arguments, without its name, and returns the exit code.
func Main(args []string) int {
	return program.Run("install", func(ctx context.Context) error { return run(ctx, args, config.OS(), os.Stderr) })
}

func run(ctx context.Context, args []string, env config.Env, stderr io.Writer) error {
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.SetOutput(stderr)
	once := flags.Bool("once", false, "install and exit, instead of staying to renew the token")
	showVersion := flags.Bool("v", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: settings come from the environment", flags.Arg(0))
	}
	if *showVersion {
		fmt.Println(version.About("install"))
		return nil
	}
	cfg, err := config.LoadInstall(env)
	if err != nil {
		return err
	}
	log, err := newLogger(stderr, cfg.LogLevel)
	if err != nil {
		return err
	}
	accounts, err := install.NewAccountTokens(cfg, log)
	if err != nil {
		return err
	}
	installer := install.New(cfg, install.WithPodToken(accounts, cfg, log), log)
	if *once {
		return installer.Install(ctx)
	}
	return installer.Run(ctx)
}

func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}
