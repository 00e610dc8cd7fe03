package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pathsDriver is the program that creates the paths and measures them; see paths/main.go.
const pathsDriver = "paths"

// Names of paths in the driver's output.
const (
	pathHosts  = "hosts"
	pathRoutes = "routes"
	pathTunnel = "tunl0"
	pathByHand = "by hand"
	pathWhole  = "nftables"
	pathVXLAN  = "vxlan"
	pathVXHand = "vxlan by hand"
)

// carried is the throughput of a path, by round.
type carried struct {
	Name              string
	Single, Many, RTT []float64 // bits per second, bits per second, seconds
}

// throughput is one run of the driver.
type throughput struct {
	where string
	paths []carried
}

// runThroughput measures on this machine's kernel, and the tunnels in a virtual machine if this kernel lacks them.
func runThroughput(ctx context.Context, root, dir string, size sizes) ([]throughput, error) {
	driver := filepath.Join(dir, pathsDriver)
	if err := build(ctx, root, driver, filepath.Join(root, "hack", "bench", pathsDriver, "main.go")); err != nil {
		return nil, err
	}
	lab := filepath.Join(root, "bin", "lab")
	args := func(tunnels bool) []string {
		return []string{fmt.Sprintf("-tunnels=%t", tunnels), fmt.Sprintf("-seconds=%d", size.streamSeconds), fmt.Sprintf("-rounds=%d", size.streamRounds)}
	}
	native := exec.CommandContext(ctx, lab, "probe").Run() == nil
	here, err := runPaths(ctx, "this machine", append([]string{driver}, args(native)...))
	if err != nil || native {
		return []throughput{here}, err
	}
	command := append([]string{lab, "vm", "-mem", "1024", "-programs", "", "--", driver}, args(true)...)
	there, err := runPaths(ctx, "a virtual machine", command)
	return []throughput{here, there}, err
}

// runPaths runs the driver and reads one line of its output: a virtual machine's console may print more.
func runPaths(ctx context.Context, where string, command []string) (throughput, error) {
	var out, diag bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the lab ends its virtual machine
	if err := cmd.Run(); err != nil {
		return throughput{}, fmt.Errorf("throughput on %s: %w\n%s%s", where, err, &out, &diag)
	}
	t := throughput{where: where}
	for line := range strings.Lines(out.String()) {
		if text, ok := strings.CutPrefix(line, pathsDriver+" "); ok {
			if err := json.Unmarshal([]byte(text), &t.paths); err != nil {
				return t, fmt.Errorf("throughput on %s: %w in %q", where, err, text)
			}
			return t, nil
		}
	}
	return t, fmt.Errorf("throughput on %s: no figures in\n%s", where, &out)
}

// middle returns the median, the upper of two.
func middle(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// compared returns the median of the ratios by round: other load affects both of a round.
func compared(a, b []float64) float64 {
	ratios := make([]float64, min(len(a), len(b)))
	for i := range ratios {
		ratios[i] = ratio(a[i], b[i])
	}
	return middle(ratios)
}

func (t throughput) path(name string) *carried {
	for i := range t.paths {
		if t.paths[i].Name == name {
			return &t.paths[i]
		}
	}
	return nil
}

func (r *results) writeThroughput(w *bytes.Buffer) {
	if len(r.throughput) == 0 {
		return
	}
	fmt.Fprintf(w, "### Throughput\n\niperf3 between two nodes, which are namespaces joined by a veth pair, or their pods; and one byte there and back over TCP. "+
		"Medians of %d rounds, in brackets the smallest and the largest. × is the median of the rounds' ratios to the first row of the same kernel, of `tunl0` and "+
		"`vxlan.calico` to the tunnel by hand. Rounds of one path spread by more than paths differ: what is required of them is "+
		"[counted in instructions](#required-instructions).\n\n",
		len(r.throughput[0].paths[0].Single))
	t := table{{"kernel", "path", "one stream, Gbit/s", "×", "8 streams, Gbit/s", "×", "there and back, µs"}}
	for _, run := range r.throughput {
		for _, p := range run.paths {
			t.row(run.row(p)...)
		}
	}
	t.write(w)
}

var pathNames = map[string]string{
	pathHosts: "node to node", pathRoutes: "pod to pod by routes", pathTunnel: "pod to pod through `tunl0`", pathByHand: "pod to pod through a tunnel by hand",
	pathWhole: "pod to pod through `tunl0`, with the agent's nftables",
	pathVXLAN: "pod to pod through `vxlan.calico`", pathVXHand: "pod to pod through VXLAN by hand",
}

func (t throughput) row(p carried) []string {
	base := t.path(pathHosts)
	if hand := t.path(pathByHand); (p.Name == pathTunnel || p.Name == pathWhole) && hand != nil {
		base = hand
	}
	if hand := t.path(pathVXHand); p.Name == pathVXLAN && hand != nil {
		base = hand
	}
	gigabits := func(all []float64) string {
		return fmt.Sprintf("%.2f (%.2f–%.2f)", middle(all)/1e9, slices.Min(all)/1e9, slices.Max(all)/1e9)
	}
	return []string{
		t.where, pathNames[p.Name],
		gigabits(p.Single), fmt.Sprintf("%.2f", compared(p.Single, base.Single)),
		gigabits(p.Many), fmt.Sprintf("%.2f", compared(p.Many, base.Many)),
		fmt.Sprintf("%.1f", middle(p.RTT)*1e6),
	}
}
