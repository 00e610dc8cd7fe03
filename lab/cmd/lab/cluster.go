package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/lab"
	"github.com/tortie-net/tortie/lab/internal/netns"
)

// defaultName is the name of a lab without -name.
const defaultName = "lab"

// timeScale is the environment variable that multiplies all deadlines, as inside the virtual machine.
const timeScale = "TORTIE_LAB_TIMESCALE"

type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func nameFlag(f *flag.FlagSet) *string { return f.String("name", defaultName, "name of the lab") }

func runUp(ctx context.Context, args []string) error {
	f := flags("up")
	cfg := lab.Config{Log: os.Stderr, Detach: true}
	name := nameFlag(f)
	nodes := f.Int("nodes", 3, "how many nodes: master, node1, node2, ...")
	f.Var((*list)(&cfg.Images), "image", "image archive to import on every node (repeatable)")
	f.IntVar(&cfg.Containerd, "containerd", 0, "containerd's major release: 2, from Go modules, or 0, the machine's")
	f.StringVar(&cfg.Dir, "dir", "", "directory for the lab's files (default: below /var/lib)")
	f.TextVar(&cfg.PodCIDR, "pod-cidr", lab.DefaultPodCIDR, "what pods have their addresses from")
	f.BoolVar(&cfg.IPv6, "ipv6", false, "dual stack: nodes and Services have addresses of IPv6 too")
	f.TextVar(&cfg.PodCIDR6, "pod-cidr6", lab.DefaultPodCIDR6, "with -ipv6, what pods have their addresses of IPv6 from")
	f.BoolVar(&cfg.DNS, "dns", false, "run CoreDNS, once a chart has brought a pod network")
	f.BoolVar(&cfg.Agnhost, "agnhost", false, "the nodes have the image that pods of conformance suites need")
	attached := f.Bool("attached", false, "stay, and take the lab down when stdin ends")
	if err := parse(f, args, false); err != nil {
		return err
	}
	if *nodes < 1 {
		return usageError{fmt.Sprintf("-nodes %d: a lab has at least one", *nodes)}
	}
	cfg.Name, cfg.Nodes, cfg.Detach = *name, lab.DefaultNodes(*nodes), !*attached
	var err error
	if cfg.TimeScale, err = scale(); err != nil {
		return err
	}
	l, err := lab.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if *attached {
		return attend(ctx, l)
	}
	fmt.Fprintf(os.Stderr, "use it: lab kubectl%[1]s get nodes; lab exec%[1]s NODE CMD; lab down%[1]s; with your own programs: lab "+
		"shell%[1]s\nkubeconfig, for lab shell: ", nameArgs(*name))
	fmt.Println(l.Kubeconfig())
	return nil
}

// attend stops a lab when stdin is closed or ctx ends. As with api, a line reports that the lab is ready.
func attend(ctx context.Context, l *lab.Lab) error {
	fmt.Println("ready KUBECONFIG=" + l.Kubeconfig())
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error also ends the lab
		close(ended)
	}()
	select {
	case <-ctx.Done():
	case <-ended:
	}
	return l.Stop(context.WithoutCancel(ctx))
}

func nameArgs(name string) string {
	if name == defaultName {
		return ""
	}
	return " -name " + name
}

func scale() (float64, error) {
	s := os.Getenv(timeScale)
	if s == "" {
		return 1, nil
	}
	var x float64
	if _, err := fmt.Sscanf(s, "%g", &x); err != nil || x < 1 {
		return 0, fmt.Errorf("%s=%q: a number of at least 1", timeScale, s)
	}
	return x, nil
}

func runDown(ctx context.Context, args []string) error {
	f := flags("down")
	name := nameFlag(f)
	if err := parse(f, args, false); err != nil {
		return err
	}
	return lab.Stop(ctx, *name)
}

func runStatus(ctx context.Context, args []string) error {
	f := flags("status")
	name := f.String("name", "", "name of the lab (default: all)")
	if err := parse(f, args, false); err != nil {
		return err
	}
	names := []string{*name}
	if *name == "" {
		var err error
		if names, err = lab.List(); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		fmt.Println("no lab is running")
	}
	for _, n := range names {
		s, err := lab.Describe(ctx, n)
		if err != nil {
			return err
		}
		fmt.Print(s)
	}
	return nil
}

func runKubectl(ctx context.Context, args []string) error { return runTool(ctx, "kubectl", args) }
func runHelm(ctx context.Context, args []string) error    { return runTool(ctx, "helm", args) }

// runTool execs kubectl, helm or a suite.
func runTool(ctx context.Context, tool string, args []string) error {
	name, args, err := leadingName(args)
	if err != nil {
		return err
	}
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	cmd, err := l.Command(ctx, tool, args...)
	if err != nil {
		return err
	}
	return become(l, cmd)
}

// runShell execs a shell, or a program, in the namespace from which the cluster is reachable.
func runShell(ctx context.Context, args []string) error {
	name, args, err := leadingName(args)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{cmp.Or(os.Getenv("SHELL"), "/bin/sh")}
	}
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	cmd, err := l.Shell(ctx, args[0], args[1:]...)
	if err != nil {
		return err
	}
	return become(l, cmd)
}

// become replaces this process by a program in the namespace of a lab's control plane, so that terminals, signals and
// exit codes are the program's.
func become(l *lab.Lab, cmd *exec.Cmd) error {
	// The thread is in the namespace; exec makes this the namespace of the process.
	runtime.LockOSThread()
	if err := netns.Enter(l.NetNS()); err != nil {
		return err
	}
	return unix.Exec(cmd.Path, cmd.Args, cmd.Env)
}

// runConformance runs a suite as kubectl is run, in the namespace from which the cluster is reachable.
func runConformance(ctx context.Context, args []string) error {
	name, rest, err := leadingName(args)
	if err != nil {
		return err
	}
	if len(rest) == 0 || !slices.Contains(lab.Suites, rest[0]) {
		return usageError{fmt.Sprintf("lab conformance [-name N] SUITE [ARGS]...: the suites are %s", strings.Join(lab.Suites, " and "))}
	}
	return runTool(ctx, rest[0], append([]string{"-name", name}, rest[1:]...))
}

// leadingName removes -name N from the front: all other flags are the tool's.
func leadingName(args []string) (string, []string, error) {
	if len(args) == 0 || strings.TrimLeft(args[0], "-") != "name" {
		return defaultName, args, nil
	}
	if len(args) == 1 {
		return "", nil, usageError{"-name needs the name of a lab"}
	}
	return args[1], args[2:], nil
}

func runExec(ctx context.Context, args []string) error {
	name, args, err := leadingName(args)
	if err != nil {
		return err
	}
	if len(args) < 2 {
		return usageError{"lab exec [-name N] NODE CMD [ARGS]..."}
	}
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	err = l.Attach(ctx, args[0], args[1:], func(c *exec.Cmd) {
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitError{exit.ExitCode()}
	}
	return err
}

func runRestart(ctx context.Context, args []string) error {
	f := flags("restart")
	name := nameFlag(f)
	containerd := f.Bool("containerd", false, "restart the node's containerd alone; containers live on")
	if err := parse(f, args, true); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return usageError{"lab restart [-name N] [-containerd] NODE"}
	}
	l, err := lab.Open(*name)
	if err != nil {
		return err
	}
	if *containerd {
		return l.RestartContainerd(ctx, f.Arg(0))
	}
	return l.RestartNode(ctx, f.Arg(0))
}
