package ipam

import (
	"context"
	"errors"
)

// Room returns nil if a request could be served now, else an error that wraps ErrNoPool, ErrExhausted, ErrBlockLimit or
// an error of the datastore. It writes nothing, so nothing is reserved.
func (c *Client) Room(ctx context.Context, req Request, known *Known) error {
	v := newView(c, req.Host, known)
	_, err := v.decide(ctx, &req, func(ctx context.Context, n *need) error {
		if n.reclaim != nil {
			return errReclaimable
		}
		return v.fetch(ctx, n, nil)
	})
	if errors.Is(err, errReclaimable) {
		return nil
	}
	return err
}

// errReclaimable: an idle block of another owner can be taken.
var errReclaimable = errors.New("a block can be reclaimed")
