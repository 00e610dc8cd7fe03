package groups

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Current holds the group of a cluster's objects, and whether they may be written. The group is detected on its first
// use, and changes with Set. nil is V1, for ever. It is safe for concurrent use.
type Current struct {
	wanted  Group // empty: the group is detected, and may change
	find    func(ctx context.Context, wanted Group) (Group, error)
	finding chan struct{} // holds a token while find runs
	held    atomic.Bool

	mu     sync.Mutex
	before Group         // set by Expect
	group  Group         // empty: not known yet
	left   chan struct{} // closed when the group changes
}

// Found returns a Current that detects its group by find. A wanted group that is not empty is passed to find. find is
// called until it succeeds, once at a time.
func Found(wanted Group, find func(ctx context.Context, wanted Group) (Group, error)) *Current {
	return &Current{wanted: wanted, find: find, finding: make(chan struct{}, 1), left: make(chan struct{})}
}

// In returns a Current that is configured with a group.
func In(g Group) *Current { return &Current{wanted: g, group: g, left: make(chan struct{})} }

// Wanted reports whether the group is configured, instead of detected.
func (c *Current) Wanted() bool { return c == nil || c.wanted != "" }

// Expect records the group of an earlier process of the node: empty if it is not known.
func (c *Current) Expect(before Group) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.before = before
	}
}

// Expected returns the last group that Expect recorded.
func (c *Current) Expected() Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.before
}

// Set changes the group, from the next request on, and cancels the contexts of While.
func (c *Current) Set(g Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.group != "" && c.group != g {
		close(c.left)
		c.left = make(chan struct{})
	}
	c.group = g
}

// While returns a context that ends with ctx, with cancel, and on the next change of the group.
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

// Hold forbids or permits writes. They are forbidden while the datastore is locked, or the contents of the group have
// not been seen yet.
func (c *Current) Hold(held bool) {
	if c != nil {
		c.held.Store(held)
	}
}

// Held reports whether writes are forbidden.
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

// Get returns the group, and detects it if it is not known. The error is why it cannot be detected, or that ctx has
// ended while another caller was detecting it.
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
