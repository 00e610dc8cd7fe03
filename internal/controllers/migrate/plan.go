package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// plan has the changes that make the objects of one kind in the target equal to the source.
type plan struct {
	of                     api.Type
	source, target, equal  int // how many objects
	create, update, remove []*object
	// conflicts are objects that a move must not change, with the reason.
	conflicts []string
}

// due returns the number of objects to write or remove.
func (p *plan) due() int { return len(p.create) + len(p.update) + len(p.remove) }

// mine reports whether the move with an ID has created an object.
func mine(o *object, id string) bool {
	by, _, _ := strings.Cut(o.Annotations[migratedBy], " ")
	return id != "" && by == id
}

// planKind compares the objects of a kind in both groups. Only objects that the move with the ID has created are
// updated or removed. Any other object that differs, or is missing in the source, is a conflict.
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

// remedy returns the way to end the deletion of an object. A move would revive the object, or, if it left out a pool,
// break the network of pods with its addresses.
func (o *object) remedy() string {
	if o.Foreign == nil || len(o.Finalizers) == 0 {
		return "wait until it is gone"
	}
	return "wait until its finalizers are gone, or take them off: " + strings.Join(o.Finalizers, ", ")
}

func (p *plan) conflict(key, why string) {
	p.conflicts = append(p.conflicts, fmt.Sprintf("%s %s: %s", p.of.Kind, key, why))
}

// conflicts returns the conflicts of all plans.
func conflicts(plans []*plan) (all []string) {
	for _, p := range plans {
		all = append(all, p.conflicts...)
	}
	return all
}

// due returns the number of changes in all plans.
func due(plans []*plan) (n int) {
	for _, p := range plans {
		n += p.due()
	}
	return n
}
