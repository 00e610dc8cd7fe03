package main

import (
	"bytes"
	"fmt"
)

// reason is why a requirement is not met, and what was tried, in two sentences at most each. The history of the repository has more.
type reason struct{ why, tried string }

const (
	notFoundOut = "not found out"
	whyRounds   = "[why](design/ipam.md#why-three-rounds)"
)

var (
	reasonTiers = reason{
		"A change of a policy makes each of five agents compile all 500 anew, which takes 4 ms alone, on two processors that they share with the API server. " +
			"Where the rest of the time goes was not found out",
		"giving a pod the programs that another one has, keeping programs for a minute, and collecting garbage less often: " +
			"the median of a pod was 350 ms before, and 75 ms in another run with these",
	}
)

// reasons are those of the requirements that were not met in some run, by their names.
var reasons = map[string]reason{
	"ADD, the API server's CPU": {
		"An ADD makes three requests, each of which writes to etcd: " + whyRounds + ". Why it was 6.44× on another machine on 26 November was not found out",
		"answering writes by metadata alone, keeping the block that was written last, and taking the agent's word for the pod; the last two spare a GET each: " +
			"8.6× on 22 November with the first; 7.9× with the first two and 8.1× with all on 27 November: what the third brings is less than runs differ",
	},
	requestsName(nthAdd, nameCalico): {
		"The handle precedes the block, and the block precedes the pod's annotations: " + whyRounds,
		"keeping the block that was written last, and taking the agent's word for the pod, in place of five requests in three rounds",
	},
	"10000 learned routes in the kernel, time": {
		"BIRD writes each route as it reads it; a pass waits until BGP was quiet for 3 ms, and decides on the whole table, in 30 ms, before it writes the first " +
			"route, some 10 ms after the last UPDATE was read. The kernel then takes 37 ms, as with BIRD",
		"judging each path once, sorting integers, a shorter pause: 1.66× to 1.30× on the machine of 27 November; before, reading paths before GoBGP has " +
			"taken them in and collecting garbage less often: 2.23× on 22 November",
	},
	"reflectors, model and 200 speakers: CPU of a reflector, s": {
		"With a hundred processes per processor 200 speakers take more than the model says, which is fitted to 50 and 100",
		"a wider bound, 1.6, than for other figures; nothing else was found",
	},
	"install: from its start until plugins and kubeconfig are in place and proven": {
		"Programs are copied, synced to disk and started once on three nodes that share two processors and a disk: up to 0.9 s pass before the first " +
			"file, and 0.3 s with each of the two large ones. 15 installations by themselves took 0.85 s in the median on 27 November",
		"nothing: the second of the two, which has the same bytes, could be a hard link, but then who writes over one in place changes both",
	},
	"60 pods at once on one node, until all run: Tortie by ptp + host-local": {
		"Plugin and API server take 22 ms more of a processor for an ADD than `ptp`, which asks no API server, on the processors on which the pods start: a third " +
			"of the difference. ADDs of a node take turns to assign addresses. The rest was not found out",
		"making an ADD of four requests in place of five: 1.23× on 22 November, before that",
	},
	"500 BFD sessions at 3 × 300 ms, CPU": {
		"Bare system calls for the same packets take more than the bound",
		"one goroutine without timers, up to 64 packets read by one system call, and system calls that Go's scheduler does not hear of",
	},
	"a pod that appears, until all other nodes let it through, with 500 GlobalNetworkPolicies in three tiers, median": reasonTiers,
	"a policy applied, until it denies on all nodes, with 500 GlobalNetworkPolicies in three tiers, median":           reasonTiers,
	"a policy removed, until no node denies any more, with 500 GlobalNetworkPolicies in three tiers, median":          reasonTiers,
}

// writeUnmet lists the requirements that are not met, with reasons, which are given once where consecutive ones share them.
func writeUnmet(w *bytes.Buffer, all []verdict) {
	var last reason
	for _, v := range all {
		if v.met {
			continue
		}
		fmt.Fprintf(w, "- %s: %s (%s)\n", v.what, v.measured, v.limit)
		r, ok := reasons[v.what]
		switch {
		case v.what == policyTotal: // the reasons are with its parts
			continue
		case !ok:
			r = reason{notFoundOut, notFoundOut}
		case r == last:
			fmt.Fprint(w, "  - why, tried: as above\n")
			continue
		}
		fmt.Fprintf(w, "  - why: %s\n  - tried: %s\n", r.why, r.tried)
		last = r
	}
	w.WriteString("\n")
}
