package guard

import (
	"context"
	"fmt"
)

// Remove removes the guard.
func (s *Syncer) Remove(ctx context.Context) error {
	if _, err := s.table.Sync(ctx, empty()); err != nil {
		return fmt.Errorf("packet guard: %w", err)
	}
	return nil
}
