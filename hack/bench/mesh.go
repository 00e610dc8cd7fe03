package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	partMesh   = "mesh"
	partPolicy = "policy"
)

// resident is the name of figures of memory.
const resident = "memory"

// measuringTests returns a part that runs tests of a package of the root module one after another, so that none
// disturbs another. They write their figures for internal/testkit/meshtest.
func measuringTests(pkg string, tests ...string) func(*bench, context.Context) error {
	return func(b *bench, ctx context.Context) error {
		for _, test := range tests {
			var found []struct {
				Name, Unit string
				Values     []float64
			}
			if err := b.measuringTest(ctx, pkg, test, "figures", &found); err != nil {
				return err
			}
			for _, f := range found {
				of, err := named(f.Name, f.Unit)
				if err != nil {
					return fmt.Errorf("%s: %w", test, err)
				}
				for _, value := range f.Values {
					b.record(of, value)
				}
			}
		}
		return nil
	}
}

// named returns the key of a test's figure. Its name may be PART | SUBJECT | SIZE | WHAT; other figures belong to the
// part mesh.
func named(name, unit string) (key, error) {
	words := strings.Split(name, " | ")
	if len(words) == 1 {
		return key{part: partMesh, subject: name, unit: unit}, nil
	}
	if len(words) != 4 {
		return key{}, fmt.Errorf("figure %q: want PART | SUBJECT | SIZE | WHAT", name)
	}
	size, err := strconv.Atoi(words[2])
	if err != nil {
		return key{}, fmt.Errorf("figure %q: its size: %w", name, err)
	}
	return key{words[0], words[1], size, words[3], unit}, nil
}

// speakers measures BGP alone, in a process for each of some nodes, three of which are reflectors.
func (b *bench) speakers(ctx context.Context) error {
	var found []struct {
		Speakers                                         int
		ReflectorMiB, ClientMiB, ReflectorCPU, Converged float64
	}
	if err := b.measuringTest(ctx, "internal/bgp", "TestSpeakers", "speakers", &found); err != nil {
		return err
	}
	for _, f := range found {
		b.record(key{"reflectors", "a reflector", f.Speakers, resident, "MiB"}, f.ReflectorMiB)
		b.record(key{"reflectors", "a client", f.Speakers, resident, "MiB"}, f.ClientMiB)
		b.record(key{"reflectors", "a reflector", f.Speakers, "CPU until all know all", "s"}, f.ReflectorCPU)
		b.record(key{"reflectors", "all", f.Speakers, "all know all", "s"}, f.Converged)
	}
	return nil
}

// measuringTest runs a test of the root module, and reads the file that it writes, by this flag.
func (b *bench) measuringTest(ctx context.Context, pkg, test, flag string, into any) error {
	file := filepath.Join(b.dir, test+".json")
	if _, err := b.goTest(ctx, "-timeout=20m", "-run=^"+test+"$", "./"+pkg, "-"+flag+"="+file); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("figures of %s: %w", test, err)
	}
	return nil
}

func (b *bench) goTest(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1"}, args...)...)
	cmd.Dir = b.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go test %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// policy measures a connection's first packet by the number of policies.
func (b *bench) policy(ctx context.Context) error {
	out, err := b.goTest(ctx, "-run=^$", "-bench=^BenchmarkFirstPacket$", "-benchtime="+b.size.benchTime, "./internal/kernel/netpol")
	if err != nil {
		return err
	}
	return b.firstPackets(out)
}

var (
	packetLine  = regexp.MustCompile(`(?m)^BenchmarkFirstPacket/(\w+)\S*\s.*$`)
	packetValue = regexp.MustCompile(`([0-9.e+]+) ns-with-(\d+)(\S*)`)
)

// firstPackets reads the benchmark's output. A suffix after the number of policies names a cluster that is not compared
// here.
func (f *figures) firstPackets(out string) error {
	found := 0
	for _, line := range packetLine.FindAllStringSubmatch(out, -1) {
		for _, m := range packetValue.FindAllStringSubmatch(line[0], -1) {
			if m[3] != "" {
				continue
			}
			ns, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				return fmt.Errorf("BenchmarkFirstPacket: %w", err)
			}
			size, _ := strconv.Atoi(m[2]) // digits
			f.record(key{partPolicy, "by " + line[1], size, "first packet", "ns"}, ns)
			found++
		}
	}
	if found == 0 {
		return fmt.Errorf("BenchmarkFirstPacket reports no ns-with-N:\n%s", out)
	}
	return nil
}
