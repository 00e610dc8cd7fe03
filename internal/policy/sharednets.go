package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// mostShared bounds the networks of a namespace's NetworkSets that count for policies of administrators and of other
// namespaces: any of these may select them, which takes room on all nodes. What is over the limit is to them as if it
// were not there; but a Deny must not be open for it. To that, and to exceptions of an Allow, it is as many ranges
// again, which also have addresses between those listed. A user who lists these networks might list 0.0.0.0/0, so that
// no user closes more by it than without.
const mostShared = 10_000

// Surplus says of a NetworkSet that it does not count as a whole.
type Surplus struct {
	// Shared is how many of its networks count for policies of others: the first ones.
	Shared int
	// Wide is how many ranges the others are, see NetworkSet.
	Wide int
	// Problems are told of the first set of a namespace, for all of them.
	Problems []string
}

// FindSurplus finds the sets of namespaces that have too many networks: by order of names, what is over the limit is
// surplus.
func FindSurplus(sets []*api.CalicoNetworkSet) map[*api.CalicoNetworkSet]Surplus {
	networks := map[string]int{}
	for _, s := range sets {
		networks[s.Namespace] += len(s.Spec.Nets)
	}
	crowded := map[string][]*api.CalicoNetworkSet{}
	for _, s := range sets {
		if networks[s.Namespace] > mostShared {
			crowded[s.Namespace] = append(crowded[s.Namespace], s)
		}
	}
	found := map[*api.CalicoNetworkSet]Surplus{}
	for namespace, all := range crowded {
		slices.SortFunc(all, func(a, b *api.CalicoNetworkSet) int { return cmp.Compare(a.Name, b.Name) })
		left, told := mostShared, false
		for _, s := range all {
			n := min(left, len(s.Spec.Nets))
			if left -= n; n == len(s.Spec.Nets) {
				continue
			}
			rest := len(s.Spec.Nets) - n
			of := Surplus{Shared: n, Wide: max(1, mostShared*rest/(networks[namespace]-mostShared))}
			if !told {
				of.Problems, told = []string{surplusText(n, namespace, networks[namespace])}, true
			}
			found[s] = of
		}
	}
	return found
}

func surplusText(first int, namespace string, networks int) string {
	return fmt.Sprintf("spec.nets[%d] and those after it, also of sets with later names, count for policies of the namespace alone; for "+
		"GlobalNetworkPolicies and those of other namespaces only where these deny them, or exclude them from what they allow, and there with "+
		"addresses between them: the NetworkSets of namespace %s have %d networks, of which %d count: name fewer, larger networks, or have a "+
		"GlobalNetworkSet made", first, namespace, networks, mostShared)
}

// Sharing is the set with few networks that count for policies of others.
func (s NetworkSet) Sharing(of Surplus) NetworkSet {
	most := min(of.Shared, len(s.Nets))
	s.Nets, s.Private, s.Wide = s.Nets[:most:most], s.Nets[most:], of.Wide
	return s
}

// wide has all of the private networks.
func (s *NetworkSet) wide() ranges { return rangesOf(s.Private).fewer(s.Wide) }
