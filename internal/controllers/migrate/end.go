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
// the source. Without such a move it is an error, and nothing changes. It may be repeated.
func (m *Mover) Abort(ctx context.Context) error {
	s, _, err := m.read(ctx)
	if err != nil {
		return err
	}
	if s.phase != copying {
		return fmt.Errorf("no move is under way (%s): after a move, the way back is start --to the other group", s.phase)
	}
	n, err := m.clear(ctx, s.To, func(o *object) bool { return mine(o, s.ID) })
	if err != nil {
		return err
	}
	if err := m.setInfo(ctx, s.To.Other(), true, s.mark, mark{}); err != nil {
		return fmt.Errorf("unlock %s: %w", s.To.Other(), err)
	}
	m.Say("aborted: %d objects of %s are removed, the cluster uses %s", n, s.To, s.To.Other())
	return nil
}

// Finish removes the objects of the group that the cluster no longer uses, except its ClusterInformation, which stays
// locked. It is an error, and nothing is removed, while an agent does not work in the other group. It may be repeated.
func (m *Mover) Finish(ctx context.Context) error {
	s, _, err := m.read(ctx)
	if err != nil {
		return err
	}
	left := s.now.Other()
	if s.phase == copying || s.lock[s.now] != groups.Ready || s.lock[left] != groups.Locked {
		return fmt.Errorf("there is no completed move (%s): one group has to be ready, and the other locked", s.phase)
	}
	if err := errors.Join(m.checkCalico(ctx), m.checkAgents(ctx, s.now)); err != nil {
		return err
	}
	n, err := m.clear(ctx, left, func(*object) bool { return true })
	if err != nil {
		return err
	}
	m.Say("%d objects of %s are removed; its definitions may stay: start --to %s needs them", n, left, path.Base(string(left)))
	m.Say("before you delete its definitions run helm upgrade; helm rollback to a revision of before then fails, and locks the release")
	return nil
}

// clear removes objects of a group, the last kind first, and returns their number.
func (m *Mover) clear(ctx context.Context, in groups.Group, which func(*object) bool) (n int, err error) {
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
			left += len(chosen)
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
