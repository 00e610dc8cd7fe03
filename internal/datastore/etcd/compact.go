package etcd

import (
	"context"
	"errors"
	"fmt"
)

// Revision returns the datastore's revision.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	found, err := s.find(ctx, "ask for the revision", rangeRequest{key: keyConfig, countOnly: true})
	return found.revision, err
}

// Compact compacts etcd's history to a revision. If another process did that already, that is no error.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	r := rpc{method: methodCompact, msg: message{}.number(1, revision), what: fmt.Sprintf("compact to revision %d", revision)}
	_, err := s.client.call(ctx, r)
	var refused *statusError
	if errors.As(err, &refused) && refused.code == codeOutOfRange {
		return nil
	}
	return err
}
