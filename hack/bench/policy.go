package main

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of network policy in the kernel: internal/kernel/netpol has the benchmarks.
const (
	netpolPackage  = "internal/kernel/netpol"
	maxTenPolicies = 1.2  // times one policy, the first packet
	maxThousand    = 2    // times one policy, the first packet
	maxEstablished = 600  // ns
	maxOneMorePod  = 100  // µs of the kernel
	maxFromEmpty   = 1000 // ms of CPU
)

// judgePolicy judges what the benchmarks of policies report themselves.
func (r *results) judgePolicy() []verdict {
	var all []verdict
	for _, kind := range []string{"ports", "peers"} {
		for _, limit := range []struct {
			policies string
			most     float64
		}{{"10", maxTenPolicies}, {"1000", maxThousand}} {
			if n, ok := r.reported("FirstPacket/"+kind, "x-with-"+limit.policies); ok {
				all = append(all, atMost(fmt.Sprintf("first packet, %s policies by %s", limit.policies, kind), n, limit.most, "one policy"))
			}
		}
	}
	for _, limit := range []struct {
		benchmark, unit, what, shown string
		most                         float64
	}{
		{"EstablishedPacket", "ns-more-than-tracked", "packet of a connection, policies", "ns", maxEstablished},
		{"OneMorePod", "µs-kernel/pod", "one more pod under 20 selectors, kernel", "µs", maxOneMorePod},
		{"FromEmpty/sparse", "CPU-ms", "1,000 policies for 100 pods from nothing, CPU", "ms", maxFromEmpty},
		{"FromEmpty/dense", "CPU-ms", "1,000 policies on each of 100 pods from nothing, CPU", "ms", maxFromEmpty},
	} {
		if n, ok := r.reported(limit.benchmark, limit.unit); ok {
			all = append(all, verdict{limit.what, fmt.Sprintf("%.4g %s", n, limit.shown), fmt.Sprintf("≤ %.4g %s", limit.most, limit.shown), n <= limit.most})
		}
	}
	return all
}

// reported is a figure that a benchmark of policies reports itself.
func (r *results) reported(benchmark, unit string) (float64, bool) {
	for _, b := range r.goBench {
		words := strings.Fields(b.figures)
		for i := 1; i < len(words) && b.pkg == netpolPackage && b.name == benchmark; i++ {
			if words[i] == unit {
				n, err := strconv.ParseFloat(words[i-1], 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}
