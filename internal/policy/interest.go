package policy

import (
	"maps"
	"slices"
)

// Interest says whose pods matter to the policies that select local pods.
type Interest struct {
	All        bool     // pods of all namespaces
	Namespaces []string // if not All: ascending; local pods matter whatever it says
}

// Interest looks for it in the rules of the policies that select local pods.
func (state State) Interest() Interest {
	c := &compiler{state: state, policies: ordered(state.Policies)}
	found := Interest{}
	names := map[string]bool{}
	seen := map[[2]int]bool{}
	for _, policies := range c.selected() {
		for d := range policies {
			for _, i := range policies[d] {
				if !seen[[2]int{i, d}] {
					seen[[2]int{i, d}] = true
					found.add(state, c.policies[i].Rules[d], Direction(d), names)
				}
			}
		}
	}
	if !found.All {
		found.Namespaces = slices.Sorted(maps.Keys(names))
	}
	return found
}

func (i *Interest) add(state State, rules []Rule, d Direction, names map[string]bool) {
	for _, rule := range rules {
		named := d == Egress && slices.ContainsFunc(rule.Ports, func(p Port) bool { return p.Name != "" })
		i.All = i.All || named && rule.AnyPeer
		for _, peer := range rule.Peers {
			switch {
			case peer.Pods == nil:
				i.All = i.All || named
			case peer.Pods.Namespace != "":
				names[peer.Pods.Namespace] = true
			case len(peer.Pods.Namespaces.Keys()) == 0:
				i.All = true
			default:
				i.matching(state, peer.Pods, names)
			}
		}
	}
}

// matching adds the namespaces that a selector matches.
func (*Interest) matching(state State, pods *Pods, names map[string]bool) {
	for name, labels := range state.Namespaces {
		if pods.Namespaces.Matches(labels) {
			names[name] = true
		}
	}
}
