package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// installTest is the measuring test of internal/tests/cluster: a lab with kubelets, containerd and the chart.
const installTest = "TestSpeed"

func (r *results) writeInstall(w *bytes.Buffer) {
	if len(r.install) == 0 {
		return
	}
	w.WriteString("### Nodes and pods of a real cluster\n\nThree nodes of the lab, with Debian's containerd and a kubelet each; images are on the nodes before. " +
		"Sixty pods of one container are created at once on one node, by turns with our plugins and with `ptp` and `host-local`. Median, 95th percentile and largest, in brackets how often:\n\n")
	writeFigures(w, r.install)
}

// Limits of installations, on a machine that is not overloaded.
const (
	maxRollout = 5   // s, median
	maxInstall = 1   // s, median
	maxBurst   = 1.1 // median by that of the trivial plugins
)

func (r *results) judgeInstall() []verdict {
	var all []verdict
	limit := func(prefix string, most float64) {
		if f := r.installFigure(prefix); f != nil {
			seconds := f.at(0.5) / 1000
			all = append(all, verdict{f.Name, fmt.Sprintf("%.1f s", seconds), fmt.Sprintf("≤ %.0f s", most), seconds <= most})
		}
	}
	limit("a DaemonSet on three fresh nodes: from its creation until all its pods", maxRollout)
	limit("install: from its start", maxInstall)
	const burst = "60 pods at once on one node, until all run: "
	ours, trivial := r.installFigure(burst+"Tortie"), r.installFigure(burst+"ptp")
	if ours != nil && trivial != nil {
		ratio := ours.at(0.5) / trivial.at(0.5)
		all = append(all, verdict{ours.Name + " by ptp + host-local", fmt.Sprintf("%.2f×", ratio), fmt.Sprintf("≤ %.1f×", maxBurst), ratio <= maxBurst})
	}
	return all
}

// installFigure returns the figure with this prefix, nil if it was not measured.
func (r *results) installFigure(prefix string) *figure {
	i := slices.IndexFunc(r.install, func(f figure) bool { return strings.HasPrefix(f.Name, prefix) })
	if i < 0 {
		return nil
	}
	return &r.install[i]
}
