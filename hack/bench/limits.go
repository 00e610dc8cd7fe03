package main

import (
	"fmt"
	"slices"
	"time"
)

// verdict is one requirement and its result in this run.
type verdict struct {
	what, measured, limit string
	met                   bool
}

// Limits relative to other programs in the same run, as absolute times differ between machines.
const (
	maxAddOfGet    = 4        // times the floor of one GET, wall and CPU
	maxAddOfPtp    = 1.5      // times the CPU of ptp + host-local
	maxDelOfFloors = 1.5      // times veth floor + GET floor, wall
	maxRSS         = 16 << 10 // kB
	minBurst       = 5        // times Calico's rate
	maxConflicts   = 1.5      // per ADD, at 100 at once
	maxServer      = 6.3      // times the API server's CPU of one GET: 12 ms where one took 1.9 ms
	maxVersion     = 1.5      // times an empty program
	maxVersionRSS  = 8 << 10  // kB
	maxFile        = 10e6
	maxBFD         = 1  // % of a core
	maxBFDMemory   = 5  // MiB
	maxServices    = 60 // s for 10,000
)

// budget is the maximum number of requests of an operation, and of sequential rounds.
type budget struct{ requests, rounds int }

var budgets = map[string]budget{
	nameCalico + nthAdd:    {3, 2}, // handle, block and pod
	nameNoFacts + nthAdd:   {11, 5},
	nameNoFacts + firstAdd: {14, 0},
	nameCalico + oneDel:    {4, 3},
	nameNoFacts + oneDel:   {6, 4},
}

// judge compares the results of our plugins with the limits. Missing measurements are left out.
func (r *results) judge() []verdict {
	var all []verdict
	all = append(all, r.judgeSequences()...)
	all = append(all, r.judgeBursts()...)
	for _, a := range r.asked {
		if b, ok := budgets[a.subject+a.operation]; ok {
			all = append(all, judgeRequests(a, b))
		}
	}
	return slices.Concat(all, r.judgeRoutes(), r.judgeMemory(), r.judgeMesh(), r.judgeReflectors(), r.judgeInstall(), r.judgeServices(), r.judgeStarts(), r.judgeBFD(), policySummary(r.judgePolicy()))
}

func (r *results) sequence(name string) *sequence {
	for i := range r.sequences {
		if r.sequences[i].subject.name == name {
			return &r.sequences[i]
		}
	}
	return nil
}

// atMost returns the verdict on a ratio.
func atMost(what string, measured, limit float64, of string) verdict {
	return verdict{what, fmt.Sprintf("%.2f×", measured), fmt.Sprintf("≤ %.3g× %s", limit, of), measured <= limit}
}

func (r *results) judgeSequences() []verdict {
	calico, get, veth, ptp := r.sequence(nameCalico), r.sequence(nameGet), r.sequence(nameVeth), r.sequence(namePtp)
	if calico == nil || get == nil || veth == nil || ptp == nil {
		return nil
	}
	median := func(c costs, of func(cost) time.Duration) float64 { return float64(c.all(of).median()) }
	return []verdict{
		atMost("ADD, time", ratio(median(calico.add, wall), median(get.add, wall)), maxAddOfGet, "one GET"),
		atMost("ADD, CPU", ratio(median(calico.add, cpu), median(get.add, cpu)), maxAddOfGet, "one GET"),
		atMost("ADD, CPU", ratio(median(calico.add, cpu), median(ptp.add, cpu)), maxAddOfPtp, "`ptp` + `host-local`"),
		{"ADD and DEL, largest process", mebibytes(calico.size().peak) + " MiB", "≤ 16 MiB", calico.size().peak <= maxRSS},
		atMost("ADD, the API server's CPU", ratio(float64(calico.serverAdd), float64(get.serverAdd)), maxServer, "one GET's"),
		atMost("DEL, time", ratio(median(calico.del, wall), median(veth.del, wall)+median(get.add, wall)), maxDelOfFloors, "(veth floor + one GET)"),
	}
}

func (r *results) judgeBursts() []verdict {
	ptpThere, calicoThere := r.elsewhere.addRate(namePtp), r.elsewhere.addRate(nameCalicoThere)
	var all []verdict
	for _, b := range r.bursts {
		if b.subject.name != nameCalico || b.size < 30 {
			continue
		}
		what := fmt.Sprintf("%d ADDs at once", b.size)
		if ptp := r.burst(namePtp, b.size); ptp != nil && calicoThere > 0 {
			// Calico's rate on this machine is estimated from ptp's by their ratio elsewhere.
			times := rate(b.add) / (rate(ptp.add) * calicoThere / ptpThere)
			all = append(all, verdict{what + ", rate", fmt.Sprintf("%.1f×", times), "≥ 5× Calico's, by `ptp` in both runs", times >= minBurst})
		}
		if b.size == 100 {
			all = append(all, verdict{what + ", conflicts", fmt.Sprintf("%.2f per ADD", b.conflicts), "≤ 1.5 per ADD", b.conflicts <= maxConflicts})
		}
	}
	return all
}

func (r *results) burst(name string, size int) *burst {
	for i := range r.bursts {
		if r.bursts[i].subject.name == name && r.bursts[i].size == size {
			return &r.bursts[i]
		}
	}
	return nil
}

func requestsName(operation, subject string) string {
	return operation + " of " + subject + ", requests"
}

func judgeRequests(a asked, b budget) verdict {
	v := verdict{
		what:     requestsName(a.operation, a.subject),
		measured: fmt.Sprintf("%d in %d rounds", a.count(), len(a.requests)),
		limit:    fmt.Sprintf("≤ %d in ≤ %d", b.requests, b.rounds),
		met:      a.count() <= b.requests && (b.rounds == 0 || len(a.requests) <= b.rounds),
	}
	if b.rounds == 0 {
		v.limit = fmt.Sprintf("≤ %d", b.requests)
	}
	return v
}

func (r *results) judgeStarts() []verdict {
	var all []verdict
	for i, s := range r.starts {
		if i == 0 {
			continue
		}
		times := ratio(float64(s.all(wall).median()), float64(r.starts[0].all(wall).median()))
		all = append(all,
			atMost(s.name+", time", times, maxVersion, "an empty program"),
			verdict{s.name + ", memory", mebibytes(s.size.peak) + " MiB", "≤ 8 MiB", s.size.peak <= maxVersionRSS},
			verdict{s.name + ", its file", fmt.Sprintf("%.1f MB", float64(s.bytes)/1e6), "≤ 10 MB", s.bytes <= maxFile})
	}
	return all
}
