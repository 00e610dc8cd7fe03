package policies

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

// model is the known state of the cluster, in the form from which policies are compiled.
type model struct {
	cluster.PolicyState
	view     cluster.PolicyView
	reader   cluster.PolicyReader
	sameLink []string // from Links
	// withSameLink is the number of pods that sameLink names.
	withSameLink int
	unlisted
}

// news is the extent of a change: changed pods, of which some may be this node's own, other routes to these, or more.
type news struct {
	pods               []policy.PodKey
	own, rerouted, all bool
}

func (m *model) take(v cluster.PolicyView) news {
	m.view = v
	return news{pods: v.Changed, own: v.OwnChanged, all: v.More}
}

// complete reports whether a Ruleset would lack nothing.
func (m *model) complete() bool { return m.view.Complete }

// build makes the State from the API's objects and the kernel's routes.
func (m *model) build(r routed) {
	m.PolicyState = m.reader.State(&m.view)
	m.Local, m.sameLink = Links(m.view.Local)
	m.withSameLink = len(m.view.Local) - len(m.Local)
	m.Pods = make(map[policy.PodKey]*policy.Pod, len(m.view.Pods))
	for key, p := range m.view.Pods {
		m.Pods[key] = r.unroutedPod(p)
	}
	for link, key := range m.Local {
		m.Pods[key] = r.localPod(m.view.Pods[key], link)
	}
}

// routed returns a pod with the addresses that count.
func (m *model) routed(p *policy.Pod, r routed) *policy.Pod {
	if link := LinkOf(p.PodKey); m.Local[link] == p.PodKey {
		return r.localPod(p, link)
	}
	return r.unroutedPod(p)
}

// follow applies changes of pods, and of routes, and returns all pods that may have changed by them. known: one of
// these had an address before, so it may have connections. ok is false, and nothing is done, if other pods share a link
// now.
func (m *model) follow(n news, before, after routed) (changed []policy.PodKey, known, ok bool) {
	if n.own {
		local, same := Links(m.view.Local)
		if !slices.Equal(same, m.sameLink) {
			return nil, false, false
		}
		m.Local = local
	}
	changed = n.pods
	if n.rerouted {
		changed = slices.Concat(changed, m.rerouted(before, after))
	}
	for _, key := range changed {
		if before := m.Pods[key]; before != nil {
			known = known || len(before.Addresses)+len(before.Unsure) > 0
		}
		if p := m.view.Pods[key]; p != nil {
			m.Pods[key] = m.routed(p, after)
		} else {
			delete(m.Pods, key)
		}
	}
	return changed, known, true
}

// rerouted returns the pods with addresses that are routed to other links.
func (m *model) rerouted(before, after routed) (pods []policy.PodKey) {
	moved := map[netip.Addr]bool{}
	for _, two := range [][2]routed{{before, after}, {after, before}} {
		for addr, link := range two[0].links {
			if two[1].links[addr] != link {
				moved[addr] = true
			}
		}
	}
	for link, key := range m.Local {
		if !slices.Equal(before.byLink[link], after.byLink[link]) {
			pods = append(pods, key)
		}
	}
	for key, p := range m.view.Pods {
		isMoved := func(a netip.Addr) bool { return moved[a] }
		if slices.ContainsFunc(p.Addresses, isMoved) || slices.ContainsFunc(p.Unsure, isMoved) {
			pods = append(pods, key)
		}
	}
	return pods
}

// mayForbid reports whether a Ruleset may deny what the one before allowed, between addresses or pods that both know.
func mayForbid(before, after *policy.Ruleset) bool {
	if endpointsForbid(before, after.Endpoints) {
		return true
	}
	for addr, sets := range before.Members {
		if !slices.Equal(sets, after.Members[addr]) {
			return true
		}
	}
	return newlyDenied(before, after)
}

func endpointsForbid(before *policy.Ruleset, after map[string]policy.Endpoint) bool {
	for link, e := range after {
		known, ok := before.Endpoints[link]
		if ok && known.Programs != e.Programs || !ok && !before.Closed {
			return true
		}
	}
	return false
}

// newlyDenied reports whether an address without a set has come into a set that a program denies.
func newlyDenied(before, after *policy.Ruleset) bool {
	denying := denyingSets(after)
	if len(denying) == 0 {
		return false
	}
	for addr, sets := range after.Members {
		if _, known := before.Members[addr]; !known && denying.anyOf(sets) {
			return true
		}
	}
	return false
}

// setIDs are sets of addresses.
type setIDs map[policy.SetID]bool

func (s setIDs) anyOf(sets []policy.SetID) bool {
	return slices.ContainsFunc(sets, func(id policy.SetID) bool { return s[id] })
}

// denyingSets returns the sets that a program denies.
func denyingSets(rules *policy.Ruleset) setIDs {
	denying := setIDs{}
	for _, p := range rules.Programs {
		for l := range p.Lists() {
			for _, s := range l.Steps {
				if s.Set != 0 && !s.Verdict.Allow {
					denying[s.Set] = true
				}
			}
		}
	}
	return denying
}

func (r routed) equal(o routed) bool {
	return maps.EqualFunc(r.byLink, o.byLink, func(a, b []netip.Addr) bool { return slices.Equal(a, b) })
}
