// Command lab runs real Kubernetes clusters of several nodes on one Linux machine, in namespaces of their own, natively
// or inside a virtual machine, for Tortie's tests and its demo.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/tortie-net/tortie/lab"
)

// command is one subcommand.
type command struct {
	name, usage, short string
	run                func(ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{"up", "up [-name N] [-nodes 3] [-image TAR] [-ipv6] [-dns] [-agnhost] [-containerd 2]", "start a lab and leave it running", runUp},
		{"down", "down [-name N]", "stop a lab, and remove what is left of a killed one", runDown},
		{"status", "status [-name N]", "show the labs that run and their nodes", runStatus},
		{"kubectl", "kubectl [-name N] ARGS...", "run kubectl on a lab", runKubectl},
		{"helm", "helm [-name N] ARGS...", "run helm on a lab", runHelm},
		{"shell", "shell [-name N] [CMD [ARGS]...]", "a shell, or a program, whose kubectl, helm and other clients use a lab", runShell},
		{"exec", "exec [-name N] NODE CMD [ARGS]...", "run a program in a node's namespaces", runExec},
		{"restart", "restart [-name N] [-containerd] NODE", "cut a node's power and start it again, or its containerd alone", runRestart},
		{"conformance", "conformance [-name N] SUITE [ARGS]...",
			"run another project's suite on a lab: networkpolicy or clusternetworkpolicy", runConformance},
		{"api", "api [-dir DIR] [-kcm] [-address A] [-kubernetes 1.31]", "run etcd and kube-apiserver, on loopback, until stdin ends", runAPI},
		{"etcd", "etcd [-dir DIR] [-tls]", "run an etcd of its own, on loopback, until stdin ends", runEtcd},
		{"vm", "vm [-mem MB] [-timeout D] [-out DIR] [-programs NAMES] [-newest] [-bird] -- CMD [ARGS]...",
			"run a program in a virtual machine that has IPIP", runVM},
		{"vmtest", "vmtest PROG [ARGS]...", "for go test -exec: run a static test binary in one", runVMTest},
		{"probe", "probe", "say whether this kernel has IPIP tunnels (exit code 0) or not (1)", runProbe},
		{"deps", "deps [-install] [-tests] [-encap auto]", "name or install the Debian packages that are missing", runDeps},
		{"demo", "demo [-name N] [-keep] [-record FILE] [-encap auto]", "Tortie on three nodes, step by step", runDemo},
		{"build", "build [NAME]...", "build the lab's programs into the cache", runBuild},
	}
}

func main() {
	lab.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	os.Exit(report(err))
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage()
		return nil
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:])
		}
	}
	return usageError{fmt.Sprintf("no command %q: see lab help", args[0])}
}

func usage() {
	fmt.Println("usage: lab COMMAND [ARGS]")
	for _, c := range commands() {
		fmt.Printf("  %-58s %s\n", c.usage, c.short)
	}
}

// usageError is a mistake in the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// exitError is the exit code of a program that the user ran, and that has already printed its error.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// interrupted is the exit code after Ctrl-C, as in a shell.
const interrupted = 130

// report prints an error and returns the exit code.
func report(err error) int {
	var exit exitError
	var child *exec.ExitError
	var wrong usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "lab: interrupted; nothing runs any more, and what was compiled and downloaded is kept for the next time")
		return interrupted
	case errors.As(err, &wrong):
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 2
	case errors.As(err, &child) && child.ExitCode() > 0:
		fmt.Fprintln(os.Stderr, "lab:", err)
		return child.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "lab:", err)
	return 1
}

// flags returns a flag set that reports mistakes as errors.
func flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet("lab "+name, flag.ContinueOnError)
	return f
}

// parse parses args and rejects positional ones unless the command takes them.
func parse(f *flag.FlagSet, args []string, positional bool) error {
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err.Error()}
	}
	if !positional && f.NArg() > 0 {
		return usageError{fmt.Sprintf("%s takes no argument %q", f.Name(), strings.Join(f.Args(), " "))}
	}
	return nil
}
