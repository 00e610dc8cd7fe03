package groups

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Current is the group that a cluster's objects are in now, and whether they may be written. The group is found when it
// is first asked for, and changes with Set. nil is V1, for ever. It is safe for concurrent use.
type Current struct {
	wanted  Group // empty: the group is found, and may change
	find    func(ctx context.Context, wanted Group) (Group, error)
	finding chan struct{} // holds a token while find runs
	held    atomic.Bool

	mu     sync.Mutex
	before Group         // what Expect has said
	group  Group         // empty: not known yet
	left   chan struct{} // closed when the group changes
}

// Found returns a Current of which find says the group: the wanted one, if that is not empty. It is called, once at a
// time, until it has no error.
func Found(wanted Group, find func(ctx context.Context, wanted Group) (Group, error)) *Current {
	return &Current{wanted: wanted, find: find, finding: make(chan struct{}, 1), left: make(chan struct{})}
}

// In returns a Current with a group, which is wanted.
func In(g Group) *Current { return &Current{wanted: g, group: g, left: make(chan struct{})} }

// Wanted reports that the group is as somebody has set it, wherever the objects are.
func (c *Current) Wanted() bool { return c == nil || c.wanted != "" }

// Expect notes in which group an earlier process of the node was: empty if that is not known.
func (c *Current) Expect(before Group) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.before = before
	}
}

// Expected returns what Expect has noted last.
func (c *Current) Expected() Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.before
}

// Set changes the group, from the next request on, and ends what runs While in the one before.
func (c *Current) Set(g Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.group != "" && c.group != g {
		close(c.left)
		c.left = make(chan struct{})
	}
	c.group = g
}

// While returns a context that ends with ctx, with cancel, and as soon as the group is another one than now.
func (c *Current) While(ctx context.Context) (in context.Context, cancel context.CancelFunc) {
	in, cancel = context.WithCancel(ctx)
	if c == nil {
		return in, cancel
	}
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	go func() {
		select {
		case <-left:
			cancel()
		case <-in.Done():
		}
	}()
	return in, cancel
}

// Hold says whether nothing may be written for now: the datastore is locked, or it has not been seen yet what is in the
// group.
func (c *Current) Hold(held bool) {
	if c != nil {
		c.held.Store(held)
	}
}

// Held reports that nothing may be written.
func (c *Current) Held() bool { return c != nil && c.held.Load() }

// Known returns the group; empty if it has not been found yet.
func (c *Current) Known() Group {
	if c == nil {
		return V1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.group
}

// Get returns the group, which it finds if it is not known. The error says why it cannot be found, or that ctx has ended
// while somebody else was about to.
func (c *Current) Get(ctx context.Context) (Group, error) {
	if g := c.Known(); g != "" {
		return g, nil
	}
	select {
	case c.finding <- struct{}{}:
		defer func() { <-c.finding }()
	case <-ctx.Done():
		return "", fmt.Errorf("find the API group of Calico's objects: %w", context.Cause(ctx))
	}
	if g := c.Known(); g != "" {
		return g, nil
	}
	g, err := c.find(ctx, c.wanted)
	if err != nil {
		return "", fmt.Errorf("find the API group of Calico's objects: %w", err)
	}
	c.Set(g)
	return g, nil
}
