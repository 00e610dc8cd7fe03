package migrate

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Abort undoes a move that has not unlocked the target: it removes the objects that the move has created and unlocks
// the source. crd.projectcalico.org/v1 gets a locked ClusterInformation again, which the move has removed: without one,
// calicoctl or a component of Calico would create one that is ready, and programs would turn to that group. Where no
// move is under way it removes what a late request of an aborted one has left in a group without ClusterInformation; if
// there is nothing it is an error. It may be repeated.
func (m *Mover) Abort(ctx context.Context) error {
	s, infos, err := m.read(ctx)
	if err == nil {
		err = s.doubt()
	}
	if err != nil {
		return err
	}
	if n, err := m.leftovers(ctx, s); n > 0 || err != nil {
		return err
	}
	from := s.To.Other()
	switch s.phase {
	case copying:
	case switching:
		return fmt.Errorf("the copy is complete, and %s may have been in use: start --to %s goes on, then the way back is start --to %s",
			s.To, path.Base(string(s.To)), path.Base(string(from)))
	default:
		return fmt.Errorf("no move is under way (%s): after a move, the way back is start --to the other group", s.phase)
	}
	by := s.mark
	if by.Aborting = true; by != s.mark {
		if err := m.setInfo(ctx, from, false, s.mark, by); err != nil { // a start that has lost its Lease cannot switch any more
			return err
		}
	}
	still := func() error { return m.still(ctx, by) }
	n, err := m.clear(ctx, s.To, func(o *object) bool { return mine(o, s.ID) }, still)
	if err != nil {
		return err
	}
	after := mark{}
	if s.To == groups.V1 {
		after = mark{To: from, ID: s.ID, Switched: true} // as after a move to that group
		if infos[s.To] == nil {
			err := m.putInfo(ctx, infos[from], s.To, false, after)
			if err != nil && !errors.Is(err, datastore.ErrNotFound) { // its definitions are deleted
				return err
			}
		}
	}
	if err := m.setInfo(ctx, from, true, by, after); err != nil {
		return fmt.Errorf("unlock %s: %w", from, err)
	}
	m.Say("aborted: %d objects of %s are removed, the cluster uses %s", n, s.To, from)
	return nil
}

// leftovers removes, while no move is under way, the objects that moves have created in a group without
// ClusterInformation, which no program uses, and returns their number.
func (m *Mover) leftovers(ctx context.Context, s state) (int, error) {
	in := s.now.Other()
	if s.phase != idle || s.byCalico || s.lock[s.now] != groups.Ready || s.lock[in] != groups.Absent {
		return 0, nil
	}
	n, err := m.clear(ctx, in, func(o *object) bool { return o.Annotations[migratedBy] != "" }, func() error {
		again, _, err := m.read(ctx)
		if err == nil && (again.phase != idle || again.now != s.now || again.lock[in] != groups.Absent) {
			err = errors.New("another program has changed a ClusterInformation")
		}
		return err
	})
	if n > 0 {
		m.Say("%d objects of %s that an earlier move has left are removed, the cluster uses %s", n, in, s.now)
	}
	return n, err
}

// Finish removes the objects of the group that the cluster no longer uses, except its ClusterInformation, which stays
// locked. It is an error, and nothing is removed, unless the marks of a move, or of Calico's migration, show that the
// other group has the complete objects, and while a pod of Tortie sets another group, or an agent does not work there.
// It may be repeated.
func (m *Mover) Finish(ctx context.Context) error {
	left, err := m.left(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(m.checkCalico(ctx), m.checkFollow(ctx, left.Other())); err != nil {
		return err
	}
	if err := m.checkAgents(ctx, left.Other()); err != nil {
		return err
	}
	s, _, err := m.read(ctx) // agents were asked for minutes
	if err == nil {
		err = m.checkLost(ctx, mark{To: left.Other(), ID: s.ID})
	}
	if err != nil {
		return err
	}
	n, err := m.clear(ctx, left, func(*object) bool { return true }, func() error {
		again, err := m.left(ctx)
		if err == nil && again != left {
			err = errors.New("another program has changed a ClusterInformation")
		}
		return err
	})
	if err != nil {
		return err
	}
	m.Say("%d objects of %s are removed; its definitions may stay: start --to %s needs them", n, left, path.Base(string(left)))
	m.Say("before you delete its definitions run helm upgrade; helm rollback to a revision of before then fails, and locks the release")
	return nil
}

// left returns the group whose objects a completed move has left; an error if there is none.
func (m *Mover) left(ctx context.Context) (groups.Group, error) {
	s, _, err := m.read(ctx)
	if err == nil {
		err = s.doubt()
	}
	if err != nil {
		return "", err
	}
	left := s.now.Other()
	if s.phase != moved && !s.byCalico || s.lock[s.now] != groups.Ready || s.lock[left] != groups.Locked {
		return "", fmt.Errorf("there is no completed move (%s): one group has to be ready, and the other locked, each with annotation %s of the "+
			"same move", s.phase, groups.Moving)
	}
	return left, nil
}

// clear removes objects of a group, the last kind first, and returns their number. Before each kind it asks whether they
// still may go: a run may sleep for long, and has no Lease any more.
func (m *Mover) clear(ctx context.Context, in groups.Group, which func(*object) bool, still func() error) (n int, err error) {
	for range maxPasses {
		all, err := m.all(ctx, in, true)
		if err != nil {
			return n, err
		}
		left := 0
		for i := len(all) - 1; i >= 0; i-- {
			var chosen []*object
			for _, o := range all[i] {
				if which(o) {
					chosen = append(chosen, o)
				}
			}
			if left += len(chosen); len(chosen) == 0 {
				continue
			}
			if err := still(); err != nil {
				return n, err
			}
			if err := each(ctx, chosen, m.remover(in)); err != nil && !datastore.Contended(err) {
				return n, fmt.Errorf("remove %s of %s: %w", kinds[i].Plural, in, err)
			}
		}
		if n = max(n, left); left == 0 {
			return n, nil
		}
	}
	return n, fmt.Errorf("remove the objects of %s: %w", in, errors.New("other programs write there"))
}
