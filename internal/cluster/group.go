package cluster

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// Finding returns a server that detects its group on the first request for a Calico object. A wanted group is used once
// the API server serves it: see kubernetes.Store.FindGroup.
func Finding(cfg *rest.Config, wanted groups.Group) Server {
	var in *groups.Current
	in = groups.Found(wanted, func(ctx context.Context, wanted groups.Group) (groups.Group, error) {
		store, err := OpenStore(Server{Config: cfg})
		if err != nil {
			return "", err
		}
		defer store.Close()
		return store.FindGroup(ctx, wanted, in.Expected())
	})
	return Server{Config: cfg, Group: in}
}
