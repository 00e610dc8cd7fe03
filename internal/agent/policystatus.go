package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// ShowPolicies shows the state of policies, and makes metrics of it and of the packets that policies have dropped. Call
// it before the agent runs.
func (s *Status) ShowPolicies(w *policies.Worker, dropped func(context.Context) (map[netpol.Denied]nft.Counter, error)) {
	s.policies = w
	s.metrics.addPolicies(w)
	s.metrics.addDenied(dropped)
}

// policyReport returns the state of policies, its problems, and the reasons of the Events about these, by their texts.
// r is nil if this agent has no part that enforces policies.
func policyReport(w *policies.Worker) (r *nodestatus.Policy, problems []string, reasons map[string]string) {
	if w == nil {
		return nil, nil, nil
	}
	k := w.Seen()
	r = &nodestatus.Policy{
		Mode: string(k.Mode), Reason: k.Reason, Message: k.Why, Policed: k.Policed, Open: k.Open, Policies: k.Policies, Programs: k.Programs,
		Members: k.Members, Applied: timeOrNil(k.Applied), Seconds: k.Took.Seconds(), Waiting: timeOrNil(k.Waiting),
		EndedFlows: k.Ended, Connections: "end",
	}
	for _, d := range w.Denials() {
		r.Denials = append(r.Denials, nodestatus.Denial{By: d.Why, Source: d.Src.String(), Destination: d.Dst.String(), Protocol: d.Protocol,
			Port: d.Port, Packets: d.Packets})
	}
	if k.Keeps {
		r.Connections = "keep"
	}
	return r, k.Problems(), k.EventReasons()
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// addPolicies makes the metrics of a worker.
func (m *metrics) addPolicies(w *policies.Worker) {
	of := func(value func(k *policies.Seen) float64) func(*sample) float64 {
		return func(*sample) float64 { k := w.Seen(); return value(&k) }
	}
	m.add(
		gauges("tortie_policy_endpoints", "Pods of this node by whether a policy selects them: policed or open.", []string{"state"},
			func(_ *sample, set func(float64, ...string)) {
				k := w.Seen()
				set(number(k.Policed), "policed")
				set(number(k.Open), "open")
			}),
		gauges("tortie_policy_not_enforced", "1 for the reason why this agent enforces no policies: "+
			"felix, cilium or antrea does, it is starting (what an earlier agent left is in force) or failing; ipvs if it does, but kube-proxy "+
			"uses IPVS, by which policies do not hold for packets to Services. There is none with TORTIE_POLICY off.", []string{"reason"},
			func(_ *sample, set func(float64, ...string)) {
				k := w.Seen()
				for _, reason := range policies.Reasons {
					set(truth(k.Mode != config.PolicyOff && k.Is(reason)), reason)
				}
			}),
		gauge("tortie_policy_policies", "Policies of the cluster that are in force.",
			of(func(k *policies.Seen) float64 { return number(k.Policies) })),
		gauge("tortie_policy_left_out", "Policies that cannot be read: their last versions that could are in force, if there were any.",
			of(func(k *policies.Seen) float64 { return number(len(k.LeftOut)) })),
		gauge("tortie_policy_invalid", "Policies with a part that cannot be read, which allows nothing.",
			of(func(k *policies.Seen) float64 { return number(len(k.Invalid)) })),
		gauge("tortie_policy_locks_out", "1: policies of host endpoints deny this node the API server, and TORTIE_POLICY_LOCKOUT_GUARD has "+
			"rolled them back, or keeps the way open.", of(func(k *policies.Seen) float64 { return truth(k.LockedOut) })),
		gauge("tortie_policy_closed_pods", "Pods of this node that pass nothing in a direction: the policies of their namespace are too large "+
			"for a node, or the names of two pods give one link.", of(func(k *policies.Seen) float64 { return number(k.Closed) })),
		gauge("tortie_policy_refused", "1: the kernel refuses rules, so that the pods which they are for are closed.",
			of(func(k *policies.Seen) float64 { return truth(k.Refused != nil) })),
		gauge("tortie_policy_deaf_seconds",
			"How long watches of what policies depend on have failed, so that changes are not in force; 0 if none does.",
			of(func(k *policies.Seen) float64 { return age(k.DeafSince) })),
		gauge("tortie_policy_programs", "Different lists of rules that the pods of this node have.",
			of(func(k *policies.Seen) float64 { return number(k.Programs) })),
		gauge("tortie_policy_members", "Addresses of pods that these name.", of(func(k *policies.Seen) float64 { return number(k.Members) })),
		gauge("tortie_policy_apply_seconds", "How long the last change or comparison of the kernel's rules took.",
			of(func(k *policies.Seen) float64 { return k.Took.Seconds() })),
		gauge("tortie_policy_pending_seconds", "Age of the oldest change that is not in force; 0 if all are.",
			of(func(k *policies.Seen) float64 { return age(k.Waiting) })),
		counter("tortie_policy_applies_total", "How often the kernel's rules were changed or compared.",
			func() float64 { return number(w.Seen().Applies) }),
		counter("tortie_policy_compiles_total", "How often programs were made of all policies: a pod that has those of another one does without.",
			func() float64 { return number(w.Seen().Compiles) }),
		counter("tortie_policy_failures_total", "Passes after which policies were not as they should be.",
			func() float64 { return number(w.Seen().Failed) }),
		counter("tortie_policy_ended_connections_total", "Established connections that were ended as policies forbid them.",
			func() float64 { return number(w.Seen().Ended) }),
	)
}

// age returns the seconds since t; 0 for the zero time.
func age(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return time.Since(t).Seconds()
}

// addDenied makes the metric of packets that policies denied.
func (m *metrics) addDenied(read func(context.Context) (map[netpol.Denied]nft.Counter, error)) {
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_policy_denied_packets_total", Help: "Packets of pods of this node that were dropped, by direction and by the policy that " +
			"isolates the pod or denies them (kind, namespace, name); without one the reason is an unknown link, of a pod that the agent has not " +
			"seen, or a state of conntrack that is invalid.",
	}, []string{"direction", "kind", "namespace", "name", "reason"})
	addKernelCounters(m, dropped, labelsOf, read)
}

func labelsOf(by netpol.Denied) []string {
	return []string{by.Direction.String(), by.By.Kind, by.By.Namespace, by.By.Name, by.Reason}
}
