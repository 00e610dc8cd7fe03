// Command bench measures what a pod pays for its network: time, processor time, memory, and what the API server is asked,
// by the real plugins on a real etcd and kube-apiserver, beside floors and a plugin that asks nobody, all in the same run.
//
//	bench -root .. [-only add,burst] [-quick] [-o FILE]
//	bench -root .. -bin DIR -conf FILE      any other plugin instead of ours
//
// It needs root. Nodes are namespaces of its own; nothing of it is left.
package main

import (
	"context"
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
	"time"

	"github.com/tortie-net/tortie/hack/instructions"
)

// parts are the parts of a run, in order.
var parts = []string{"start", "add", "burst", "nodes", "requests", "routes", "policy-agent", "memory", "mesh", "reflectors", "throughput", "install", "services", "policy-load", "go"}

// policyParts are both parts about policies, which -only names together.
var policyParts = []string{"policy-agent", "policy-load"}

// sizes are the amounts of each measurement.
type sizes struct {
	rounds, perRound   int // of ADD and DEL one after another
	bursts             []int
	repeats            int // of each burst
	nodes, podsPerNode int
	starts             int
	routes             int           // learned from one peer
	largeCluster       int           // nodes of the cluster for the agent's memory
	settle             time.Duration // after which the garbage collector has returned the memory of an agent's start
	routeRounds        int
	streamSeconds      int // of each stream of bytes
	streamRounds       int
	pods               int // of the cluster, beside policies
	morePods           int // that come to these
	benchTime          string
}

var (
	full  = sizes{rounds: 5, perRound: 40, bursts: []int{10, 30, 100}, repeats: 3, nodes: 10, podsPerNode: 20, starts: 200, routes: 10_000, routeRounds: 9, streamSeconds: 1, streamRounds: 5, largeCluster: 1000, settle: 90 * time.Second, pods: 10_000, morePods: 200, benchTime: "0.5s"}
	quick = sizes{rounds: 3, perRound: 10, bursts: []int{10, 30}, repeats: 1, nodes: 4, podsPerNode: 5, starts: 40, routes: 10_000, routeRounds: 3, streamSeconds: 1, streamRounds: 1, largeCluster: 1000, settle: 90 * time.Second, pods: 2000, morePods: 50, benchTime: "10x"}
)

// options are the flags, checked.
type options struct {
	root, bin, conf, out string
	only                 []string
	size                 sizes
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
	r, err := measure(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(r.write(o), r.failed)
}

// write writes the report, without the parts that failed.
func (r *results) write(o options) error {
	text := r.markdown()
	fmt.Print(text)
	if o.out == "" {
		requests, err := r.requestRows()
		if err == nil && len(r.asked) > 0 {
			fmt.Printf("%s\n", requests)
		}
		return err
	}
	if err := os.WriteFile(o.out, []byte(text), 0o644); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	if err := writeBeside(o.out, "required", r.requirements); err != nil {
		return err
	}
	if len(r.asked) > 0 {
		if err := writeBeside(o.out, "requests", r.requestRows); err != nil {
			return err
		}
	}
	if len(r.goBench) == 0 {
		return nil
	}
	return writeBeside(o.out, "go", r.goBenchmarks)
}

// writeBeside writes comma-separated values to a file whose name begins with the report's.
func writeBeside(report, name string, values func() ([]byte, error)) error {
	text, err := values()
	if err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(report, ".md")+"-"+name+".csv", text, 0o644)
}

func parse(args []string) (options, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	root := f.String("root", ".", "root of the repository, with the programs that make build has made")
	bin := f.String("bin", "", "directory of the plugins (default: bin below the root)")
	conf := f.String("conf", "", "configuration of a plugin to measure instead of ours; __KUBECONFIG_FILEPATH__ and __KUBERNETES_NODE_NAME__ are replaced in it")
	out := f.String("o", "", "file to write the report to, besides standard output; requirements, requests and Go's benchmarks go to files beside it")
	only := f.String("only", "", "comma-separated parts to run: "+strings.Join(parts, ", ")+"; policy for both of its parts")
	fast := f.Bool("quick", false, "less of everything: a minute, and figures to match")
	if err := f.Parse(args); err != nil {
		return options{}, err
	}
	o := options{conf: *conf, out: *out, only: parts, size: full}
	if *fast {
		o.size = quick
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	if i := slices.Index(o.only, "policy"); i >= 0 {
		o.only = slices.Replace(o.only, i, i+1, policyParts...)
	}
	for _, part := range o.only {
		if !slices.Contains(parts, part) {
			return o, fmt.Errorf("-only: no part %q: there are %s", part, strings.Join(parts, ", "))
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

func measure(ctx context.Context, o options) (_ *results, err error) {
	r := &results{about: newAbout()}
	if r.elsewhere, err = loadElsewhere(); err != nil {
		return nil, err
	}
	if r.counted, err = instructions.Page(o.root); err != nil {
		return nil, err
	}
	subjects, err := o.subjects()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tortie-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a working directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	progress("building what to compare with")
	if err := assemble(ctx, o.root, o.bin, dir); err != nil {
		return nil, err
	}
	r.failed = errors.Join(r.onCluster(ctx, o, subjects, dir), r.byPrograms(ctx, o, dir))
	if ctx.Err() != nil {
		return nil, r.failed
	}
	r.about.took = time.Since(r.about.date)
	return r, nil
}

// byPrograms runs the parts with machines or clusters of their own. One that fails leaves the others their half hour.
func (r *results) byPrograms(ctx context.Context, o options, dir string) (failed error) {
	for _, part := range []struct {
		name, what string
		run        func() error
	}{
		{"mesh", "thirty agents, and what they do about trouble", func() (err error) {
			r.mesh, err = runTests(ctx, o.root, dir, "internal/tests/mesh", meshTests...)
			return err
		}},
		{"reflectors", "thousands of nodes simulated, and two hundred speakers", func() (err error) {
			r.reflection, err = runReflectors(ctx, o.root, dir)
			return err
		}},
		{"throughput", "between nodes, and between their pods", func() (err error) {
			r.throughput, err = runThroughput(ctx, o.root, dir, o.size)
			return err
		}},
		{"install", "nodes of a real cluster, and pods beside trivial plugins", func() (err error) {
			r.install, err = runTests(ctx, o.root, dir, "internal/tests/cluster", installTest)
			return err
		}},
		{"services", "addresses of 10,000 Services", func() error {
			return r.runServices(ctx, o.root, o.size)
		}},
		{"policy-load", "packets by policies, and five agents while pods and policies come and go", func() (err error) {
			return r.runPolicyLoad(ctx, o.root, dir, o.size)
		}},
		{"go", "benchmarks of Go's own kind", func() (err error) {
			return r.runOtherBenchmarks(ctx, o.root, o.size)
		}},
	} {
		if !o.runs(part.name) {
			continue
		}
		progress(part.name + ": " + part.what)
		if err := part.run(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("part %s: %w", part.name, err))
		}
	}
	return failed
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

func (o options) runs(part string) bool { return slices.Contains(o.only, part) }

func progress(text string) { fmt.Fprintln(os.Stderr, "bench:", text) }

// bench is a run on a cluster.
type bench struct {
	options
	*results
	cluster  *cluster
	subjects []subject
	dir      string // of all programs
}

// onCluster runs the parts that need nodes and an API server.
func (r *results) onCluster(ctx context.Context, o options, subjects []subject, dir string) (err error) {
	if !slices.ContainsFunc(o.only, func(part string) bool {
		return !slices.Contains([]string{"go", "throughput", "mesh", "reflectors", "install", "services", "policy-load"}, part)
	}) {
		return nil
	}
	progress("starting etcd and kube-apiserver")
	c, err := newCluster(ctx, o.root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	// The first node has capacity for every part that runs on one.
	if err := c.addNodes(1, dir, max(o.size.perRound, slices.Max(o.size.bursts), o.size.podsPerNode)); err != nil {
		return err
	}
	b := &bench{options: o, results: r, cluster: c, subjects: subjects, dir: dir}
	for _, p := range []struct {
		name, what string
		run        func(context.Context) error
	}{
		{"start", "what a program costs before it does anything", b.starts},
		{"add", "ADD and DEL one after another", b.sequences},
		{"burst", "many at once on one node", b.bursts},
		{"nodes", "many nodes", b.nodes},
		{"requests", "what the API server is asked", b.requests},
		{"routes", "learned routes on their way into the kernel", b.routes},
		{"policy-agent", "an agent with policies, and ADD beside it", b.policies},
		{"memory", "the agent in a big cluster", b.memory},
	} {
		if !o.runs(p.name) {
			continue
		}
		progress(p.name + ": " + p.what)
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("part %s and those after it on this cluster: %w", p.name, err)
		}
	}
	return nil
}

func (b *bench) starts(ctx context.Context) (err error) {
	b.results.files = runSizes(b.dir)
	b.results.starts, err = runStarts(ctx, b.cluster.nodes[0], b.dir, b.options)
	return err
}

func (b *bench) sequences(ctx context.Context) (err error) {
	b.results.sequences, err = runSequences(ctx, b.cluster, b.subjects, b.size)
	return err
}

func (b *bench) bursts(ctx context.Context) (err error) {
	b.results.bursts, err = runBursts(ctx, b.cluster, b.busy(), b.size)
	return err
}

func (b *bench) nodes(ctx context.Context) (err error) {
	if err := b.cluster.addNodes(b.size.nodes, b.dir, b.size.podsPerNode); err != nil {
		return err
	}
	b.results.nodes, err = runNodes(ctx, b.cluster, b.busy(), b.size)
	return err
}

func (b *bench) requests(ctx context.Context) (err error) {
	b.results.asked, err = runRequests(ctx, b.cluster, b.subjects, b.dir)
	return err
}

func (b *bench) routes(ctx context.Context) (err error) {
	b.results.routeCount = b.size.routes
	b.results.routes, err = runRoutes(ctx, b.cluster, b.dir, b.size)
	return err
}

func (b *bench) policies(ctx context.Context) (err error) {
	if b.results.policy.adds, err = b.runPolicyADDs(ctx); err != nil {
		return err
	}
	b.results.policy.agents, err = b.runPolicyAgents(ctx)
	return err
}

func (b *bench) memory(ctx context.Context) (err error) {
	b.results.memory, err = runMemory(ctx, b.cluster, b.dir, b.size)
	return err
}

// busy returns the subjects that leave state behind.
func (b *bench) busy() []subject {
	return slices.DeleteFunc(slices.Clone(b.subjects), func(s subject) bool { return !s.del })
}
