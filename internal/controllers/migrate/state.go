package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// calicoMigration begins the annotations of Calico's own migration on the ClusterInformation of projectcalico.org/v3.
const calicoMigration = "migration.projectcalico.org/"

// mark identifies a move. The ClusterInformation of the source has it, and after the move also that of the target.
type mark = groups.Mark

// switched returns the mark of a move whose copy is complete.
func switched(by mark) mark {
	by.Switched = true
	return by
}

// phase is the progress of a move.
type phase string

// The phases.
const (
	idle      phase = "idle"      // there was no move, or it was aborted
	copying   phase = "copying"   // the source is locked
	switching phase = "switching" // the copy is complete, and the target has no ClusterInformation (any more)
	moved     phase = "moved"     // the target is ready
	unclear   phase = "unclear"   // another program has created or changed a ClusterInformation
)

// state is the state of a move by the ClusterInformation of both groups.
type state struct {
	phase
	// mark is the mark of the move; empty in phase idle.
	mark
	// now is the group that the cluster uses, or used until it was locked; empty in a cluster without either.
	now groups.Group
	// lock is the lock of each group.
	lock map[groups.Group]groups.Lock
	// odd is, in phase unclear, the group whose ClusterInformation is not the move's; empty mark: there is no move.
	odd groups.Group
	// byCalico: Calico's migration was the last to move the cluster, to projectcalico.org/v3. The phase is idle.
	byCalico bool
}

// read returns the state by the ClusterInformation of each group; nil is none. A mark counts only where it agrees with
// the other group: anything else is unclear, since it does not show which group has the complete objects.
func read(infos map[groups.Group]*object) state {
	s := state{phase: idle, lock: map[groups.Group]groups.Lock{}}
	for _, in := range groups.All {
		s.lock[in] = groups.LockOf(infoOf(infos[in]))
	}
	s.now = groups.Choose(s.lock[groups.V1], s.lock[groups.V3])
	s.byCalico = s.lock[groups.V1] == groups.Locked && s.lock[groups.V3] == groups.Ready && ofCalico(infos[groups.V3]) &&
		markOf(infos[groups.V1]).To != groups.V3
	if s.byCalico {
		return s // an earlier move's marks may be left
	}
	for _, in := range groups.All {
		m, to := markOf(infos[in]), in.Other()
		if m.To != to || s.lock[in] != groups.Locked {
			continue
		}
		back := mark{To: in, ID: m.ID, Switched: true} // see Abort
		switch other := markOf(infos[to]); {
		case s.lock[to] == groups.Absent && m.Switched:
			return state{phase: switching, mark: m, now: to, lock: s.lock}
		case s.lock[to] == groups.Absent || s.lock[to] == groups.Locked && other == back && !m.Switched:
			return state{phase: copying, mark: m, now: in, lock: s.lock}
		case other.To == to && other.ID == m.ID && !m.Aborting: // also if an operator has locked it since
			return state{phase: moved, mark: m, now: to, lock: s.lock}
		}
		s.phase, s.mark, s.odd = unclear, m, to
	}
	for _, in := range groups.All {
		m, left := markOf(infos[in]), in.Other()
		switch {
		case s.phase != idle || m.To != in:
		case s.lock[left] == groups.Ready:
			s.phase, s.mark, s.odd = unclear, m, left
		case s.lock[left] == groups.Locked && s.lock[in] == groups.Ready && m.Switched && markOf(infos[left]).ID == "":
			s.phase, s.mark = moved, m // the source's has lost its mark
		}
	}
	if s.phase == idle && s.lock[groups.V1] == groups.Locked && s.lock[groups.V3] == groups.Ready &&
		kubernetes.Before(infoOf(infos[groups.V3]), infoOf(infos[groups.V1])) {
		s.phase, s.odd = unclear, groups.V3
	}
	return s
}

// errChanged means that another run, or an operator, has changed the move meanwhile.
var errChanged = errors.New("another program has changed the move")

// is returns an error unless a move is in this phase, and has this mark.
func (s state) is(in phase, by mark) error {
	if s.phase == in && s.mark == by {
		return nil
	}
	return errors.Join(s.doubt(), fmt.Errorf("%w: it is %s, move %q", errChanged, s.phase, s.ID))
}

// doubt returns nil, or in phase unclear an error with the way out.
func (s state) doubt() error {
	if s.phase != unclear {
		return nil
	}
	if s.ID == "" {
		return fmt.Errorf("ClusterInformation default of %[1]s was ready before that of %[2]s was locked, so no migration has written it: "+
			"programs that work in %[2]s stay there, others use %[1]s: if the objects in use are in %[2]s, delete that of %[1]s and set "+
			"datastoreReady of %[2]s to true; else change it: kubectl annotate %[3]s default used=true", s.odd, s.odd.Other(),
			s.odd.Resource(information.Plural))
	}
	text, _ := json.Marshal(s.mark) // what was decoded encodes
	remedy := "delete it, and start or abort again"
	switch {
	case s.odd != s.To:
		remedy = fmt.Sprintf("if the objects in use are in %s, set datastoreReady of it to false", s.To)
	case s.Switched:
		remedy = fmt.Sprintf("if the objects in use are in %s, set its annotation %s to %s", s.To, groups.Moving, text)
	}
	return fmt.Errorf("another program has created or changed ClusterInformation default of %s, which is not that of the move to %s (%s): "+
		"%s: see docs/apigroups.md", s.odd, s.To, s.ID, remedy)
}

// ofCalico reports whether Calico's migration has written a ClusterInformation, and no move since: see set.
func ofCalico(o *object) bool {
	return o != nil && slices.ContainsFunc(slices.Collect(maps.Keys(o.Annotations)), func(key string) bool {
		return strings.HasPrefix(key, calicoMigration)
	})
}

// infoOf returns a ClusterInformation; nil of nil.
func infoOf(o *object) *api.ClusterInformation {
	if o == nil {
		return nil
	}
	info := &api.ClusterInformation{Meta: o.Meta}
	_ = json.Unmarshal(o.Spec, &info.Spec) // one that cannot be read is locked
	return info
}

// markOf returns the mark of a ClusterInformation; empty if it has none.
func markOf(o *object) mark {
	if o == nil {
		return mark{}
	}
	return groups.MarkOf(o.Annotations)
}

// set writes datastoreReady and the mark into a ClusterInformation; an empty mark removes it. What Calico's migration
// has noted is removed: it counts no longer.
func (o *object) set(ready bool, m mark) error {
	spec := map[string]json.RawMessage{}
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return err
	}
	spec["datastoreReady"], _ = json.Marshal(ready)
	var err error
	if o.Spec, err = json.Marshal(spec); err != nil {
		return err
	}
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	maps.DeleteFunc(o.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, calicoMigration) })
	if delete(o.Annotations, groups.Moving); m.ID != "" {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		o.Annotations[groups.Moving] = string(text)
	}
	return nil
}
