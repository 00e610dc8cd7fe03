package policies

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

// model is the known state of the cluster, in the form that policies are compiled from.
type model struct {
	cluster.PolicyState
	view     cluster.PolicyView
	reader   cluster.PolicyReader
	sameLink []string // see Links
	// withSameLink is how many pods these name.
	withSameLink int
	unlisted
}

// news is the extent of a change: pods of other nodes only, or more.
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
	m.PolicyState = m.reader.State(&m.view)
	m.Local, m.sameLink = Links(m.view.Local)
	m.withSameLink = len(m.view.Local) - len(m.Local)
	m.Pods = make(map[policy.PodKey]*policy.Pod, len(m.view.Pods))
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

// denyingSets are those that a program denies.
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
