package policy

import (
	"maps"
	"slices"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// Interest names the namespaces with pods that matter to the policies that select local pods.
type Interest struct {
	All        bool     // pods of all namespaces
	Namespaces []string // if not All: ascending; local pods always matter
}

// And returns the union of both interests.
func (i Interest) And(o Interest) Interest {
	names := slices.Concat(i.Namespaces, o.Namespaces)
	slices.Sort(names)
	return Interest{All: i.All || o.All, Namespaces: slices.Compact(names)}
}

// Interest reads the rules of the policies that select local pods.
func (state State) Interest() Interest { return Select(state).Interest() }

// Interest returns the interest of the selected policies.
func (s *Selection) Interest() Interest {
	b := broad{state: s.state, hosts: s.state.HasHosts(), names: map[string]bool{}, asked: map[namespaceText]bool{}}
	for p := range s.Counting() {
		for d := range p.Rules {
			if p.Applies[d] {
				b.add(p.Rules[d], Direction(d))
			}
		}
	}
	return b.interest()
}

// InterestOf returns the interest of some rules.
func (state State) InterestOf(d Direction, rules ...Rule) Interest {
	b := broad{state: state, hosts: state.HasHosts(), names: map[string]bool{}, asked: map[namespaceText]bool{}}
	b.add(rules, d)
	return b.interest()
}

// broad collects an Interest.
type broad struct {
	state State
	hosts bool // there are host endpoints of this node
	all   bool
	names map[string]bool
	asked map[namespaceText]bool // selectors on namespaces
	tried int                    // conditions
	sets  *networkSets           // nil: not made yet
	// triedSets counts conditions that network sets were tried with.
	triedSets int
}

func (b *broad) interest() Interest {
	if b.all {
		return Interest{All: true}
	}
	return Interest{Namespaces: slices.Sorted(maps.Keys(b.names))}
}

func (b *broad) add(rules []Rule, d Direction) {
	for _, rule := range rules {
		names := map[string]bool{}
		rule.namePeersPorts(d, names)
		b.all = b.all || len(names) > 0 && rule.AnyPeer
		peers := rule.Peers
		if rule.Own != nil && b.hosts { // a host endpoint's end may have any address
			peers = append(slices.Clip(peers), Peer{Match: rule.Own})
		}
		for _, peer := range peers {
			if b.all {
				return
			}
			b.peer(peer, len(names) > 0)
		}
	}
}

// peer adds a peer. named: the ports that its pods declare matter. Any pod may have an address of a network set. A
// selection of what is excluded covers all namespaces.
func (b *broad) peer(peer Peer, named bool) {
	pods := peer.Pods
	if peer.Match != nil && peer.Match.Select != nil {
		b.all = named && b.selectsNetworks(peer.Match.Select)
		pods = peer.Match.Select
	}
	switch {
	case pods == nil:
		b.all = named
	case b.all || pods.Scope == Global:
	case pods.Namespace != "":
		b.names[pods.Namespace] = true
	case !pods.readsNamespaces():
		b.all = true
	default:
		b.matching(pods.Namespaces, pods.Calico)
	}
}

// selectsNetworks reports whether network sets may be selected. It returns true if too many selectors make this slow.
func (b *broad) selectsNetworks(p *Pods) bool {
	if b.sets == nil {
		b.sets = newNetworkSets(State{Sets: b.state.Sets, Namespaces: b.state.Namespaces})
	}
	candidates := b.sets.candidates(p)
	if b.triedSets += p.size() * len(candidates); b.triedSets > mostTries {
		return true
	}
	return slices.ContainsFunc(candidates, func(i int32) bool {
		s := &b.sets.all[i]
		return s.count > 0 && p.has(&s.selectable, true)
	})
}

// matching adds the namespaces that a selector matches, or all if too many selectors make this slow.
func (b *broad) matching(s selector.Selector, calico bool) {
	text := namespaceText{calico, s.String()}
	if b.asked[text] {
		return
	}
	b.asked[text] = true
	b.tried += s.Size() * len(b.state.Namespaces)
	if b.all = b.tried > mostElements; b.all {
		return
	}
	for name, labels := range b.state.Namespaces {
		if calico {
			labels = withName(labels, name)
			labels[hasNamespace] = ""
		}
		if s.Matches(labels) {
			b.names[name] = true
		}
	}
}
