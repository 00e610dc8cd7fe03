package main

import (
	"bytes"
	"fmt"
)

// reason is why a requirement is not met, and what was tried, in two sentences at most each. The history of the repository has more.
type reason struct{ why, tried string }

const (
	notFoundOut = "not found out"
	whyFour     = "[why](design/ipam.md#why-four-requests)"
)

var (
	reasonVXLAN = reason{
		"The devices have the same settings, and neither path has rules: five rounds spread by more than this difference",
		"comparing the settings, and 21 rounds on a busy machine on 27 November: one stream 0.98× (the middle half of the rounds 0.77 to 1.17), 8 streams " +
			"1.05×, one byte there and back 1.00×",
	}
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
		"An ADD makes four requests, of which three write to etcd: " + whyFour,
		"answering writes by metadata alone, and then keeping the block that was written last, which spares a GET: 8.6× on 22 November, without the latter",
	},
	requestsName(nthAdd, nameCalico): {
		"The handle precedes the block, the block precedes the pod's annotations, and other annotations of the pod decide on its address: " + whyFour,
		"keeping the block that was written last, in place of a fifth request",
	},
	"10000 learned routes in the kernel, time": {
		"A pass waits until BGP was quiet for 5 ms, and decides on the whole table before it writes the first route. " +
			"How much of the difference that is was not found out",
		"reading paths before GoBGP has taken them in, copying less, and collecting garbage less often: 2.23× on 22 November, before these",
	},
	"pods through `vxlan.calico`, one stream": reasonVXLAN,
	"pods through `vxlan.calico`, 8 streams":  reasonVXLAN,
	"agent, 1000 nodes, 3000 affinities, full mesh, all peers answer": {
		"Each session has a neighbour in GoBGP, and a connection to it besides the peer's. " +
			"With 1,000 the agent has 7,850 goroutines, 32 MiB of stacks and 45 MiB of heap in use",
		"making a neighbour when its peer first answers, which helps with peers that do not. " +
			"No try of sessions without state in GoBGP for what the relay keeps was found",
	},
	"reflectors, model and 200 speakers: CPU of a reflector, s": {
		"With a hundred processes per processor 200 speakers take more than the model says, which is fitted to 50 and 100",
		"a wider bound, 1.6, than for other figures; nothing else was found",
	},
	"60 pods at once on one node, until all run: Tortie by ptp + host-local": {
		"Plugin and API server take 21 ms more of a processor for an ADD than `ptp`, which asks no API server, on the processors on which the pods start. " +
			"ADDs of a node take turns to assign addresses",
		"making an ADD of four requests in place of five: 1.23× on 22 November, before that",
	},
	"500 BFD sessions at 3 × 300 ms, CPU": {
		"Bare system calls for the same packets take more than the bound, at the same load of 13",
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
