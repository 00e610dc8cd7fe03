// Command bench measures the cost of a pod's network: time, processor time and memory, with the real plugins and agents
// on a real etcd and kube-apiserver, beside floors and a plugin without an API server, all in the same run.
//
//	bench -root .. [-only add,burst] [-quick] [-o DIR]
//	bench -root .. -bin DIR -conf FILE      any other plugin instead of ours
//
// It needs root. Nodes are namespaces of its own; nothing of it is left.
package main

import (
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
)

// parts are the parts of a run, in order. Those on the cluster need nodes and an API server of the bench.
var parts = []struct {
	name, what string
	on         bool // the cluster
	run        func(*bench, context.Context) error
}{
	{"add", "ADD and DEL one after another", true, (*bench).adds},
	{"burst", "many at once on one node", true, (*bench).bursts},
	{partGroups, "ADD and DEL in each of Calico's API groups", true, (*bench).groups},
	{"routes", "learned routes on their way into the kernel", false, measuringTests(meshPackage, "TestLearned")},
	{"memory", "an agent in clusters that grow", false, measuringTests(meshPackage, "TestMemory")},
	{partMesh, "agents, and what they do about trouble", false,
		measuringTests(meshPackage, "TestThirty", "TestDrift", "TestRestarts", "TestPolicyUnderLoad")},
	{"nodes", "nodes and pods of a real cluster", false, measuringTests("internal/tests/cluster", "TestSpeed")},
	{"reflectors", "BGP alone, of reflectors and clients", false, (*bench).speakers},
	{partPolicy, "packets by policies", false, (*bench).policy},
}

const meshPackage = "internal/tests/mesh"

// sizes are the amounts of each measurement.
type sizes struct {
	rounds, perRound int // of ADD and DEL one after another
	bursts           []int
	repeats          int // of each burst
	benchTime        string
}

var (
	full  = sizes{rounds: 5, perRound: 40, bursts: []int{10, 30, 100}, repeats: 3, benchTime: "0.5s"}
	quick = sizes{rounds: 3, perRound: 10, bursts: []int{10, 30}, repeats: 1, benchTime: "10x"}
)

// options are the flags, checked.
type options struct {
	root, bin, conf, out string
	only                 []string
	size                 sizes
}

// bench is a run.
type bench struct {
	options
	figures
	cluster  *cluster
	subjects []subject
	dir      string // of all programs
}

func main() {
	debug.SetGCPercent(400) // the garbage collector would disturb measurements
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	b, failed := measure(ctx, o)
	if b == nil {
		return failed
	}
	if err := csv.NewWriter(os.Stdout).WriteAll(b.rows()); err != nil {
		return err
	}
	for _, v := range b.judge() {
		fmt.Printf("%s: %s (%s): %s\n", v.what, v.measured, v.limit, map[bool]string{true: "met", false: "NOT MET"}[v.met])
	}
	if failed != nil || o.out == "" {
		return failed
	}
	return b.publish(o.out)
}

func parse(args []string) (options, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	var names []string
	for _, part := range parts {
		names = append(names, part.name)
	}
	root := f.String("root", ".", "root of the repository, with the programs that make build has made")
	bin := f.String("bin", "", "directory of the plugins (default: bin below the root)")
	conf := f.String("conf", "", "configuration of a plugin to measure instead of ours; "+
		"__KUBECONFIG_FILEPATH__ and __KUBERNETES_NODE_NAME__ are replaced in it")
	out := f.String("o", "", "directory to write benchmarks.csv and benchmarks-required.csv to, if no part fails")
	only := f.String("only", strings.Join(names, ","), "comma-separated parts to run")
	fast := f.Bool("quick", false, "less of everything: figures to match")
	if err := f.Parse(args); err != nil {
		return options{}, err
	}
	o := options{conf: *conf, out: *out, only: strings.Split(*only, ","), size: full}
	if *fast {
		o.size = quick
	}
	for _, part := range o.only {
		if !slices.Contains(names, part) {
			return o, fmt.Errorf("-only: no part %q: there are %s", part, strings.Join(names, ", "))
		}
	}
	var err error
	if o.root, err = filepath.Abs(*root); err != nil {
		return o, fmt.Errorf("-root: %w", err)
	}
	if *bin == "" {
		*bin = filepath.Join(o.root, "bin")
	}
	o.bin, err = filepath.Abs(*bin)
	return o, err
}

// measure runs the parts. A failed part does not stop the others, which take half an hour.
func measure(ctx context.Context, o options) (_ *bench, err error) {
	b := &bench{options: o}
	if b.subjects, err = o.subjects(); err != nil {
		return nil, err
	}
	if err := b.about(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "tortie-bench-"); err != nil {
		return nil, fmt.Errorf("make a working directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	progress("building what to compare with")
	if err := assemble(ctx, o.root, o.bin, b.dir); err != nil {
		return nil, err
	}
	defer func() {
		if b.cluster != nil {
			err = errors.Join(err, b.cluster.end())
		}
	}()
	for _, part := range parts {
		if !slices.Contains(o.only, part.name) || ctx.Err() != nil {
			continue
		}
		progress(part.name + ": " + part.what)
		failed := b.start(ctx, part.on)
		if failed == nil {
			failed = part.run(b, ctx)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("part %s: %w", part.name, failed))
		}
	}
	return b, err
}

// start starts the cluster, if one is needed and none runs.
func (b *bench) start(ctx context.Context, needed bool) (err error) {
	if !needed || b.cluster != nil {
		return nil
	}
	progress("starting etcd and kube-apiserver")
	if b.cluster, err = newCluster(ctx, b.root); err != nil {
		b.cluster = nil
		return err
	}
	return b.cluster.addNodes(1, b.dir, max(b.size.perRound, slices.Max(b.size.bursts)))
}

// subjects returns the measured plugins, the references first.
func (o options) subjects() ([]subject, error) {
	measured := own()
	if o.conf != "" {
		other, err := foreign(o.conf)
		if err != nil {
			return nil, err
		}
		measured = []subject{other}
	}
	if _, err := os.Stat(filepath.Join(o.bin, measured[0].program)); err != nil {
		return nil, fmt.Errorf("-bin: %w (run `make build`)", err)
	}
	return append(references(), measured...), nil
}

func progress(text string) { fmt.Fprintln(os.Stderr, "bench:", text) }
