package ipam

import (
	"context"
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	// maxTries bounds how often a request is planned again after a conflict. The number is Calico's.
	maxTries = 100
	// minPause is how long the winner of a conflict needs to finish; maxPause lets 100 processes that want the same block
	// take turns.
	minPause, maxPause = 5 * time.Millisecond, 500 * time.Millisecond
	// undoTime bounds the cleanup after a failure, also if the caller's context has ended.
	undoTime = 15 * time.Second
)

// Client assigns and releases addresses in a datastore.
type Client struct {
	store datastore.Store
	now   func() time.Time
}

// NewClient returns a Client that stamps claims with the given clock.
func NewClient(store datastore.Store, now func() time.Time) *Client {
	return &Client{store: store, now: now}
}

// Assign is Begin and Finish in one, for a caller that has the whole request.
func (c *Client) Assign(ctx context.Context, req Request) ([]Assignment, error) {
	return c.Begin(ctx, Start{Owner: req.Owner, Host: req.Host}).Finish(ctx, req)
}

// AssignEach is Assign for the owner and the owners in req.Also, with one write of each block. It returns the
// assignments of the first of them, at least req.Owner's, or an error, and the blocks that are full now. After a
// failure, addresses of a handle stay: the caller assigns or releases by handle later, perhaps in another process.
func (c *Client) AssignEach(ctx context.Context, req Request) (got [][]Assignment, full []netip.Prefix, err error) {
	a := c.Begin(ctx, Start{Owner: req.Owner, Host: req.Host, InUse: true})
	plan, err := a.finish(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	return append([][]Assignment{plan.Assignments}, plan.also...), plan.filled(a.st.Reserved), nil
}

// retry repeats try after conflicts, until it succeeds, fails otherwise or has been tried too often.
func (c *Client) retry(ctx context.Context, try func() error) error {
	return datastore.Retry(ctx, maxTries, minPause, maxPause, try)
}
