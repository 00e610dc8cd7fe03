package groups

import (
	"context"
	"fmt"
	"sync"
)

// Current is the group that a cluster's objects are in now. It is not known at first and may change while a program
// runs. nil is V1. It is safe for concurrent use.
type Current struct {
	mu    sync.Mutex
	known chan struct{} // closed once there is a group
	group Group
}

// NewCurrent returns a Current without a group.
func NewCurrent() *Current { return &Current{known: make(chan struct{})} }

// In returns a Current with a group.
func In(g Group) *Current {
	c := NewCurrent()
	c.Set(g)
	return c
}

// Set changes the group, from the next request on.
func (c *Current) Set(g Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.group == "" {
		close(c.known)
	}
	c.group = g
}

// Get returns the group, V1 if it is not known.
func (c *Current) Get() Group {
	if c == nil {
		return V1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.group == "" {
		return V1
	}
	return c.group
}

// Wait returns the group as soon as it is known, or an error once ctx has ended.
func (c *Current) Wait(ctx context.Context) (Group, error) {
	if c == nil {
		return V1, nil
	}
	select {
	case <-c.known:
		return c.Get(), nil
	case <-ctx.Done():
		return "", fmt.Errorf("it is not known yet whether the cluster keeps Calico's objects in %s or %s: %w", V1, V3, context.Cause(ctx))
	}
}
