package migrate

import (
	"encoding/json"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
)

// migrating is the annotation on the ClusterInformation of the source, and after the move also of the target: a mark,
// as JSON.
const migrating = "tortie.net/migrating"

// mark identifies a move and its target.
type mark struct {
	To groups.Group `json:"to"`
	ID string       `json:"id"`
	// Switched: the copy is complete. Until then the chart's policies tortie-fence-groups refuse what nodes write in the
	// target.
	Switched bool `json:"switched,omitempty"`
}

// phase is the progress of a move.
type phase string

// The phases.
const (
	idle    phase = "idle"    // there was no move, or it was aborted
	copying phase = "copying" // the source is locked
	moved   phase = "moved"   // the target is ready
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
}

// read returns the state by the ClusterInformation of each group; nil is none.
func read(infos map[groups.Group]*object) state {
	s := state{phase: idle, lock: map[groups.Group]groups.Lock{}}
	for _, in := range groups.All {
		s.lock[in] = lockOf(infos[in])
	}
	s.now = groups.Choose(s.lock[groups.V1], s.lock[groups.V3])
	for _, in := range groups.All {
		m, to := markOf(infos[in]), in.Other()
		if m.To != to || s.lock[in] != groups.Locked {
			continue
		}
		switch {
		case s.lock[to] == groups.Absent:
			return state{copying, m, in, s.lock}
		case markOf(infos[to]) == m: // also if an operator has locked it since
			return state{moved, m, to, s.lock}
		}
	}
	return s
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

// set writes datastoreReady and the mark into a ClusterInformation; an empty mark removes it.
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
	if delete(o.Annotations, migrating); m.ID != "" {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		o.Annotations[migrating] = string(text)
	}
	return nil
}
