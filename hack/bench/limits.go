package main

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// verdict is one requirement and its result in this run.
type verdict struct {
	what, measured, limit string
	met                   bool
}

// Limits relative to other programs in the same run, as absolute times differ between machines.
const (
	maxAddOfGet    = 4    // times the floor of one GET, wall and CPU
	maxAddOfPtp    = 1.5  // times the CPU of ptp + host-local
	maxSecond      = 1.03 // times the first API group, wall
	maxDelOfFloors = 1.5  // times veth floor + GET floor, wall
	maxPluginMiB   = 16
	maxServer      = 6.3 // times the API server's CPU of one GET: 12 ms where one took 1.9 ms
	minBurst       = 5   // times Calico's rate
	maxConflicts   = 1.5 // per ADD, at 100 at once
	maxRoutes      = 2   // times BIRD 2
	maxAgentMiB    = 64
	maxNewNode     = 2000 // ms, worst of all nodes
	maxSteady      = 100  // ms, median
	maxDrift       = 1000 // ms, worst
	maxRollout     = 5000 // ms, median
	maxInstall     = 1000 // ms, median
	maxPods        = 1.1  // times ptp + host-local, 60 pods of a real node, median
	maxTen         = 1.2  // times one policy, the first packet
	maxThousand    = 2    // times one policy, the first packet
	maxAllowed     = 100  // ms until a change of policies is in force, median
	maxAllowedLate = 500  // ms, 99th percentile
	// ptpOfCalico is the ratio of pods per second, 30 at once, with ptp + host-local to those with Calico: 175 and 6.0 in
	// the run of docs/benchmarks-calico.csv. It estimates Calico's rate on another machine.
	ptpOfCalico = 175 / 6.0
)

// untilLast is the name of a figure of the part routes.
const untilLast = "until the last route"

// judge compares the figures with the limits. It leaves out figures that were not measured.
func (f *figures) judge() (all []verdict) {
	ratio := func(what string, limit float64, of string, a *figure, b ...*figure) {
		sum := 0.0
		for _, one := range b {
			if one == nil {
				return
			}
			sum += one.at(0.5)
		}
		if a != nil && sum > 0 {
			r := a.at(0.5) / sum
			all = append(all, verdict{what, fmt.Sprintf("%.2f×", r), fmt.Sprintf("≤ %.3g× %s", limit, of), r <= limit})
		}
	}
	bound := func(a *figure, what string, q, limit float64) {
		if a != nil {
			all = append(all, verdict{what, strings.TrimSpace(fmt.Sprintf("%.4g %s", a.at(q), a.unit)),
				strings.TrimSpace(fmt.Sprintf("≤ %.4g %s", limit, a.unit)), a.at(q) <= limit})
		}
	}
	add := func(subject, what string) *figure { return f.of("add", subject, 0, what) }
	ratio("ADD, time", maxAddOfGet, "one GET", add(nameCalico, "ADD"), add(nameGet, "ADD"))
	ratio("ADD, CPU", maxAddOfGet, "one GET", add(nameCalico, "ADD, CPU"), add(nameGet, "ADD, CPU"))
	ratio("ADD, CPU", maxAddOfPtp, namePtp, add(nameCalico, "ADD, CPU"), add(namePtp, "ADD, CPU"))
	bound(add(nameCalico, largest), "ADD and DEL, largest process", 1, maxPluginMiB)
	ratio("ADD, the API server's CPU", maxServer, "one GET's", add(nameCalico, "ADD"+ofServer), add(nameGet, "ADD"+ofServer))
	ratio("DEL, time", maxDelOfFloors, "(veth floor + one GET)", add(nameCalico, "DEL"), add(nameVeth, "DEL"), add(nameGet, "ADD"))
	for _, verb := range []string{"ADD", "DEL"} {
		ratio(verb+" in "+string(groups.V3)+", time", maxSecond, "in "+string(groups.V1),
			f.of(partGroups, string(groups.V3), 0, verb), f.of(partGroups, string(groups.V1), 0, verb))
	}
	for _, size := range []int{30, 100} {
		ours, ptp := f.of("burst", nameCalico, size, allADDs), f.of("burst", namePtp, size, allADDs)
		if ours != nil && ptp != nil {
			times := ptp.at(0.5) / ours.at(0.5) * ptpOfCalico
			all = append(all, verdict{fmt.Sprintf("%d ADDs at once, rate", size), fmt.Sprintf("%.1f×", times),
				fmt.Sprintf("≥ %d× Calico's, by ptp in both runs", minBurst), times >= minBurst})
		}
	}
	bound(f.of("burst", nameCalico, 100, conflicts), "100 ADDs at once, conflicts of each", 0.5, maxConflicts)
	for _, one := range f.all {
		switch {
		case one.part == "routes" && one.subject == "the agent" && one.what == untilLast:
			const bird = "BIRD 2"
			ratio(fmt.Sprintf("%d learned routes in the kernel, time", one.size), maxRoutes, bird, one, f.of("routes", bird, one.size, untilLast))
		case one.part == "memory" && one.what == resident:
			bound(one, fmt.Sprintf("agent, %d nodes, %s: memory", one.size, one.subject), 0.5, maxAgentMiB)
		case one.part == partPolicy && (one.size == 10 || one.size == 1000):
			limit := map[int]float64{10: maxTen, 1000: maxThousand}[one.size]
			of := f.of(partPolicy, one.subject, 1, one.what)
			ratio(fmt.Sprintf("first packet, %d policies %s", one.size, one.subject), limit, "one policy", one, of)
		case one.part == partMesh:
			f.judgeMesh(one, bound, ratio)
		}
	}
	return all
}

// judgeMesh judges a figure of the measuring tests, by its name.
func (f *figures) judgeMesh(
	one *figure, bound func(*figure, string, float64, float64), ratio func(string, float64, string, *figure, ...*figure),
) {
	begins := func(text string) bool { return strings.HasPrefix(one.subject, text) }
	const pods = "60 pods at once on one node, until all run: "
	switch {
	case begins("a new node's first block"):
		bound(one, one.subject, 1, maxNewNode)
	case begins("a block in steady state"):
		bound(one, one.subject, 0.5, maxSteady)
	case strings.HasSuffix(one.subject, ": put right"):
		bound(one, one.subject, 1, maxDrift)
	case begins("packets lost"):
		bound(one, one.subject, 1, 0)
	case begins("a DaemonSet on three fresh nodes: from its creation until all its pods"):
		bound(one, one.subject, 0.5, maxRollout)
	case begins("install: from its start"):
		bound(one, one.subject, 0.5, maxInstall)
	case one.subject == pods+"Tortie":
		ratio(one.subject, maxPods, namePtp, one, f.of(partMesh, pods+namePtp, 0, ""))
	case begins("a pod that appears"), begins("a policy applied"), begins("a policy removed"):
		bound(one, one.subject+", median", 0.5, maxAllowed)
		bound(one, one.subject+", 99th percentile", 0.99, maxAllowedLate)
	}
}
