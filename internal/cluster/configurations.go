package cluster

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// Configurations follow the configurations of nodes, for reports on their fields without effect. They have their own
// feed: nothing waits for it, and a missing right stops nothing.
type Configurations struct {
	feed
	bgp     *objectStore[api.BGPConfiguration]
	felix   *objectStore[api.FelixConfiguration]
	changed chan struct{}
}

// NewConfigurations prepares the watches; Run starts them.
func NewConfigurations(at Server, log *slog.Logger) (*Configurations, error) {
	feed, err := newFeed(at, log)
	if err != nil {
		return nil, err
	}
	c := &Configurations{feed: feed, changed: make(chan struct{}, 1)}
	c.bgp = newObjectStore(sameRevision, func(*api.BGPConfiguration) { wait.Signal(c.changed) })
	c.felix = newObjectStore(sameRevision, func(*api.FelixConfiguration) { wait.Signal(c.changed) })
	return c, errors.Join(
		add(&c.feed, source[api.BGPConfiguration]{optional: true, pages: podPage}, c.bgp),
		add(&c.feed, source[api.FelixConfiguration]{optional: true, pages: podPage}, c.felix),
	)
}

// Run watches until ctx ends.
func (c *Configurations) Run(ctx context.Context) error {
	c.run(ctx)
	return nil
}

// Changed wakes its one reader after a configuration changed.
func (c *Configurations) Changed() <-chan struct{} { return c.changed }

// All returns the known configurations, in no particular order. The caller must not change them.
func (c *Configurations) All() (all []api.Keyed) {
	for _, o := range c.bgp.each() {
		all = append(all, o)
	}
	for _, o := range c.felix.each() {
		all = append(all, o)
	}
	return all
}
