package groups

import (
	"context"
	"fmt"
	"sync"
)

// Current is the group that a cluster's objects are in now. It is found when it is first asked for, and may change while
// a program runs. nil is V1. It is safe for concurrent use.
type Current struct {
	find    func(context.Context) (Group, error)
	finding chan struct{} // holds a token while find runs

	mu    sync.Mutex
	group Group // empty: not known yet
}

// Found returns a Current of which find says the group. It is called, once at a time, until it has no error.
func Found(find func(context.Context) (Group, error)) *Current {
	return &Current{find: find, finding: make(chan struct{}, 1)}
}

// In returns a Current with a group.
func In(g Group) *Current { return &Current{group: g} }

// Set changes the group, from the next request on.
func (c *Current) Set(g Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.group = g
}

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
	g, err := c.find(ctx)
	if err != nil {
		return "", fmt.Errorf("find the API group of Calico's objects: %w", err)
	}
	c.Set(g)
	return g, nil
}
