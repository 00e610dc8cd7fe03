// Package hook is the program hook: the chart's hooks and its test run its commands in the cluster, each once.
package hook

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/install/definitions"
	"github.com/tortie-net/tortie/internal/install/uninstall"
	"github.com/tortie-net/tortie/internal/program"
)

// Main runs the program with its arguments, without its name, and returns the exit code.
func Main(args []string) int {
	return program.Run("hook", func(ctx context.Context) error { return run(ctx, args, os.Stdout, os.Stderr) })
}

// command is one of the program's commands. prepare declares its flags, and returns the function to run once they are
// parsed.
type command struct {
	help    string
	prepare func(flags *flag.FlagSet, tell func(string)) func(ctx context.Context) error
}

var commands = map[string]command{
	"definitions": {"bring the CustomResourceDefinitions of one API group into the cluster; nothing is lost or deleted", applyDefinitions},
	"probe":       {"send packets to other probes, or answer them: for the pods of test", probe},
	"test":        {"send packets between pods on two nodes, both ways; for helm test", testTraffic},
	"uninstall":   {"end the agents, clean every node, and take back what agents wrote on Nodes", removeAll},
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || commands[args[0]].prepare == nil {
		return usage(args, stdout)
	}
	flags := flag.NewFlagSet("hook "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	start := time.Now()
	work := commands[args[0]].prepare(flags, func(line string) {
		fmt.Fprintf(stdout, "%6.1f s  %s\n", time.Since(start).Seconds(), line)
	})
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%s: unexpected argument %q: it takes flags only", args[0], flags.Arg(0))
	}
	return work(ctx)
}

func usage(args []string, out io.Writer) error {
	if len(args) == 1 && args[0] == "-v" {
		fmt.Fprintln(out, version.About("hook"))
		return nil
	}
	names := slices.Sorted(maps.Keys(commands))
	if len(args) > 0 && !slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		return fmt.Errorf("unknown command %q: there are %s", args[0], strings.Join(names, ", "))
	}
	fmt.Fprintln(out, "usage: hook COMMAND [FLAG]...")
	for _, name := range names {
		fmt.Fprintf(out, "  %-12s %s\n", name, commands[name].help)
	}
	if len(args) == 0 {
		return errors.New("which command?")
	}
	return nil
}

// connection declares the flag for the API server, and returns a function that returns the client configuration.
func connection(flags *flag.FlagSet) func() (*rest.Config, error) {
	path := flags.String("kubeconfig", "", "`file` by which the API server is reached; empty in a pod, as its service account")
	return func() (*rest.Config, error) { return cluster.Connect(*path, "tortie-hook/"+version.Version) }
}

func applyDefinitions(flags *flag.FlagSet, tell func(string)) func(ctx context.Context) error {
	dir := flags.String("dir", "/definitions", "`directory` of the definitions, one in each *.yaml")
	group := flags.String("group", "", "API `group` whose definitions the cluster gets; empty finds the one that it has")
	timeout := flags.Duration("timeout", 2*time.Minute, "how long all of it may take")
	connect := connection(flags)
	return func(ctx context.Context) error {
		wanted, err := groups.Parse(*group)
		if err != nil {
			return fmt.Errorf("-group: %w", err)
		}
		all, err := definitions.Read(os.DirFS(*dir))
		if err != nil {
			return fmt.Errorf("%s: %w", *dir, err)
		}
		cfg, err := connect()
		if err != nil {
			return err
		}
		applier, err := definitions.NewApplier(cfg, tell)
		if err != nil {
			return err
		}
		store, err := cluster.OpenStore(cluster.Server{Config: cfg})
		if err != nil {
			return err
		}
		defer store.Close()
		ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("it took longer than %v", *timeout))
		defer cancel()
		return applier.Install(ctx, all, store, wanted)
	}
}

func removeAll(flags *flag.FlagSet, tell func(string)) func(ctx context.Context) error {
	var s uninstall.Settings
	flags.StringVar(&s.Namespace, "namespace", "kube-system", "the release's `namespace`")
	flags.StringVar(&s.DaemonSet, "daemonset", "tortie-node", "`name` of the agents' DaemonSet")
	flags.StringVar(&s.Agents, "agents", "app.kubernetes.io/name=tortie,app.kubernetes.io/component=node", "`selector` of the agents' pods")
	flags.DurationVar(&s.Timeout, "timeout", 4*time.Minute, "how long all nodes together may take")
	file := flags.String("pod", "/uninstall/pod.yaml", "`file` with the pod that cleans a node")
	connect := connection(flags)
	return func(ctx context.Context) (err error) {
		if s.Pod, err = readPod(*file); err != nil {
			return err
		}
		cfg, err := connect()
		if err != nil {
			return err
		}
		u, err := uninstall.New(cfg, s, tell)
		if err != nil {
			return err
		}
		return u.Run(ctx)
	}
}

func readPod(file string) (*corev1.Pod, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the pod that is to be run: %w", err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		return nil, fmt.Errorf("the pod that is to be run, %s: %w", file, err)
	}
	if len(pod.Spec.Containers) == 0 {
		return nil, fmt.Errorf("the pod that is to be run, %s, has no containers", file)
	}
	return pod, nil
}
