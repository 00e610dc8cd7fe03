package etcd

import (
	"context"
	"errors"
	"fmt"
)

// Revision returns the datastore's revision.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	r := rpc{method: methodRange, msg: rangeRequest{key: keyConfig, countOnly: true}.encode(), what: "ask for the revision", read: true}
	data, err := s.client.call(ctx, r)
	if err != nil {
		return 0, err
	}
	revision, err := decodeRevision(data)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", r.what, err)
	}
	return revision, nil
}

// Compact has etcd forget what was before a revision. That somebody else did is no error.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	r := rpc{method: methodCompact, msg: message{}.number(1, revision), what: fmt.Sprintf("compact to revision %d", revision)}
	_, err := s.client.call(ctx, r)
	var refused *statusError
	if errors.As(err, &refused) && refused.code == codeOutOfRange {
		return nil
	}
	return err
}

// decodeRevision reads what the header of an answer says.
func decodeRevision(data []byte) (revision int64, err error) {
	err = fields(data, func(field int, _ uint64, header []byte) error {
		if field != 1 {
			return nil
		}
		return fields(header, func(field int, v uint64, _ []byte) error {
			if field == 3 {
				revision = int64(v)
			}
			return nil
		})
	})
	return revision, err
}
