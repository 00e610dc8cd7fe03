package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// migrating is the annotation on the ClusterInformation of the source, and after the move also of the target: a mark,
// as JSON.
const migrating = "tortie.net/migrating"

// calicoMigration begins the annotations of Calico's own migration on the ClusterInformation of projectcalico.org/v3.
const calicoMigration = "migration.projectcalico.org/"

// mark identifies a move and its target.
type mark struct {
	To groups.Group `json:"to"`
	ID string       `json:"id"`
	// Switched: the copy is complete, and the target is in use or about to be. The source says so before the target has a
	// ClusterInformation: else a move whose target has lost it later would look like one that still copies.
	Switched bool `json:"switched,omitempty"`
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
	// odd is, in phase unclear, the group whose ClusterInformation is not the move's.
	odd groups.Group
	// byCalico: Calico's migration was the last to move the cluster, to projectcalico.org/v3. The phase is idle.
	byCalico bool
}

// read returns the state by the ClusterInformation of each group; nil is none. A mark counts only where it agrees with
// the other group: anything else is unclear, since it does not show which group has the complete objects.
func read(infos map[groups.Group]*object) state {
	s := state{phase: idle, lock: map[groups.Group]groups.Lock{}}
	for _, in := range groups.All {
		s.lock[in] = lockOf(infos[in])
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
		case other.To == to && other.ID == m.ID: // also if an operator has locked it since
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
	return s
}

// doubt returns nil, or in phase unclear an error with the way out.
func (s state) doubt() error {
	if s.phase != unclear {
		return nil
	}
	text, _ := json.Marshal(s.mark) // what was decoded encodes
	remedy := "delete it, and start or abort again"
	switch {
	case s.odd != s.To:
		remedy = fmt.Sprintf("if the objects in use are in %s, set datastoreReady of it to false", s.To)
	case s.Switched:
		remedy = fmt.Sprintf("if the objects in use are in %s, set its annotation %s to %s", s.To, migrating, text)
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

// lockOf returns the lock of a ClusterInformation; nil is Absent.
func lockOf(o *object) groups.Lock {
	if o == nil {
		return groups.Absent
	}
	info := &api.ClusterInformation{}
	_ = json.Unmarshal(o.Spec, &info.Spec) // one that cannot be read is locked
	return groups.LockOf(info)
}

// markOf returns the mark of a ClusterInformation; empty if it has none.
func markOf(o *object) (m mark) {
	if o != nil {
		_ = json.Unmarshal([]byte(o.Annotations[migrating]), &m) // invalid JSON is none
	}
	return m
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
	if delete(o.Annotations, migrating); m.ID != "" {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		o.Annotations[migrating] = string(text)
	}
	return nil
}
