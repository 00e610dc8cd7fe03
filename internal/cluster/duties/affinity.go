package duties

import (
	"context"
	"errors"
	"fmt"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
)

// LabelAffinities adds the labels that this node's affinities lack. Calico before 3.31 did not label affinities, so
// label-selected lists, which Calico and Tortie use since, miss them. An affinity that changes meanwhile is left to the
// next call, which that change triggers.
func LabelAffinities(ctx context.Context, store datastore.Store, own []api.BlockAffinity) error {
	var failed error
	for i := range own {
		next, missing := ipam.Labelled(&own[i])
		if !missing {
			continue
		}
		if err := store.Update(ctx, next); err != nil && !datastore.Contended(err) {
			failed = errors.Join(failed, fmt.Errorf("label BlockAffinity %s: %w", next.Name, err))
		}
	}
	return failed
}
