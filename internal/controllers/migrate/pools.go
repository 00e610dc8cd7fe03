package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/controllers"
	"github.com/tortie-net/tortie/internal/datastore"
)

// keepPools gives the pools of the target the condition Allocatable that those of the source have, or should have. Of
// pools that overlap the one with it stays in use. Without conditions the first by name would be: all objects of the
// target are of the same age. It may be repeated.
func (m *Mover) keepPools(ctx context.Context, to groups.Group) error {
	var source, target api.IPPoolList
	err := errors.Join(m.Stores[to.Other()].List(ctx, &source, datastore.ListOptions{}),
		m.Stores[to].List(ctx, &target, datastore.ListOptions{}))
	if err != nil {
		return fmt.Errorf("list IPPools: %w", err)
	}
	for _, pool := range controllers.CopyConditions(source.Items, target.Items, time.Now()) {
		if err := m.Stores[to].SetStatus(ctx, pool, pool.Status); err != nil {
			return fmt.Errorf("status of IPPool %s of %s: %w", pool.Name, to, err)
		}
	}
	return nil
}
