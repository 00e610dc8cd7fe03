package policy

import (
	"maps"
	"slices"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// Interest says whose pods matter to the policies that select local pods.
type Interest struct {
	All        bool     // pods of all namespaces
	Namespaces []string // if not All: ascending; local pods matter whatever it says
}

// Interest looks for it in the rules of the policies that select local pods.
func (state State) Interest() Interest { return Select(state).Interest() }

// Interest is that of the State.
func (s *Selection) Interest() Interest {
	b := broad{state: s.state, names: map[string]bool{}, asked: map[string]bool{}}
	for p := range s.Counting() {
		for d := range p.Rules {
			if p.Applies[d] {
				b.add(p.Rules[d], Direction(d))
			}
		}
	}
	return b.interest()
}

// InterestOf is that of some rules alone.
func (state State) InterestOf(d Direction, rules ...Rule) Interest {
	b := broad{state: state, names: map[string]bool{}, asked: map[string]bool{}}
	b.add(rules, d)
	return b.interest()
}

// broad is an Interest that grows.
type broad struct {
	state State
	all   bool
	names map[string]bool
	asked map[string]bool // selectors on namespaces, by text
	tried int             // conditions
}

func (b *broad) interest() Interest {
	if b.all {
		return Interest{All: true}
	}
	return Interest{Namespaces: slices.Sorted(maps.Keys(b.names))}
}

func (b *broad) add(rules []Rule, d Direction) {
	for _, rule := range rules {
		named := d == Egress && slices.ContainsFunc(rule.Ports, func(p Port) bool { return p.Name != "" })
		b.all = b.all || named && rule.AnyPeer
		for _, peer := range rule.Peers {
			switch {
			case b.all:
				return
			case peer.Pods == nil:
				b.all = named
			case peer.Pods.Namespace != "":
				b.names[peer.Pods.Namespace] = true
			case len(peer.Pods.Namespaces.Keys()) == 0:
				b.all = true
			default:
				b.matching(peer.Pods.Namespaces)
			}
		}
	}
}

// matching adds the namespaces that a selector matches. So many selectors that this takes long are an interest in all.
func (b *broad) matching(s selector.Selector) {
	if b.asked[s.String()] {
		return
	}
	b.asked[s.String()] = true
	b.tried += s.Size() * len(b.state.Namespaces)
	if b.all = b.tried > mostElements; b.all {
		return
	}
	for name, labels := range b.state.Namespaces {
		if s.Matches(labels) {
			b.names[name] = true
		}
	}
}
