package audit

import (
	"maps"
	"slices"
)

// Kinds are all kinds, in alphabetical order.
var Kinds = slices.Sorted(maps.Keys(kinds))
