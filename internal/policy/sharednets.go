package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// mostShared bounds the networks of a namespace's NetworkSets that count for policies of administrators and of other
// namespaces: any of these may select them, which takes room on all nodes. For these policies networks over the limit
// do not exist, except where that would open a Deny, or an exception of an Allow. There they count as so many ranges
// again, which also have addresses between those listed. A user could list 0.0.0.0/0 anyway, so this lets no user close
// more.
const mostShared = 10_000

// Surplus is the part of a NetworkSet over the limit.
type Surplus struct {
	// Shared is how many of its networks, the first ones, count for policies of others.
	Shared int
	// Wide is the number of ranges that the other networks become, see NetworkSet.
	Wide int
	// Problems are set on the first such set of a namespace, for all of them.
	Problems []string
}

// FindSurplus finds the sets over the limit of their namespace, by order of names.
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

// Sharing returns the set with fewer networks that count for policies of others.
func (s NetworkSet) Sharing(of Surplus) NetworkSet {
	most := min(of.Shared, len(s.Nets))
	s.Nets, s.Private, s.Wide = s.Nets[:most:most], s.Nets[most:], of.Wide
	return s
}

// wide returns at most s.Wide ranges that contain the private networks.
func (s *NetworkSet) wide() ranges { return rangesOf(s.Private).fewer(s.Wide) }
