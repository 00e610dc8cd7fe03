package bgp

import "slices"

// changes are the keys to add, replace and remove to turn one map into another, each list in the order of the keys.
type changes[K comparable] struct {
	add, replace, remove []K
}

// diff returns the changes that turn have into want.
func diff[K, V comparable](have, want map[K]V, order func(a, b K) int) changes[K] {
	var c changes[K]
	for key, value := range want {
		switch old, ok := have[key]; {
		case !ok:
			c.add = append(c.add, key)
		case old != value:
			c.replace = append(c.replace, key)
		}
	}
	for key := range have {
		if _, ok := want[key]; !ok {
			c.remove = append(c.remove, key)
		}
	}
	for _, keys := range [][]K{c.add, c.replace, c.remove} {
		slices.SortFunc(keys, order)
	}
	return c
}
