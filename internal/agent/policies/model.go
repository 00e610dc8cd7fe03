package policies

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

// model is what is known of the cluster, in the form that policies are compiled from.
type model struct {
	policy.State
	view cluster.PolicyView
	read map[any]policy.Policy // by object, which is never changed
	good map[object]policy.Policy
	// invalid are the problems of policies that are in force as far as they can be read, leftOut is why others are not in force at all, or as they were.
	invalid, leftOut map[policy.ID][]string
	sameLink         []string // see Links
	unlisted
}

// object names one object, and none that follows it under its name.
type object struct {
	policy.ID
	uid string
}

// news is what has changed: pods of other nodes, or all: more than that.
type news struct {
	pods []policy.PodKey
	all  bool
}

func (m *model) take(v cluster.PolicyView) news {
	m.view = v
	return news{v.Changed, v.More}
}

// complete reports that a Ruleset can be made that lacks nothing.
func (m *model) complete() bool { return m.view.Complete }

// build makes the State of what the API and the kernel's routes say.
func (m *model) build(r routed) {
	local, same := Links(m.view.Local)
	m.sameLink = same
	m.State = policy.State{
		Local: local, Pods: make(map[policy.PodKey]*policy.Pod, len(m.view.Pods)),
		Namespaces: m.view.Namespaces, Nodes: m.view.Nodes, Policies: m.policies(),
	}
	for key, p := range m.view.Pods {
		m.Pods[key] = r.remotePod(p)
	}
	for link, key := range m.Local {
		m.Pods[key] = r.localPod(m.view.Pods[key], link)
	}
}

// replace takes in pods of other nodes. known: one of them had an address before, so that it may have connections.
func (m *model) replace(pods []policy.PodKey, r routed) (known bool) {
	for _, key := range pods {
		if before := m.Pods[key]; before != nil {
			known = known || len(before.Addresses) > 0
		}
		if p := m.view.Pods[key]; p != nil {
			m.Pods[key] = r.remotePod(p)
		} else {
			delete(m.Pods, key)
		}
	}
	return known
}

// policies reads the policies that are new, and takes the others as they were read before. Of one that has become unreadable the last version
// stays in force that was not.
func (m *model) policies() []policy.Policy {
	read, good := make(map[any]policy.Policy, len(m.read)), make(map[object]policy.Policy, len(m.good))
	m.invalid, m.leftOut = map[policy.ID][]string{}, map[policy.ID][]string{}
	all := make([]policy.Policy, 0, len(m.view.NetworkPolicies)+len(m.view.ClusterNetworkPolicies))
	add := func(of any, uid string, p policy.Policy) {
		read[of], good[object{p.ID, uid}] = p, p
		all = append(all, p)
		if len(p.Problems) > 0 {
			m.invalid[p.ID] = p.Problems
		}
	}
	for _, o := range m.view.NetworkPolicies {
		p, known := m.read[o]
		if !known {
			p = policy.FromNetworkPolicy(o)
		}
		add(o, o.UID, p)
	}
	for _, o := range m.view.ClusterNetworkPolicies {
		p, err := m.clusterPolicy(o)
		if err == nil {
			add(o, o.UID, p)
			continue
		}
		m.leftOut[p.ID] = []string{err.Error()}
		if before, ok := m.good[object{p.ID, o.UID}]; ok {
			good[object{p.ID, o.UID}] = before
			all = append(all, before)
		}
	}
	m.read, m.good = read, good
	for _, p := range m.view.Problems {
		if kind := p.Kind.Kind; kind == "NetworkPolicy" || kind == "ClusterNetworkPolicy" {
			namespace, name, inside := strings.Cut(p.Name, "/")
			if !inside {
				namespace, name = "", p.Name
			}
			id := policy.ID{Kind: kind, Namespace: namespace, Name: name}
			m.leftOut[id] = append(m.leftOut[id], p.Err.Error())
		}
	}
	return all
}

func (m *model) clusterPolicy(o *api.ClusterNetworkPolicy) (policy.Policy, error) {
	if p, known := m.read[o]; known {
		return p, nil
	}
	p, err := policy.FromClusterNetworkPolicy(o)
	p.ID = policy.ID{Kind: "ClusterNetworkPolicy", Name: o.Name}
	return p, err
}

// mayForbid reports that a Ruleset may deny what the one before it allowed to pods or from pods that both know.
func mayForbid(before, after *policy.Ruleset) bool {
	for link, e := range after.Endpoints {
		known, ok := before.Endpoints[link]
		if ok && known.Programs != e.Programs || !ok && !before.Closed {
			return true
		}
	}
	for addr, sets := range before.Members {
		if !slices.Equal(sets, after.Members[addr]) {
			return true
		}
	}
	return newlyDenied(before, after)
}

// newlyDenied reports that an address which was in no set has come into one that a program denies.
func newlyDenied(before, after *policy.Ruleset) bool {
	denying := map[policy.SetID]bool{}
	for _, p := range after.Programs {
		for l := range p.Lists() {
			for _, s := range l.Steps {
				if s.Set != 0 && !s.Verdict.Allow {
					denying[s.Set] = true
				}
			}
		}
	}
	if len(denying) == 0 {
		return false
	}
	for addr, sets := range after.Members {
		if _, known := before.Members[addr]; !known && slices.ContainsFunc(sets, func(id policy.SetID) bool { return denying[id] }) {
			return true
		}
	}
	return false
}

func (r routed) equal(o routed) bool {
	return maps.EqualFunc(r.byLink, o.byLink, func(a, b []netip.Addr) bool { return slices.Equal(a, b) })
}
