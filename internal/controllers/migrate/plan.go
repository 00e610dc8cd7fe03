package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// plan is what is to be done so that the target has the objects of one kind as the source has them.
type plan struct {
	of                     api.Type
	source, target, equal  int // how many objects
	create, update, remove []*object
	// conflicts are objects that a move must not change, with the reason.
	conflicts []string
}

// due returns how many objects are to be written or removed.
func (p *plan) due() int { return len(p.create) + len(p.update) + len(p.remove) }

// mine reports that the move with an ID has created an object.
func mine(o *object, id string) bool {
	by, _, _ := strings.Cut(o.Annotations[migratedBy], " ")
	return id != "" && by == id
}

// planKind compares the objects of a kind in both groups. Only objects that the move with the ID has created are updated
// or removed; any other one that differs is a conflict, and so is one that the source does not have.
func planKind(of api.Type, source, target []*object, to groups.Group, id string, owners uids) *plan {
	p := &plan{of: of, source: len(source), target: len(target)}
	want := map[string]*object{}
	for _, o := range source {
		if o.DeletionTimestamp != "" {
			p.conflict(o.key(), "it is being deleted in the source: "+o.remedy())
		}
		n := convert(o, to, id, owners)
		if want[n.key()] != nil {
			p.conflict(n.key(), "two objects of the source have that name in the target")
		}
		want[n.key()] = n
	}
	have := map[string]*object{}
	for _, o := range target {
		if have[o.key()] = o; want[o.key()] == nil && mine(o, id) {
			p.remove = append(p.remove, o)
		} else if want[o.key()] == nil {
			p.conflict(o.key(), "it is in the target alone")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		p.compare(key, want[key], have[key], id)
	}
	return p
}

// compare decides on one object of the source.
func (p *plan) compare(key string, want, have *object, id string) {
	if have == nil {
		p.create = append(p.create, want)
		return
	}
	lost := lacks(have.Spec, want.Spec)
	switch {
	case have.DeletionTimestamp != "":
		p.conflict(key, "it is being deleted in the target: "+have.remedy())
	case mine(have, id) && have.Annotations[migratedBy] != want.Annotations[migratedBy]:
		want.UID, want.ResourceVersion = have.UID, have.ResourceVersion
		p.update = append(p.update, want)
	case lost != "" && mine(have, id):
		p.conflict(key, "the target has not kept "+lost)
	case lost != "":
		p.conflict(key, lost+" differs")
	case !mine(have, id) && !maps.Equal(have.Labels, want.Labels):
		p.conflict(key, "metadata.labels differ")
	default:
		p.equal++
	}
}

// remedy says what ends the deletion of an object. A move would make it a live one again, or, if it left out a pool, take
// away the network of pods that still have addresses of it.
func (o *object) remedy() string {
	if o.Foreign == nil || len(o.Finalizers) == 0 {
		return "wait until it is gone"
	}
	return "wait until its finalizers are gone, or take them off: " + strings.Join(o.Finalizers, ", ")
}

func (p *plan) conflict(key, why string) {
	p.conflicts = append(p.conflicts, fmt.Sprintf("%s %s: %s", p.of.Kind, key, why))
}

// conflicts returns those of all plans.
func conflicts(plans []*plan) (all []string) {
	for _, p := range plans {
		all = append(all, p.conflicts...)
	}
	return all
}

// due returns what all plans have to do.
func due(plans []*plan) (n int) {
	for _, p := range plans {
		n += p.due()
	}
	return n
}
