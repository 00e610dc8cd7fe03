package ipam

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// olderOverlap returns a pool that overlaps the i-th and precedes it, as in Calico by rank, age, name; nil if none
// does. A pool that is disabled or being deleted counts, as it may have blocks; from one with Err, nothing is assigned.
func olderOverlap(objs []api.IPPool, pools []Pool, i int) *Pool {
	for j := range pools {
		if i == j || pools[j].Err != nil || !pools[j].CIDR.Overlaps(pools[i].CIDR) {
			continue
		}
		if cmp.Or(rank(&objs[j])-rank(&objs[i]), strings.Compare(objs[j].CreationTimestamp, objs[i].CreationTimestamp),
			strings.Compare(objs[j].Name, objs[i].Name)) < 0 {
			return &pools[j]
		}
	}
	return nil
}

// rank returns a pool's place among overlapping pools, lower ones first: in use, being deleted, refused, new.
func rank(obj *api.IPPool) int {
	conditions := []api.Condition{}
	if obj.Status != nil {
		conditions = obj.Status.Conditions
	}
	i := slices.IndexFunc(conditions, func(c api.Condition) bool { return c.Type == api.Allocatable })
	switch {
	case i >= 0 && conditions[i].Status == "True":
		return 0
	case obj.DeletionTimestamp != "":
		return 1
	case i >= 0:
		return 2
	}
	return 3
}
