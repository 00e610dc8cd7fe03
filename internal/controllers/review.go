package controllers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/policy"
)

// Reasons of Events about policies that are enforced.
const (
	reasonInvalid = "InvalidPolicy"
	reasonNoPod   = "PolicySelectsNoPod"
	reasonNoPort  = "PolicyPortUnknown"
	reasonNoHost  = "PolicySelectsNoHost"
)

// remark is a note for the operator on a policy: the reason and text of an Event.
type remark struct{ reason, text string }

// faults returns the remark on the errors in a policy, which needs no pods, or on why it cannot be read.
func faults(p policy.Policy, err error) []remark {
	switch {
	case err != nil:
		return []remark{{reasonInvalid, err.Error()}}
	case len(p.Problems) > 0:
		return []remark{{reasonInvalid, strings.Join(p.Problems, "; ")}}
	}
	return nil
}

// review returns remarks on a policy's pods and host endpoints: that it selects none, and named ports that no pod of
// the rule declares. The state must have the pods of interestOf.
func review(p *policy.Policy, s *policy.State) (all []remark) {
	if p.Applies == [2]bool{} {
		return nil // it applies to no direction
	}
	subjects := selected(&p.Subject, s)
	hosts := slices.ContainsFunc(s.HostEndpoints, func(h policy.HostEndpoint) bool { return s.SelectsHost(p, &h) && countsFor(p, &h) })
	if !hosts {
		all = noHost(p, len(subjects) > 0)
	}
	if p.HostsOnly() || len(subjects) == 0 && hosts {
		return all // it applies to host endpoints
	}
	if len(subjects) == 0 {
		return append(all, remark{reasonNoPod, "no pod with a network of its own is selected, and no host endpoint, so the policy has no " +
			"effect now: compare its selectors with the labels of pods and namespaces"})
	}
	if names := slices.Compact(slices.Sorted(slices.Values(unknownPorts(p, subjects, s)))); len(names) > 0 {
		all = append(all, remark{reasonNoPort, fmt.Sprintf("no pod declares the port %s that a rule names (spec.containers[].ports[].name), so "+
			"the rule matches no packet: declare it there with the rule's protocol, or use its number", `"`+strings.Join(names, `", "`)+`"`)})
	}
	return all
}

// countsFor reports whether a policy that selects a host endpoint applies to it: doNotTrack does only on single
// interfaces.
func countsFor(p *policy.Policy, h *policy.HostEndpoint) bool {
	return h.Node != "" && !(p.NoTrack && h.Interface == policy.AllInterfaces)
}

// noHost returns the remark on a policy for host endpoints that applies to none. pods: it selects pods.
func noHost(p *policy.Policy, pods bool) []remark {
	field, of := "", "host endpoints"
	switch {
	case p.NoTrack:
		field, of = "doNotTrack", `host endpoints of an interface (not of "*")`
	case p.PreDNAT:
		field = "preDNAT"
	case p.Forward && pods:
		field = "applyOnForward"
	default:
		return nil
	}
	lost := "the policy has no effect now"
	if !p.HostsOnly() {
		lost = "it has no effect now; pods have the policy all the same"
	}
	return []remark{{reasonNoHost, fmt.Sprintf("spec.%s is true, which counts for %s alone, and the policy selects none, so %s: compare its "+
		"selectors with the labels of HostEndpoints, or remove %s", field, of, lost, field)}}
}

// mostNamed bounds the named ports of a policy that are checked, each among all pods of its rule: an object has room
// for 50,000.
const mostNamed = 100

// unknownPorts returns the names of ports that no pod declares. In ingress rules a name is looked up in the policy's
// own pods.
func unknownPorts(p *policy.Policy, subjects []*policy.Pod, s *policy.State) (names []string) {
	looked := 0
	for d, rules := range p.Rules {
		for i := range rules {
			for _, port := range rules[i].Ports {
				if port.Name == "" {
					continue
				}
				if looked++; looked > mostNamed {
					return names
				}
				if !slices.ContainsFunc(couldHave(policy.Direction(d), &rules[i], subjects, s), declares(port)) {
					names = append(names, port.Name)
				}
			}
		}
	}
	return names
}

// couldHave returns the pods that may have a named port of a rule: all pods if the rule's peers are networks.
func couldHave(d policy.Direction, rule *policy.Rule, subjects []*policy.Pod, s *policy.State) (pods []*policy.Pod) {
	if d == policy.Ingress {
		return subjects
	}
	everything := policy.Pods{}
	if rule.AnyPeer {
		return selected(&everything, s)
	}
	for i := range rule.Peers {
		peer := &rule.Peers[i]
		switch {
		case peer.Pods != nil:
			pods = append(pods, selected(peer.Pods, s)...)
		case peer.Match != nil && peer.Match.Select != nil && !peer.Match.Not:
			pods = append(pods, selected(peer.Match.Select, s)...)
		case peer.Nodes == nil:
			pods = append(pods, selected(&everything, s)...)
		}
	}
	return pods
}

func declares(port policy.Port) func(*policy.Pod) bool {
	return func(pod *policy.Pod) bool {
		return slices.ContainsFunc(pod.Ports, func(n policy.NamedPort) bool {
			return n.Name == port.Name && (port.Protocol == 0 || n.Protocol == port.Protocol)
		})
	}
}

// selected returns the selected pods of the state.
func selected(by *policy.Pods, s *policy.State) (pods []*policy.Pod) {
	for _, pod := range s.Pods {
		if s.Selects(by, pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// interestOf returns the pods that a review of policies needs.
func interestOf(policies []policy.Policy) policy.Interest {
	var i policy.Interest
	for j := range policies {
		p := &policies[j]
		if p.Applies == [2]bool{} {
			continue
		}
		i.All = i.All || p.Subject.Namespace == "" || namedPorts(p)[policy.Egress]
		i.Namespaces = append(i.Namespaces, p.Subject.Namespace)
	}
	slices.Sort(i.Namespaces)
	i.Namespaces = slices.Compact(i.Namespaces)
	if i.All {
		i.Namespaces = nil
	}
	return i
}

func namedPorts(p *policy.Policy) (named [2]bool) {
	for d, rules := range p.Rules {
		named[d] = slices.ContainsFunc(rules, func(r policy.Rule) bool {
			return slices.ContainsFunc(r.Ports, func(port policy.Port) bool { return port.Name != "" })
		})
	}
	return named
}
