package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
)

// Limits of network policy: internal/kernel/netpol has the benchmarks of packets and of the kernel, internal/tests/mesh those of many agents.
const (
	netpolPackage  = "internal/kernel/netpol"
	flowsPackage   = "internal/agent/flows"
	maxTenPolicies = 1.2  // times one policy, the first packet
	maxThousand    = 2    // times one policy, the first packet
	maxCrowded     = 1.1  // times a cluster without others, the first packet: what differs less is the same
	maxEstablished = 600  // ns
	maxOneMorePod  = 100  // µs of the kernel
	maxFromEmpty   = 1000 // ms of CPU
	maxPolicyADD   = 100  // µs
	maxPodCPU      = 2    // ms of the agent
	maxPolicyRSS   = 100e6
	maxFlows       = 1.03 // times without flow records: CPU of a byte
	maxFlowsMB     = 20
	maxAllowed     = 100 // ms until a change is in force, median
	maxAllowedLate = 500 // ms, 99th percentile
)

// policyTest is the measuring test of internal/tests/mesh: pods that come and policies that change, with many agents.
const policyTest = "TestPolicyUnderLoad"

// policyFigures are what the part policy has measured, but for Go's benchmarks.
type policyFigures struct {
	load   []figure
	adds   policyADDs
	agents []policyAgent
}

// runPolicyLoad runs what needs no API server of the bench's own.
func (r *results) runPolicyLoad(ctx context.Context, root, dir string, size sizes) error {
	found, err := runGoBenchmarks(ctx, root, size, []string{"./" + netpolPackage, "./" + flowsPackage})
	if err != nil {
		return err
	}
	r.goBench = append(r.goBench, found...)
	r.policy.load, err = runTests(ctx, root, dir, "internal/tests/mesh", policyTest)
	return err
}

// judgePolicy judges all that the part policy has measured.
func (r *results) judgePolicy() []verdict {
	var all []verdict
	for _, kind := range []string{"ports", "peers"} {
		for _, limit := range []struct {
			what, unit, of string
			most           float64
		}{
			{"10 policies", "x-with-10", "one policy", maxTenPolicies},
			{"1,000 policies", "x-with-1000", "one policy", maxThousand},
			{"500 GlobalNetworkPolicies in three tiers", "x-with-500-in-tiers", "one policy", maxThousand},
			{"10 policies among 1,000 others and 10,000 peers", "x-crowded", "10 policies alone", maxCrowded},
		} {
			if n, ok := r.reported("FirstPacket/"+kind, limit.unit); ok {
				all = append(all, atMost(fmt.Sprintf("first packet, %s by %s", limit.what, kind), n, limit.most, limit.of))
			}
		}
	}
	if n, ok := r.reported("Traffic/bulk", "x-CPU"); ok {
		all = append(all, atMost("a byte with flow records, CPU", n, maxFlows, "without"))
	}
	for _, limit := range []struct {
		benchmark, unit, what, shown string
		most, scale                  float64
	}{
		{"EstablishedPacket", "ns-more-than-tracked", "packet of a connection, beyond connection tracking", "ns", maxEstablished, 1},
		{"EstablishedPacket", "ns-more-than-bare", "packet of a connection, with connection tracking, which nothing else needs", "ns", maxEstablished, 1},
		{"EstablishedPacket", "ns-more-with-tiers", "packet of a connection with 500 GlobalNetworkPolicies in three tiers, beyond connection tracking", "ns", maxEstablished, 1},
		{"OneMorePod", "µs-kernel/pod", "one more pod under 20 selectors, kernel", "µs", maxOneMorePod, 1},
		{"FromEmpty/sparse", "CPU-ms", "1,000 policies for 100 pods from nothing, CPU", "ms", maxFromEmpty, 1},
		{"FromEmpty/dense", "CPU-ms", "1,000 policies on each of 100 pods from nothing, CPU", "ms", maxFromEmpty, 1},
		{"FromEmpty/tiers", "CPU-ms", "500 GlobalNetworkPolicies in three tiers on each of 100 pods from nothing, CPU", "ms", maxFromEmpty, 1},
		{"Plugin", "ns/op", "what ADD asks the kernel, all that it does more", "µs", maxPolicyADD, 1000},
		{"Flood", "MB", "flow records while pods flood connections, memory", "MB", maxFlowsMB, 1},
	} {
		if n, ok := r.reported(limit.benchmark, limit.unit); ok {
			all = append(all, bounded(limit.what, n/limit.scale, limit.most, limit.shown))
		}
	}
	return append(append(all, r.policy.judgeAgents()...), r.policy.judgeLoad()...)
}

func bounded(what string, measured, most float64, unit string) verdict {
	return verdict{what, fmt.Sprintf("%.4g %s", measured, unit), fmt.Sprintf("≤ %.4g %s", most, unit), measured <= most}
}

// judgeLoad judges how soon changes are in force, and that nothing was lost or let through.
func (p *policyFigures) judgeLoad() []verdict {
	var all []verdict
	for _, f := range p.load {
		if f.Unit == "ms" {
			all = append(all, bounded(f.Name+", median", f.at(0.5), maxAllowed, "ms"), bounded(f.Name+", 99th percentile", f.at(0.99), maxAllowedLate, "ms"))
		}
	}
	return all
}

// reported is a figure that a benchmark of policies reports.
func (r *results) reported(benchmark, unit string) (float64, bool) {
	return r.reportedBy(benchmark, unit, netpolPackage, flowsPackage)
}

// policyTotal is the name of the line among all requirements.
const policyTotal = "network policy, requirements met"

// policySummary is that line.
func policySummary(all []verdict) []verdict {
	met := 0
	for _, v := range all {
		if v.met {
			met++
		}
	}
	if len(all) == 0 {
		return nil
	}
	return []verdict{{policyTotal, strconv.Itoa(met), fmt.Sprintf("%d, [below](#network-policy)", len(all)), met == len(all)}}
}

func (r *results) writePolicy(w *bytes.Buffer) {
	all := r.judgePolicy()
	if len(all) == 0 {
		return
	}
	w.WriteString("### Network policy\n\nPackets: processor time of the whole way from one pod to another, medians of 15 rounds in turns. ADD: on two nodes by turns, whose " +
		"agents enforce policies or do not. The agent: the real process with 1,000 policies, ten on each of 100 own pods or all on each, or with 500 GlobalNetworkPolicies in three tiers on each, 10,000 pods as peers; then 20 pods " +
		"per second under 20 selectors each. Changes: five real agents, 20 pods per second, without and with 500 GlobalNetworkPolicies in three tiers on each, and packets every 5 ms that tell how soon all agents let a pod through, or deny what a new policy denies, API server and all agents on these processors.\n\n")
	t := table{{"claim", "bound", "measured", ""}}
	for _, v := range all {
		t.row(v.what, v.limit, v.measured, map[bool]string{true: "met", false: "**not met**"}[v.met])
	}
	t.write(w)
	if slices.ContainsFunc(all, func(v verdict) bool { return !v.met }) {
		w.WriteString("Not met:\n\n")
		writeUnmet(w, all)
		w.WriteString("Further figures:\n\n")
	}
	r.policy.writeMore(w)
}
