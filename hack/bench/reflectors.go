package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// agreement is the result of a simulated cluster, as written by TestLarge of internal/bgp/reflectors.
type agreement struct {
	Nodes                  int
	Elected, Replaced, All float64
	Client, Reflector      int
	Writes, Reads, Surplus int
	Took                   float64
}

// speakers is the cost of real speakers, as written by its TestSpeakers.
type speakers struct {
	Speakers                int
	Sessions, Clients       int
	ReflectorMiB, ClientMiB float64
	ReflectorCPU, ClientCPU float64
	Converged, Spread       float64
	Missed, Replaced        float64
	ReflectorPaths, Client  int
}

// configured is the cost of sessions that are not established.
type configured struct {
	Peers        int
	Seconds, MiB float64
}

// reflection is the part reflectors.
type reflection struct {
	agreements []agreement
	speakers   []speakers // of 1, 50, 100 and 200
	configured []configured
}

// runReflectors runs the measuring tests of internal/bgp/reflectors: first the simulation, then real speakers.
func runReflectors(ctx context.Context, root, dir string) (*reflection, error) {
	r := &reflection{}
	large, speakers := filepath.Join(dir, "large.json"), filepath.Join(dir, "speakers.json")
	for _, run := range [][]string{
		{"-run=^TestLarge$", "./internal/bgp/reflectors", "-figures=" + large},
		{"-run=^(TestSpeakers|TestConfigured)$", "./internal/bgp/reflectors", "-speakers=" + speakers},
	} {
		cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-timeout=20m"}, run...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", run[0], err, out)
		}
	}
	for file, into := range map[string]any{large: &r.agreements, speakers: &r.speakers, speakers + ".configured": &r.configured} {
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return nil, fmt.Errorf("figures of reflectors: %w", err)
		}
	}
	if len(r.speakers) != 4 || len(r.configured) < 2 {
		return nil, fmt.Errorf("figures of reflectors: %d speakers and %d sizes of a configuration: the model needs 4 and 2", len(r.speakers), len(r.configured))
	}
	return r, nil
}

// prediction is what the model predicts for a cluster.
type prediction struct {
	nodes                   int
	reflectorMiB, clientMiB float64
	reflectorCPU, clientCPU float64
	configure               float64 // seconds to configure the sessions of a reflector
	sent                    float64 // UPDATEs, by one reflector while all start at once
}

// start returns the CPU time of a reflector when all nodes start at once: GoBGP's loop is one thread.
func (f prediction) start() float64 { return f.reflectorCPU + f.configure }

// predict is the model. Memory grows with sessions and paths, which both grow with the nodes; CPU time has a quadratic part, as each path goes
// to each client. Both are fitted to 1, 50 and 100 speakers, and checked with 200. The time to configure a session grows with the number of
// sessions: GoBGP's loop iterates over all of them.
func (r *reflection) predict(nodes int) prediction {
	zero, small, middle := r.speakers[0], r.speakers[1], r.speakers[2]
	n := float64(nodes)
	line := func(a, b float64) float64 {
		return a + (b-a)*(n-float64(small.Speakers))/float64(middle.Speakers-small.Speakers)
	}
	square := func(a, b, c float64) float64 { // through 0, as a speaker without peers is as good as none
		x1, x2 := float64(small.Speakers), float64(middle.Speakers)
		quadratic := ((c-a)/x2 - (b-a)/x1) / (x2 - x1)
		linear := (b-a)/x1 - quadratic*x1
		return a + linear*n + quadratic*n*n
	}
	return prediction{
		nodes:        nodes,
		reflectorMiB: line(small.ReflectorMiB, middle.ReflectorMiB),
		clientMiB:    line(small.ClientMiB, middle.ClientMiB),
		reflectorCPU: square(zero.ReflectorCPU, small.ReflectorCPU, middle.ReflectorCPU),
		clientCPU:    square(zero.ClientCPU, small.ClientCPU, middle.ClientCPU),
		configure:    r.configure(n),
		sent:         n * n,
	}
}

// configure extrapolates the two largest configurations.
func (r *reflection) configure(n float64) float64 {
	a, b := r.configured[len(r.configured)-2], r.configured[len(r.configured)-1]
	power := math.Log(b.Seconds/a.Seconds) / math.Log(float64(b.Peers)/float64(a.Peers))
	return b.Seconds * math.Pow(n/float64(b.Peers), power)
}

// restart is how long peers retain the paths of a restarting reflector: a reflector with a longer start is down after that.
const restart = 120 * time.Second

// enough returns the number of nodes up to which a reflector starts within the restart time.
func (r *reflection) enough() int {
	n := 100
	for n < 20_000 && r.predict(n+100).start() < restart.Seconds() {
		n += 100
	}
	return n
}

func (r *results) writeReflectors(w *bytes.Buffer) {
	if r.reflection == nil {
		return
	}
	m := r.reflection
	w.WriteString("### Automatic route reflectors\n\n" +
		"Simulated: agents with their real decisions, a modelled API and network; 300 nodes come per second. Seconds until all agree and have their sessions after the last node, " +
		"after the death of one reflector (its session lost, its Node not ready), and of all at once.\n\n")
	t := table{{"nodes", "agreed s", "one dies s", "all die s", "sessions of a client", "of a reflector", "writes of Nodes", "reflectors too many"}}
	for _, a := range m.agreements {
		t.row(fmt.Sprint(a.Nodes), fmt.Sprintf("%.0f", a.Elected), fmt.Sprintf("%.0f", a.Replaced), fmt.Sprintf("%.0f", a.All),
			fmt.Sprint(a.Client), fmt.Sprint(a.Reflector), fmt.Sprint(a.Writes), fmt.Sprint(a.Surplus))
	}
	t.write(w)
	w.WriteString("Real speakers, a process each, three of them reflectors, two blocks each; all share this machine's processors, which shows in the times only. " +
		"CPU and memory (RSS) are means until all know all.\n\n")
	t = table{{"speakers", "reflector MiB", "client MiB", "reflector CPU s", "client CPU s", "all know all s", "a new prefix ms", "the same, a reflector just dead ms", "another reflector's table s"}}
	for _, c := range m.speakers[1:] {
		t.row(fmt.Sprint(c.Speakers), fmt.Sprintf("%.1f", c.ReflectorMiB), fmt.Sprintf("%.1f", c.ClientMiB), fmt.Sprintf("%.2f", c.ReflectorCPU), fmt.Sprintf("%.2f", c.ClientCPU),
			fmt.Sprintf("%.1f", c.Converged), fmt.Sprintf("%.0f", 1000*c.Spread), fmt.Sprintf("%.0f", 1000*c.Missed), fmt.Sprintf("%.1f", c.Replaced))
	}
	t.write(w)
	m.writeModel(w)
}

func (r *reflection) writeModel(w *bytes.Buffer) {
	fmt.Fprintf(w, "The model is fitted to %d and %d speakers, and held against %d:\n\n", r.speakers[1].Speakers, r.speakers[2].Speakers, r.speakers[3].Speakers)
	t := table{{"", "modelled", "measured"}}
	for _, p := range r.proofs() {
		t.row(p.what, fmt.Sprintf("%.2f", p.prediction), fmt.Sprintf("%.2f", p.measured))
	}
	t.write(w)
	t = table{{"nodes", "reflector MiB", "client MiB", "CPU s of a reflector, all start at once", "of a client", "of which sessions alone", "UPDATEs sent by a reflector", "mesh: sessions of each"}}
	for _, n := range []int{100, 500, 1000, 2000, 5000} {
		f := r.predict(n)
		t.row(fmt.Sprint(n), fmt.Sprintf("%.0f", f.reflectorMiB), fmt.Sprintf("%.0f", f.clientMiB), fmt.Sprintf("%.1f", f.start()), fmt.Sprintf("%.1f", f.clientCPU),
			fmt.Sprintf("%.1f", f.configure), fmt.Sprintf("%.2g", f.sent), fmt.Sprint(n-1))
	}
	t.write(w)
	fmt.Fprintf(w, "A reflector's start takes more than %v, for which its peers keep its paths, from about %d nodes on: then its restart is its loss "+
		"for a while. GoBGP configures a session more slowly with each that there is.\n\n", restart, r.enough())
}

// proof is a predicted figure beside the measured one.
type proof struct {
	what                 string
	prediction, measured float64
	miss                 float64 // 0: maxMiss
}

func (p proof) ratio() float64 { return p.prediction / p.measured }

func (r *reflection) proofs() []proof {
	real := r.speakers[3]
	f := r.predict(real.Speakers)
	return []proof{
		{"memory of a reflector, MiB", f.reflectorMiB, real.ReflectorMiB, 0},
		{"memory of a client, MiB", f.clientMiB, real.ClientMiB, 0},
		{"CPU of a reflector, s", f.reflectorCPU, real.ReflectorCPU, maxMissCPU},
		{"sessions of a reflector", float64(real.Speakers - 1), float64(real.Sessions), 0},
		{"sessions of a client", 3, float64(real.Clients), 0},
		{"paths that a client has learned", 3 * 2 * float64(real.Speakers-1), float64(real.Client), 0},
	}
}

// Maximum deviation of the model at 200 speakers. CPU time includes the overhead of a machine with a hundred processes per processor.
const (
	maxMiss    = 1.2
	maxMissCPU = 1.6
)

func (r *results) judgeReflectors() []verdict {
	if r.reflection == nil {
		return nil
	}
	var all []verdict
	for _, p := range r.reflection.proofs() {
		off, miss := max(p.ratio(), 1/p.ratio()), cmp.Or(p.miss, maxMiss)
		all = append(all, verdict{"reflectors, model and 200 speakers: " + p.what, fmt.Sprintf("%.2f×", p.ratio()), fmt.Sprintf("%.2f× to %.2f×", 1/miss, miss), off <= miss})
	}
	for _, a := range r.reflection.agreements {
		if a.Nodes == 5000 {
			all = append(all, verdict{"reflectors, 5,000 nodes: writes of Nodes", fmt.Sprint(a.Writes), "≤ 5010", a.Writes <= 5010})
		}
	}
	return all
}
